"""Trains QuartzNet or Jasper (CTC) on audio and transcripts listed in manifests.

    python -m jasper_pt.run_training --model_config configs/quartznet15x5_speedp-online-1.15_speca.yaml \
        --dataset_dir DATA --train_manifests DATA/train.json --val_manifests DATA/dev.json --output_dir OUT
    torchrun --nproc_per_node 8 -m jasper_pt.run_training ...       several processes, one GPU each; CPUs with --cpu

--resume goes on exactly where the newest checkpoint in output_dir stands, in mid-epoch too, and keeps the global batch
on any number of processes; so does a run that torchrun --max_restarts starts again. SIGTERM and SIGUSR1 finish the
update under way, save, and end the run with exit code 128 + signal (143, 138). Flags: --help.
"""

import argparse
import dataclasses
import itertools
import math
import secrets
import signal
import sys
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple, NoReturn

if __package__ in (None, ""):  # started by path: python jasper_pt/run_training.py
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import Tensor, nn

from jasper_pt import checkpoint, data_report, distributed, plan, schedules
from jasper_pt.augment import enlarge_time_masks
from jasper_pt.checkpoint import Checkpoints, Position, Run
from jasper_pt.config import Config, load_config
from jasper_pt.decode import greedy
from jasper_pt.distributed import PEER_TIMEOUT, PeerLost
from jasper_pt.ema import Ema
from jasper_pt.evaluation import evaluation_form, loader_types
from jasper_pt.loader import filter_utterances
from jasper_pt.losses import ctc_loss
from jasper_pt.manifest import Utterance, check_files, read_manifest
from jasper_pt.metrics import ErrorCounts, character_errors, word_errors
from jasper_pt.model import build_model
from jasper_pt.novograd import OPTIMIZERS, create_optimizer
from jasper_pt.precision import PRECISIONS, LossScale, choose_precision
from jasper_pt.text import read_labels
from jasper_pt.train_step import TrainingStep, UpdateResult, batch_norms, pre_allocate
from runkit import guards, machine
from runkit.background import BackgroundWriter
from runkit.errors import UserError, run_main
from runkit.files import read_json, write_json
from runkit.log import RunLog, read_log
from runkit.plots import line_plot
from runkit.progress import Progress, duration
from runkit.report import try_report
from runkit.signals import StopSignals
from runkit.tensorboard import EventWriter

RUN_CONFIG = "run_config.json"
SAMPLE_CHARACTERS = 90  # of a sample transcript, as published
# --normalizer and what it makes of normalize_transcripts: rules by the labels, English ones, or none but dropping what
# has no label
NORMALIZERS = {"auto": "true", "english": "english", "none": "false"}


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The published flags of both recipes with their defaults; those added here say so. Unknown ones are refused."""
    parser = argparse.ArgumentParser(prog="run_training", description=__doc__.split("\n\n")[0])
    switch = {"action": argparse.BooleanOptionalAction}

    training = parser.add_argument_group("training setup")
    flag = training.add_argument
    flag("--epochs", type=int, default=400, help="planned epochs in all; the learning rate depends on it")
    flag("--warmup_epochs", type=int, default=0, help="epochs of linear warm-up")
    flag("--hold_epochs", type=int, default=0, help="epochs at the peak after that")
    flag("--epochs_this_job", type=int, default=0, help="stop after so many epochs in this job; 0: no limit")
    flag("--max_updates", type=int, default=0, help="stop after so many updates in this job; 0: no limit (added)")
    flag("--cudnn_benchmark", **switch, default=True, help="let cuDNN time its algorithms for each shape")
    flag("--amp", "--fp16", action="store_true", help="mixed precision: fp16 on a GPU, bf16 on a CPU")
    flag("--precision", choices=tuple(PRECISIONS), help="wins over --amp; default tf32 (GPU) or fp32 (CPU) (added)")
    flag("--seed", type=int, help="of initial weights, data order and every random draw; default: drawn and logged")
    flag("--local_rank", "--local-rank", type=int, help="index of this process's GPU; default $LOCAL_RANK or 0")
    flag("--cpu", action="store_true", help="leave GPUs alone (added)")
    flag(
        "--pre_allocate_range", type=int, nargs=2, metavar=("MIN", "MAX"), help="run these lengths (frames) once first"
    )

    optimization = parser.add_argument_group("optimization setup")
    flag = optimization.add_argument
    flag("--gpu_batch_size", type=int, default=32, help="utterances of a forward pass on each process")
    flag("--batch_size", type=int, help="Jasper's name: utterances of an update on each process, over all its passes")
    names = ("--grad_accumulation", "--update-freq", "--grad_accumulation_steps")
    flag(*names, type=int, default=1, help="forward passes an update on each process")
    flag(
        "--global_batch_size",
        type=int,
        help="utterances of an update over all processes, a multiple of batch size x passes; default: of the run that "
        "goes on, else times the number of processes (added)",
    )
    flag("--lr", type=float, default=1e-3, help="peak learning rate")
    flag("--min_lr", type=float, default=1e-5, help="floor of the learning rate")
    flag("--lr_policy", choices=schedules.POLICIES, default="exponential", help="decay after the hold (cosine: added)")
    flag("--lr_exp_gamma", type=float, default=0.99, help="factor an epoch of the exponential decay")
    flag("--weight_decay", type=float, default=1e-3)
    flag("--optimizer", choices=OPTIMIZERS, default="novograd", help="fused_novograd is novograd here")
    flag("--ema", type=float, default=0.0, help="decay of the weights' moving average; 0: none")
    flag("--multi_tensor_ema", action="store_true", help="accepted for old command lines; it is always so")
    flag("--clip_norm", type=float, default=0.0, help="largest norm of the gradient; 0: unlimited (added)")
    flag("--sync_bn", action="store_true", help="BatchNorm statistics over all processes (added)")
    flag("--freeze_bn_stats", action="store_true", help="normalise with the running statistics, unchanged (added)")
    flag(
        "--consistency",
        type=float,
        default=0.0,
        metavar="WEIGHT",
        help="train on two views of each utterance, under masks of their own, and draw their results together with "
        "this weight (CR-CTC, 0.2 in arXiv 2410.05101); 0: off. Twice the work of an update (added)",
    )
    flag(
        "--consistency_mask_ratio",
        type=float,
        default=2.5,
        help="with --consistency so many times the time masks of the YAML file (added)",
    )
    flag("--freeze_batch_norm", action="store_true", help="that, and BatchNorm's scales and shifts unchanged (added)")
    flag(
        "--freeze_encoder",
        type=int,
        nargs="?",
        const=-1,
        default=0,
        metavar="N",
        help="only the decoder learns in the first N updates; without N: in all (added)",
    )
    flag("--nonfinite_patience", type=int, default=10, help="stop after so many non-finite updates in a row (added)")
    flag(
        "--explosion_factor",
        type=float,
        default=guards.EXPLOSION_FACTOR,
        help="stop when gradient norms are so many times the usual (added)",
    )
    flag(
        "--explosion_patience",
        type=int,
        default=guards.EXPLOSION_PATIENCE,
        help="in so many updates in a row (added)",
    )
    flag(
        "--input_timeout",
        type=float,
        default=guards.INPUT_TIMEOUT,
        help="seconds without a batch after which training stops (added)",
    )
    flag(
        "--peer_timeout",
        type=float,
        default=PEER_TIMEOUT,
        help="seconds after which a process that does not answer is lost (added)",
    )

    data = parser.add_argument_group("feature and checkpointing setup")
    flag = data.add_argument
    flag("--dali_device", choices=("none", "cpu", "gpu"), default="none", help="features through NVIDIA DALI")
    flag("--num_workers", type=int, help="threads that read audio, a process; default: by the machine (added)")
    flag("--resume", action="store_true", help="go on from the newest checkpoint in output_dir, else from --ckpt")
    flag("--ckpt", help="full state to start from: weights, optimizer, EMA, epoch")
    flag("--init_ckpt", "--init_from", help="weights to start from (EMA where there is one); all else anew (added)")
    flag(
        "--copy_label_rows",
        action="store_true",
        help="where --init_ckpt has other labels: rows of the decoder for those in both, and the blank (added)",
    )
    flag("--save_frequency", type=int, default=10, help="epochs between checkpoints")
    flag("--save_steps", type=int, default=0, help="updates between further checkpoints; 0: none (added)")
    flag("--no_save", action="store_true", help="write no checkpoint at all, as for a benchmark (added)")
    flag("--keep_milestones", type=int, nargs="*", default=[100, 200, 300], help="epochs whose checkpoints stay")
    flag("--keep_newest", type=int, default=checkpoint.KEPT, help="so many of the other checkpoints stay (added)")
    flag("--save_best_from", type=int, default=380, help="first epoch that can give the best checkpoint")
    flag("--eval_frequency", type=int, default=200, help="updates between evaluations")
    flag("--log_frequency", type=int, default=25, help="updates between log lines")
    flag("--prediction_frequency", type=int, default=100, help="updates between sample transcripts; 0: none")
    flag("--model_config", required=True, help="YAML file")
    flag("--labels", metavar="FILE", help="one label a line, in order, instead of the YAML file's (added)")
    flag("--train_manifests", required=True, nargs="+")
    flag("--val_manifests", required=True, nargs="+")
    flag("--dataset_dir", required=True, help="folder that audio paths in the manifests start from")
    flag("--normalizer", choices=tuple(NORMALIZERS), help="rules for transcripts; default: the YAML file's (added)")
    flag("--check_data", action="store_true", help="report on the manifests and their audio, and end (added)")
    flag("--output_dir", required=True, help="checkpoints, logs, curves, TensorBoard")
    flag("--report", action="store_true", help="write <output_dir>/report.html at the end (added)")
    flag("--log_file", help="DLLogger JSON lines; default <output_dir>/nvlog.json")
    flag("--benchmark_epochs_num", type=int, default=1, help="last epochs averaged into the final throughput")
    flag(
        "--override_config", action="append", default=[], metavar="PATH=VALUE", help="changes the YAML file; repeatable"
    )
    plan.add_arguments(parser)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """One job from start to summary; returns the exit code. Raises UserError for anything a user can fix."""
    args = parse_arguments(argv)
    if args.plan:
        return plan.training(args, check_arguments, read_config, choose_global_batch, continues_job)
    check_arguments(args)
    if args.check_data:
        return data_report.training(args, read_config(args))

    # ------------------------------------------------------------------------------ processes and precision
    group = distributed.init(args.cpu, args.local_rank, args.peer_timeout)
    with group.watching():
        return train(args, group)


def train(args: argparse.Namespace, group: distributed.Distributed) -> int:
    """The job on this process; returns the exit code."""
    precision = choose_precision(args.precision, args.amp, group.device)
    precision.activate()
    torch.backends.cudnn.benchmark = args.cudnn_benchmark

    # ------------------------------------------------------------------------------------ what there is already
    output_dir = Path(args.output_dir)
    config = read_config(args)
    store = Checkpoints(output_dir, config.name, args.keep_milestones, args.keep_newest)
    there, same_job = group.broadcast_json([bool(store.all()), continues_job(output_dir)])  # what the root sees
    resuming = there and (args.resume or same_job)
    if there and not (resuming or args.no_save):
        raise UserError(
            f"{output_dir} holds checkpoints of an earlier run: give --resume to go on with it, or another --output_dir"
        )
    log = open_log(args, group.rank, resuming)
    saved, source = find_checkpoint(args, resuming, store, group, log)
    if saved is not None:
        check_labels(saved, source, config)
    if resuming and group.is_root and not args.no_save:
        store.tidy(source)
    global_batch = choose_global_batch(args, saved, group)
    seed = choose_seed(args, saved, source, group)

    # ---------------------------------------------------------------------------------- data, before anything slow
    train_utterances = open_manifests(args.train_manifests, config, args, True, log)
    dev_utterances = open_manifests(args.val_manifests, config, args, False, log)
    train_loader, eval_loader = loader_types(args.dali_device)
    stall = guards.StallGuard(lambda text: warnings.warn(text, stacklevel=2), args.input_timeout)
    loader = train_loader(
        train_utterances,
        masked_for_views(config, args.consistency_mask_ratio) if args.consistency else config,
        args.gpu_batch_size,
        args.grad_accumulation,
        group.rank,
        group.size,
        seed,
        args.num_workers,
        processes=global_batch // (args.gpu_batch_size * args.grad_accumulation),
        together=args.sync_bn,
        device=group.device,
        stall=stall,
        views=2 if args.consistency else 1,
    )
    dev_loader = eval_loader(
        dev_utterances,
        config,
        args.gpu_batch_size,
        group.rank,
        group.size,
        args.num_workers,
        device=group.device,
        stall=stall,
        on_error=warn_of if args.dali_device == "none" else None,
    )

    # ---------------------------------------------------------------------------------- model and state
    torch.manual_seed(seed)
    model = build_model(config, config.n_classes).to(group.device)
    if args.sync_bn:
        model = distributed.synchronise_batch_norm(model, group.device)
    run = Run(
        model,
        Ema(model, args.ema) if args.ema else None,
        create_optimizer(args.optimizer, model.parameters(), args.lr, args.weight_decay),
        LossScale(precision.loss_scaling, args.nonfinite_patience),
    )
    position = Position(0, 0, loader.updates_per_epoch, global_batch)
    best_wer = math.inf
    if saved is not None:
        for note in run.restore(saved, source):
            log.warning(note)
        position = resume_position(saved, source, position, log)
        best_wer = float(saved.get("best_wer", math.inf))
        log.info(f"going on from {source}: {position.epoch} epochs and {position.update} updates done")
    elif args.init_ckpt:
        start_weights(run, args.init_ckpt, config.labels, args.copy_label_rows, log)
    else:
        log.info(f"starting from random weights (seed {seed})")
    if global_batch != args.gpu_batch_size * args.grad_accumulation * group.size:
        log.info(
            f"global batch {global_batch} utterances, dealt to {group.size} processes: {len(loader.shares)} passes an "
            "update on the first"
        )
    settings = resolved_settings(args, config, group, precision, loader, seed, model)
    log.parameters(settings)
    if group.is_root:
        write_json(output_dir / RUN_CONFIG, settings)

    # ---------------------------------------------------------------------------------- train, evaluate, report
    step = TrainingStep(
        run,
        precision,
        group,
        loader.update_size,
        loader.unit,
        loader.shares,
        args.clip_norm,
        args.freeze_bn_stats or args.freeze_batch_norm,
        seed,
        args.consistency,
        frozen_parameters(model, args.freeze_encoder, args.freeze_batch_norm),
    )
    if args.pre_allocate_range:
        pre_allocate_all(
            step, args.gpu_batch_size * (2 if args.consistency else 1), args.pre_allocate_range, config, log
        )
    training = Training(args, config, group, store, step, loader, dev_loader, log, seed, position, best_wer)
    with StopSignals() as signals, BackgroundWriter() as writer:  # so that no signal ends a write
        training.work(signals, writer)
    stopped = training.stopped
    log.close()
    del step, training  # the wrapped model with them
    group.close()
    return 128 + stopped if stopped else 0


# ------------------------------------------------------------------------------------------------- the loop
class Training:
    """What the loop works on. `done` counts updates: epoch * updates_per_epoch + update."""

    def __init__(self, args, config, group, store, step, loader, dev_loader, log, seed, position, best_wer):
        self.args, self.config, self.group, self.store, self.log = args, config, group, store, log
        self.step, self.loader, self.dev_loader, self.seed = step, loader, dev_loader, seed
        self.per_epoch, self.global_batch = position.updates_per_epoch, position.global_batch_size
        self.done = self.saved_at = position.epoch * self.per_epoch + position.update
        self.best_wer, self.improved = best_wer, False  # whether the best rate is newer than its checkpoint
        self.stopped: signal.Signals | None = None
        self.window, self.epochs = Tally(), [Tally()]  # since the last log line; of each epoch of this job
        self.dev: tuple[int, dict[str, DevResult]] | None = None  # updates done, and the results then
        self.events = {}
        if group.is_root:
            subsets = ["train", "dev"] + (["dev_ema"] if step.run.ema else [])
            purge = self.done + 1 if self.done else None
            self.events = {name: EventWriter(Path(args.output_dir) / name, purge) for name in subsets}

    def work(self, signals: StopSignals, writer: BackgroundWriter) -> None:
        """All of a job. When another process is lost, the state of the last whole update is saved first."""
        try:
            with self.group.watching():
                self.run(signals, writer)
                self.finish(writer)
        except PeerLost:
            self.save(writer, due=True)
            raise

    def run(self, signals: StopSignals, writer: BackgroundWriter) -> None:
        """Updates until the epochs, or this job's share of them, are done, or a signal asks to stop.

        Raises UserError with a diagnosis when a guard says that the run has gone wrong (see runkit.guards).
        """
        args, per_epoch, group = self.args, self.per_epoch, self.group
        schedule = schedules.create_schedule(args.lr_policy, args.lr, args.min_lr, per_epoch, args.epochs,
                                             args.warmup_epochs, args.hold_epochs, args.lr_exp_gamma)  # fmt: skip
        norm_guard = guards.GradientNormGuard(args.explosion_factor, args.explosion_patience)
        start, end, began, stream = self.done, self.last_update(), time.monotonic(), None
        if start >= end:
            self.log.info(f"training was finished before: epoch {start // per_epoch} of {args.epochs}")
        while self.done < end and not self.stopped:
            epoch, update = divmod(self.done, per_epoch)
            if stream is None:
                stream = self.loader.epoch(epoch + 1, update)
            learning_rate = schedule(self.done + 1)
            lap = time.perf_counter()
            batches = itertools.islice(stream, len(self.step.shares))
            result = self.step(batches, learning_rate, self.done + 1, signals.requested)
            self.done += 1
            self.count(result, time.perf_counter() - lap)
            writer.poll()
            if verdict := self.step.run.loss_scale.verdict():
                self.save(writer, due=True)  # the weights are those of the last good update
                self.give_up(verdict, result)
            if verdict := norm_guard.verdict(result.gradient_norm):
                self.give_up(verdict, result)
            epoch_ends = self.done % per_epoch == 0
            if result.stop:
                self.stopped = signals.received or signal.SIGTERM
            last = self.done == end or self.stopped is not None
            if group.is_root and (self.done % args.log_frequency == 0 or self.done == start + 1 or last):
                self.report(result, learning_rate, (time.monotonic() - began) / (self.done - start) * (end - self.done))
            if group.is_root and args.prediction_frequency and self.done % args.prediction_frequency == 0:
                self.show_sample(result)
            if epoch_ends:
                stream.close()
                stream = None
                self.end_epoch()
            if (self.done % args.eval_frequency == 0 or last) and not self.stopped:
                self.evaluate()  # before saving, so that the checkpoint knows the best rate so far
            due = last or (epoch_ends and self.is_due(epoch + 1))
            due = due or (args.save_steps and self.done % args.save_steps == 0)
            self.save(writer, due and (last or not norm_guard.exploding))
        if stream is not None:
            stream.close()

    def give_up(self, verdict: str, result: UpdateResult) -> NoReturn:
        """Ends the run, on every process at once: the root with the whole diagnosis."""
        verdict = f"training diverged at update {self.done}: {verdict}"
        losses = [loss.item() for loss in result.losses]
        bad = [keys for loss, keys in zip(losses, result.keys, strict=True) if not math.isfinite(loss)]
        processes = self.group.gather_json(
            {
                "loss": guards.json_number(sum(losses) / max(len(losses), 1)),
                "passes": len(losses),
                "not finite": len(bad),
                "gradient norm of all": guards.json_number(result.gradient_norm),
                "batch": list(itertools.chain.from_iterable(bad or result.keys)),
            }
        )
        if processes is None:
            raise UserError(f"{verdict}; see the message of rank 0")
        saved = f"The state of update {self.saved_at} is saved" if self.saved_at else "Nothing was saved yet"
        remedy = ", or --precision bf16" if self.step.run.loss_scale.enabled else ""
        raise UserError(
            guards.diagnosis(
                verdict,
                processes,
                f"{saved}: go on with --resume and a lower --lr, more --warmup_epochs or --clip_norm 1{remedy}; if it "
                "happens at the very start, look at the audio of these utterances",
            )
        )

    def last_update(self) -> int:
        """The update this job ends with."""
        args, per_epoch = self.args, self.per_epoch
        end = args.epochs * per_epoch
        if args.epochs_this_job:
            end = min(end, (self.done // per_epoch + args.epochs_this_job) * per_epoch)
        if args.max_updates:
            end = min(end, self.done + args.max_updates)
        return end

    def is_due(self, epoch: int) -> bool:
        """Whether the end of an epoch is saved."""
        return epoch % self.args.save_frequency == 0 or epoch in self.args.keep_milestones

    def place(self) -> tuple[int, int, int]:
        """Epoch and update within it, both from 1, and updates an epoch: the step of a log line."""
        epoch, update = divmod(self.done - 1, self.per_epoch)
        return epoch + 1, update + 1, self.per_epoch

    # ------------------------------------------------------------------------------------------ reporting
    def count(self, result: UpdateResult, seconds: float) -> None:
        """Adds an update to the running totals."""
        if not result.applied:
            self.log.warning(
                f"update {self.done} skipped: loss {result.loss:g}, gradient norm {result.gradient_norm:g} (loss scale "
                f"now {self.step.run.loss_scale.scale:g})"
            )
        self.window.add(result, seconds)
        self.epochs[-1].add(result, seconds)

    def report(self, result: UpdateResult, learning_rate: float, seconds_left: float) -> None:
        """One line of the log and the console: means since the last one, errors of the last micro-batch."""
        hypotheses = greedy(result.log_probs, result.lengths, self.config.labels)
        values = {
            "loss": self.window.loss,
            "wer": percent(word_errors(result.batch.transcripts, hypotheses)),
            "throughput": self.window.throughput,
            "took": self.window.seconds / self.window.updates,
            "lrate": learning_rate,
            "gradient_norm": result.gradient_norm,
        }
        if self.step.run.loss_scale.enabled:
            values["loss_scale"] = self.step.run.loss_scale.scale
        self.record("train", values)
        epoch, update, updates = self.place()
        self.log.console(
            f"epoch {epoch:4}/{self.args.epochs} | iter {update:4}/{updates} | loss {values['loss']:7.2f} | "
            f"wer {values['wer']:6.2f} % | {values['throughput']:5.1f} utts/s | {values['took']:5.2f} s | "
            f"lr {learning_rate:.2e} | norm {result.gradient_norm:.2f} | ETA {duration(seconds_left)}"
        )
        self.window = Tally()

    def record(self, subset: str, values: dict[str, float], final: bool = False) -> None:
        """Values of train, dev or dev_ema at the present update, or as final results, to the log and TensorBoard."""
        step = () if final else self.place()
        self.log.log(step, {f"{subset}_{key}": value for key, value in values.items()}, echo=False)
        if subset in self.events and not final:
            self.events[subset].scalars(self.done, values)

    def show_sample(self, result: UpdateResult) -> None:
        """Hypothesis and reference of the first utterance of the last micro-batch, their beginnings."""
        (hypothesis,) = greedy(result.log_probs[:1], result.lengths[:1], self.config.labels)
        self.log.info(f"  hypothesis: {hypothesis[:SAMPLE_CHARACTERS]}")
        self.log.info(f"  reference:  {result.batch.transcripts[0][:SAMPLE_CHARACTERS]}")

    def end_epoch(self) -> None:
        """Closes the totals of an epoch."""
        tally = self.epochs[-1]
        values = {"throughput": tally.throughput, "took": tally.seconds, "loss": tally.loss}
        self.record("train_avg", values)
        self.log.console(
            f"epoch {self.place()[0]} done: loss {tally.loss:.2f}, {tally.throughput:.1f} utts/s, "
            f"{tally.audio_per_second:.0f} s of audio a second, took {duration(tally.seconds)}"
        )
        self.epochs.append(Tally())

    # ------------------------------------------------------------------------------------------ evaluating, saving
    def models(self) -> dict[str, nn.Module]:
        """What is evaluated, by the name in the log."""
        run = self.step.run
        return {"dev": run.model} | ({"dev_ema": run.ema.model} if run.ema else {})

    def evaluate(self) -> dict[str, "DevResult"]:
        """Scores the dev set, unless that was done after this very update; keeps the best model."""
        if self.dev is not None and self.dev[0] == self.done:
            return self.dev[1]
        began = time.monotonic()
        results = evaluate(self.models(), self.dev_loader, self.step.precision, self.group, self.config.labels)
        took = time.monotonic() - began
        for subset, result in results.items():
            values = {"loss": result.loss, "wer": percent(result.words), "took": took}
            self.record(subset, values | {"cer": percent(result.characters)})
            self.log.console(f"{subset:>7}: {describe(result)} ({duration(took)})")
        self.dev = self.done, results
        wer = percent(results.get("dev_ema", results["dev"]).words)
        if self.place()[0] >= self.args.save_best_from and wer < self.best_wer:
            self.best_wer, self.improved = wer, True
        return results

    def save(self, writer: BackgroundWriter, due: bool) -> None:
        """Has this update's checkpoint written in the background where it is due, and the best one where it is old."""
        best, self.improved = self.improved, False
        due = due and self.saved_at != self.done
        if self.args.no_save or not (due or best):
            return
        if due:
            self.saved_at = self.done
        if not self.group.is_root:
            return
        epoch, update = divmod(self.done, self.per_epoch)
        position = Position(epoch, update, self.per_epoch, self.global_batch)
        writer.wait()  # so that there are never two copies of the state in memory
        contents = self.step.run.contents(position, self.done, self.best_wer, self.seed, self.config.to_dict())

        def write() -> list[str]:
            saved = [f"{self.store.save_best(contents)} (WER {contents['best_wer']:.2f} %)"] if best else []
            return saved + ([str(self.store.save(contents))] if due else [])

        writer.submit(write, lambda saved: [self.log.info(f"saved {path}") for path in saved])

    def finish(self, writer: BackgroundWriter) -> None:
        """Final evaluation, throughput, curves and summary; after a signal only the curves."""
        if self.stopped:
            self.log.info(f"stopped by {self.stopped.name} after update {self.done}; go on with --resume")
        else:
            results = self.evaluate()
            self.save(writer, due=False)
            tally = Tally.total([tally for tally in self.epochs if tally.updates][-self.args.benchmark_epochs_num :])
            self.close_log(results, tally)
        writer.wait()
        for events in self.events.values():
            events.close()
        if self.group.is_root:
            draw_curves(log_path(self.args), Path(self.args.output_dir))
            if self.args.report:
                try_report(self.args.output_dir, self.log)

    def close_log(self, results: dict[str, "DevResult"], tally: "Tally") -> None:
        """The final figures: throughput over the last epochs of this job, the dev set, and the summary."""
        epochs = min(self.args.benchmark_epochs_num, len([tally for tally in self.epochs if tally.updates]))
        if tally.updates:
            values = {"throughput": tally.throughput, "benchmark_epochs_num": epochs, "loss": tally.loss}
            self.record("train_avg", values, final=True)
        for subset, result in results.items():
            self.record(subset, {"loss": result.loss, "wer": percent(result.words)}, final=True)
        if tally.updates:
            rates = f"{tally.throughput:.1f} utts/s, {tally.audio_per_second:.0f} s of audio a second"
            self.log.console(f"throughput over the last {epochs} epochs: {rates}")
        if self.group.is_root:
            write_json(Path(self.args.output_dir) / "summary.json", self.summary(results, tally))

    def summary(self, results: dict[str, "DevResult"], tally: "Tally") -> dict:
        """Rates in percent; error counts are those of the raw model."""
        dev, averaged = results["dev"], results.get("dev_ema")
        run = self.step.run
        return {
            "wer": percent(dev.words),
            "cer": percent(dev.characters),
            "wer_ema": percent(averaged.words) if averaged else None,
            "cer_ema": percent(averaged.characters) if averaged else None,
            "insertions": dev.words.insertions,
            "deletions": dev.words.deletions,
            "substitutions": dev.words.substitutions,
            "reference_words": dev.words.reference_units,
            "utterances": dev.utterances,
            "parameters": sum(p.numel() for p in run.model.parameters()),
            "train_audio_seconds_per_second": tally.audio_per_second,
            "train_utterances_per_second": tally.throughput,
            "train_loss": tally.loss,
            "dev_loss": dev.loss,
            "best_wer": self.best_wer if math.isfinite(self.best_wer) else None,
            "epochs": self.done // self.per_epoch,
            "updates": self.done,
            "skipped_updates": run.loss_scale.skipped_updates,
            "processes": self.group.size,
            "precision": self.step.precision.name,
        }


@dataclasses.dataclass
class Tally:
    """Totals over updates. seconds: from asking for the data to the weights' update, evaluations and saves left out."""

    updates: int = 0
    utterances: int = 0
    audio_seconds: float = 0.0
    seconds: float = 0.0
    losses: float = 0.0  # sum over applied updates
    applied: int = 0

    def add(self, result: UpdateResult, seconds: float) -> None:
        """Adds an update that took `seconds`."""
        self.updates += 1
        self.utterances += result.utterances
        self.audio_seconds += result.seconds
        self.seconds += seconds
        if result.applied:
            self.losses += result.loss
            self.applied += 1

    @classmethod
    def total(cls, tallies: Iterable["Tally"]) -> "Tally":
        """The sum of several."""
        return cls(*(sum(values) for values in zip(*map(dataclasses.astuple, [cls(), *tallies]), strict=True)))

    @property
    def throughput(self) -> float:
        """Utterances a second, over all processes."""
        return self.utterances / self.seconds if self.seconds else 0.0

    @property
    def audio_per_second(self) -> float:
        """Seconds of audio a second, over all processes."""
        return self.audio_seconds / self.seconds if self.seconds else 0.0

    @property
    def loss(self) -> float:
        """Mean over applied updates."""
        return self.losses / self.applied if self.applied else math.nan


# ------------------------------------------------------------------------------------------------ evaluation
class DevResult(NamedTuple):
    """How a model does on the dev set, every utterance once. loss: mean over utterances."""

    loss: float
    words: ErrorCounts
    characters: ErrorCounts
    utterances: int


@torch.no_grad()
def evaluate(models: Mapping[str, nn.Module], loader, precision, group, labels) -> dict[str, DevResult]:
    """Greedy transcripts of several models in one pass over the data, counted over all processes."""
    forms = [evaluation_form(model, precision, group.device) for model in models.values()]
    losses = torch.zeros(len(models), dtype=torch.float64, device=group.device)
    errors = [(ErrorCounts(), ErrorCounts()) for _ in models]  # words, characters
    utterances = 0
    show = Progress(sum(map(len, loader.plan)), "evaluating", "utterances") if group.is_root else nullcontext()
    with show as bar:
        for batch in loader:
            utterances += len(batch.keys)
            for i, forward in enumerate(forms):
                log_probs, lengths = forward(batch.features, batch.feature_lengths)
                losses[i] += ctc_loss(log_probs, lengths, batch.targets, batch.target_lengths) * len(batch.keys)
                hypotheses = greedy(log_probs, lengths, labels)
                words, characters = errors[i]
                errors[i] = (
                    words + word_errors(batch.transcripts, hypotheses),
                    characters + character_errors(batch.transcripts, hypotheses),
                )
            if bar is not None:
                bar.update(len(batch.keys))
    losses = group.all_reduce_sum(losses).tolist()
    counts = torch.tensor([[utterances, *words, *characters] for words, characters in errors], device=group.device)
    results = {}
    for name, loss, (utterances, *numbers) in zip(models, losses, group.all_reduce_sum(counts).tolist(), strict=True):
        half = len(numbers) // 2
        results[name] = DevResult(
            loss / max(utterances, 1), ErrorCounts(*numbers[:half]), ErrorCounts(*numbers[half:]), utterances
        )
    return results


def describe(result: DevResult) -> str:
    """A result as one line."""
    words = result.words
    counts = f"{words.insertions} insertions, {words.deletions} deletions, {words.substitutions} substitutions"
    words_text = f"WER {percent(words):.2f} % ({counts} in {words.reference_units} words)"
    return f"loss {result.loss:.2f}, {words_text}, CER {percent(result.characters):.2f} %"


def percent(errors: ErrorCounts) -> float:
    """The error rate in percent."""
    return 100 * errors.wer


# -------------------------------------------------------------------------------------------------- data
def open_manifests(paths: list[str], config: Config, args: argparse.Namespace, train: bool, log: RunLog) -> list:
    """The utterances of manifests that can be read and used; what is left out is named in the log."""
    utterances = [utterance for path in paths for utterance in read_manifest(path, args.dataset_dir)]
    utterances, files = check_files(utterances)
    utterances, filtered = filter_utterances(utterances, config, train=train)
    for line in files.lines():
        log.warning(line)
    for line in filtered.lines():
        log.info(f"{'training' if train else 'dev'}: {line}")
    return utterances


def warn_of(utterance: Utterance, error: UserError) -> None:
    """For dev files that turn out to be damaged: left out of the figures, as they must not end days of training."""
    warnings.warn(f"{error}; left out of the evaluation", stacklevel=2)


# -------------------------------------------------------------------------------------------------- set-up
def check_arguments(args: argparse.Namespace) -> None:
    """What can be refused before anything is opened; turns Jasper's --batch_size into QuartzNet's --gpu_batch_size."""
    if args.grad_accumulation < 1:
        raise UserError(f"--grad_accumulation is {args.grad_accumulation}; it must be 1 or more")
    if args.batch_size is not None:
        if args.batch_size % args.grad_accumulation:
            raise UserError(
                f"--batch_size {args.batch_size} is split into --grad_accumulation {args.grad_accumulation} passes, "
                "which must divide it"
            )
        args.gpu_batch_size = args.batch_size // args.grad_accumulation
    positive = ("epochs", "save_frequency", "eval_frequency", "log_frequency", "benchmark_epochs_num")
    for name in (*positive, "gpu_batch_size"):
        if getattr(args, name) < 1:
            raise UserError(f"--{name} is {getattr(args, name)}; it must be 1 or more")
    for name in ("epochs_this_job", "max_updates", "save_steps", "prediction_frequency", "clip_norm", "consistency"):
        if getattr(args, name) < 0:
            raise UserError(f"--{name} is {getattr(args, name)}; it must be 0 (off) or more")
    if args.keep_newest < 2:
        raise UserError(f"--keep_newest is {args.keep_newest}; it must be 2 or more, in case the newest one is damaged")
    if not 1 <= args.consistency_mask_ratio <= 100:
        raise UserError(f"--consistency_mask_ratio is {args.consistency_mask_ratio}; it must be from 1 to 100")
    if args.freeze_encoder < -1:
        raise UserError(f"--freeze_encoder is {args.freeze_encoder}; it must be 0 (off) or more, or -1 (all updates)")
    if args.copy_label_rows and not args.init_ckpt:
        raise UserError("--copy_label_rows needs --init_ckpt, whose rows it copies")
    if args.init_ckpt and args.ckpt:
        raise UserError("--ckpt (go on with everything) and --init_ckpt (weights only) exclude each other")


def overrides(args: argparse.Namespace) -> list[str]:
    """Changes of the YAML file, --normalizer among them."""
    value = NORMALIZERS.get(args.normalizer)
    sections = ("input_train", "input_val") if value else ()
    return [*args.override_config, *(f"{section}.audio_dataset.normalize_transcripts={value}" for section in sections)]


def read_config(args: argparse.Namespace) -> Config:
    """The YAML file, changed by --override_config, --normalizer and --labels."""
    config = load_config(args.model_config, overrides(args))
    if not args.labels:
        return config
    try:
        return dataclasses.replace(config, labels=read_labels(args.labels))
    except ValueError as error:
        raise UserError(f"{args.labels}: {error}") from error


def masked_for_views(config: Config, ratio: float) -> Config:
    """The configuration of --consistency: `ratio` times the time masks. Raises UserError where nothing would tell two
    views of an utterance apart."""
    if config.input_train is None:
        return config  # the loader says so
    features = enlarge_time_masks(config.input_train.features, ratio)
    cutout, dropout = features.cutout_augment, any(block.dropout for block in config.encoder.blocks)
    if not (features.spec_augment or cutout or dropout):
        raise UserError(
            "--consistency compares two views of an utterance, which are the same without masks and dropout: set "
            "input_train.filterbank_features.spec_augment"
        )
    return dataclasses.replace(config, input_train=dataclasses.replace(config.input_train, features=features))


def log_path(args: argparse.Namespace) -> Path:
    return Path(args.log_file or Path(args.output_dir) / "nvlog.json")


def open_log(args: argparse.Namespace, rank: int, resumed: bool) -> RunLog:
    """The run's log, with the units of what it will hold; a resumed run goes on in the same file."""
    log = RunLog(log_path(args), rank, append=resumed)
    for subset in ("train", "train_avg", "dev", "dev_ema"):
        log.metadata(f"{subset}_loss", unit="nat", format=":7.2f", STAGE=subset.upper())
        log.metadata(f"{subset}_wer", unit="%", format=":6.2f", STAGE=subset.upper())
        log.metadata(f"{subset}_cer", unit="%", format=":6.2f", STAGE=subset.upper())
        log.metadata(f"{subset}_throughput", unit="utts/s", format=":5.0f", STAGE=subset.upper())
        log.metadata(f"{subset}_took", unit="s", format=":5.2f", STAGE=subset.upper())
    log.metadata("train_lrate", format=":.2e", STAGE="TRAIN")
    return log


def continues_job(output_dir: Path) -> bool:
    """Whether this process goes on with a run that its own launcher started: torchrun starts all processes again when
    one has failed, and when machines come or go."""
    if distributed.restarted():
        return True
    path, job = output_dir / RUN_CONFIG, distributed.job_name()
    return job is not None and path.is_file() and read_json(path).get("job") == job


def find_checkpoint(args, resuming: bool, store: Checkpoints, group, log: RunLog) -> tuple[dict | None, Path | None]:
    """The state to go on from and its file: this folder's newest when resuming, else --ckpt's, else none."""
    if resuming:
        found = store.newest_valid(log.warning) if group.is_root else None
        source = Path(group.broadcast_json(found and str(found[0])))  # one file for all processes
        return found[1] if found else checkpoint.read(source), source
    if args.ckpt:
        return checkpoint.read(args.ckpt), Path(args.ckpt)
    return None, None


def check_labels(saved: dict, source: Path, config: Config) -> None:
    """Raises UserError where the state to go on from was trained on other labels, perhaps as many."""
    labels = tuple(saved.get("labels", config.labels))
    if labels != config.labels:
        raise UserError(
            f"{source} was trained on other labels ({len(labels)}) than those of --labels or the YAML file "
            f"({len(config.labels)}): go on with the ones it has, or start another run"
        )


def choose_global_batch(args: argparse.Namespace, saved: dict | None, group) -> int:
    """Utterances of an update: --global_batch_size, else those of the run that goes on, else what the flags give.

    Raises UserError where passes of --gpu_batch_size cannot make it up.
    """
    passes = args.gpu_batch_size * args.grad_accumulation
    kept = saved["position"]["global_batch_size"] if saved is not None and "position" in saved else None
    size = args.global_batch_size or kept or passes * group.size
    if size % passes:
        raise UserError(
            f"the global batch of {size} utterances is no multiple of --gpu_batch_size {args.gpu_batch_size} x "
            f"--grad_accumulation {args.grad_accumulation}: change these, or --global_batch_size"
        )
    return size


def choose_seed(args: argparse.Namespace, saved: dict | None, source: Path | None, group) -> int:
    """The seed of the run that goes on, else --seed, else one drawn for all processes."""
    if saved is not None and "seed" in saved:
        if args.seed not in (None, saved["seed"]):
            raise UserError(
                f"{source} was trained with --seed {saved['seed']}, not {args.seed}: give that seed to go on, or start "
                "another run from its weights with --init_ckpt"
            )
        return saved["seed"]
    return group.broadcast_json(secrets.randbelow(2**31)) if args.seed is None else args.seed


def resume_position(saved: dict, source: Path, fresh: Position, log: RunLog) -> Position:
    """Where to go on. fresh: of this job at its start. Raises UserError where it cannot be exact in mid-epoch."""
    if "position" not in saved:  # a published checkpoint
        return dataclasses.replace(fresh, epoch=int(saved["epoch"]))
    position = Position(**saved["position"])
    changes = [
        f"{name} was {old}, is {new}"
        for name, old, new in (
            ("utterances an update", position.global_batch_size, fresh.global_batch_size),
            ("updates an epoch", position.updates_per_epoch, fresh.updates_per_epoch),
        )
        if old != new
    ]
    if changes and position.update:
        raise UserError(
            f"{source} was saved in mid-epoch, where the data must stay the same ({'; '.join(changes)}): go on with "
            "the same manifests and global batch, or from the end of an epoch with --ckpt"
        )
    for change in changes:
        log.warning(f"{change}: the learning rate counts in these")
    return dataclasses.replace(fresh, epoch=position.epoch, update=position.update)


def start_weights(run: Run, path: str, labels: Sequence[str], copy_label_rows: bool, log: RunLog) -> None:
    """Weights to start from: the moving average where the checkpoint has one. The decoder stays as drawn where the
    checkpoint has other labels (one that names none is taken to have these), but for the rows asked for."""
    contents = checkpoint.read(path)
    kind = "state_dict" if contents.get("ema_state_dict") is None else "ema_state_dict"
    weights = checkpoint.present_names(contents[kind])
    before = contents.get("labels", labels)
    if list(before) != list(labels):
        drawn = {name: run.model.state_dict()[name] for name in decoder_names(run.model)}
        weights, copied = relabelled(weights, drawn, before, labels if copy_label_rows else [])
        rows = f"rows of {copied} labels and the blank copied" if copy_label_rows else "drawn anew"
        log.warning(
            f"{path} has the {len(before)} labels {''.join(before)!r}, this run the {len(labels)} labels "
            f"{''.join(labels)!r}: decoder {rows}"
        )
    checkpoint.load_weights(run.model, weights, path)
    if run.ema:
        checkpoint.load_weights(run.ema.model, weights, path)
    log.info(f"starting from the weights ({kind}) of {path}")


def decoder_names(model: nn.Module) -> list[str]:
    """Names of the decoder's parameters."""
    return [name for name, _ in model.named_parameters() if name.startswith("decoder.")]


def relabelled(
    weights: Mapping[str, Tensor], drawn: Mapping[str, Tensor], before: Sequence[str], copied: Sequence[str]
) -> tuple[dict[str, Tensor], int]:
    """`weights` with the decoder `drawn` (tensors whose first axis is the labels and the blank, which is last) in place
    of its own, whose labels are `before`; and how many rows it keeps: those of the labels in `copied`, the new ones,
    and then the blank's too."""
    old = {label: row for row, label in enumerate(before)}
    rows = [(row, old[label]) for row, label in enumerate(copied) if label in old]
    made = {name: tensor.detach().clone() for name, tensor in drawn.items()}
    for name, tensor in made.items() if copied else ():
        if name in weights and len(weights[name]) == len(before) + 1 and weights[name].shape[1:] == tensor.shape[1:]:
            for new, row in (*rows, (-1, -1)):
                tensor[new] = weights[name][row]
    return {**weights, **made}, len(rows)


def frozen_parameters(model: nn.Module, encoder_updates: int, batch_norm: bool) -> list[tuple[nn.Parameter, float]]:
    """Parameters that do not learn, each with the last update in which it does not (infinity: never)."""
    until = math.inf if encoder_updates < 0 else encoder_updates
    frozen = {p: until for name, p in model.named_parameters() if until and not name.startswith("decoder.")}
    if batch_norm:
        frozen |= {p: math.inf for layer in batch_norms(model) for p in layer.parameters()}
    return list(frozen.items())


def pre_allocate_all(step: TrainingStep, batch_size: int, bounds: list[int], config: Config, log: RunLog) -> None:
    """Runs every length of --pre_allocate_range once."""
    align = config.input_train.features.pad_align
    counts = range(bounds[0], bounds[1] + 1, align)
    began = time.monotonic()
    pre_allocate(step, batch_size, counts, config.input_train.features.n_filt, config.n_classes)
    seconds = time.monotonic() - began
    log.info(f"pre-allocation: {len(counts)} lengths of {bounds[0]} to {bounds[1]} frames in {seconds:.1f} s")


def resolved_settings(args, config, group, precision, loader, seed, model) -> dict:
    """Every flag and what was derived from them, as saved with the run."""
    derived = {
        "seed": seed,
        "processes": group.size,
        "device": str(group.device),
        "precision": precision.name,
        "job": distributed.job_name(),
        "global_batch_size": loader.update_size,
        "updates_per_epoch": loader.updates_per_epoch,
        "parameters": sum(p.numel() for p in model.parameters()),
        "config": config.to_dict(),
        "machine": machine.describe(["torch", "numpy", "soundfile", "soxr"]),
    }
    return vars(args) | derived


# -------------------------------------------------------------------------------------------------- curves
def draw_curves(log_file: Path, output_dir: Path) -> None:
    """loss_curve.png and wer_curve.png from the run's log, so that they show what earlier jobs did too."""
    names = {"train": "train", "dev": "dev", "dev_ema": "dev, EMA weights"}
    for metric, unit in (("loss", "loss (nats an utterance)"), ("wer", "word error rate (%)")):
        series: dict[str, dict[float, float]] = {}
        for record in read_log(log_file):
            if record["type"] != "LOG" or not isinstance(record["step"], list) or len(record["step"]) != 3:
                continue
            epoch, update, updates = record["step"]
            for subset, name in names.items():
                value = record["data"].get(f"{subset}_{metric}")
                if value is not None:  # what was done again after a resume takes the place of what was before
                    series.setdefault(name, {})[epoch - 1 + update / updates] = value
        if series:
            points = {name: tuple(zip(*sorted(values.items()), strict=True)) for name, values in series.items()}
            line_plot(output_dir / f"{metric}_curve.png", points, "epoch", unit, "Training")


if __name__ == "__main__":
    run_main(main)
