"""Transcribes audio with a trained model: scores manifests, prints the text of any audio files, or measures speed.

    python -m jasper_pt.run_inference --ckpt CKPT --dataset_dir DATA --val_manifests DATA/dev.json --output_dir OUT
    python -m jasper_pt.run_inference --ckpt CKPT --transcribe_wav speech.flac
    python -m jasper_pt.run_inference --ckpt CKPT --transcribe_filelist FOLDER more.mp3 list.txt
    python -m jasper_pt.run_inference --ckpt CKPT --dataset_dir DATA --val_manifests DATA/dev.json --steps 500

A file that cannot be read is named and the others are still done; the exit code is then 3. Written to output_dir:
nvlog_infer.json (DLLogger lines), from manifests summary_infer.json and utterances.tsv (errors of each utterance), and
transcripts/ (--output_format: text, words with times, subtitles).
Several processes (torchrun) share the work. Flags: --help.
"""

import argparse
import collections
import contextlib
import dataclasses
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

if __package__ in (None, ""):  # started by path: python jasper_pt/run_inference.py
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import Tensor, nn

from jasper_pt import checkpoint, distributed, nemo
from jasper_pt.audio import UNREADABLE, audio_info, list_audio
from jasper_pt.config import Config, load_config, parse_config
from jasper_pt.decoder_options import add_flags, choose_decoder
from jasper_pt.evaluation import Forward, evaluation_form, loader_types
from jasper_pt.loader import AsrBatch, filter_utterances
from jasper_pt.manifest import Utterance, read_manifest
from jasper_pt.metrics import ErrorCounts, character_errors, word_errors
from jasper_pt.model import build_model
from jasper_pt.precision import PRECISIONS, choose_precision
from jasper_pt.streaming import Decoder
from jasper_pt.text import decode, read_labels, transcript_rules
from jasper_pt.transcript import WRITERS, Tokens, Transcript, output_names, save_transcript, transcript_of
from runkit import machine
from runkit.errors import UserError, run_main
from runkit.files import atomic_open, write_json
from runkit.log import RunLog
from runkit.meters import latency_summary
from runkit.progress import Progress


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The published flags of both recipes with their defaults; those added here say so. Unknown ones are refused."""
    parser = argparse.ArgumentParser(prog="run_inference", description=__doc__.split("\n\n")[0])
    switch = {"action": argparse.BooleanOptionalAction}
    flag = parser.add_argument
    flag("--batch_size", type=int, default=16, help="utterances a batch on each process")
    flag("--steps", type=int, default=0, help="measure speed: time so many batches; 0: off")
    flag("--warmup_steps", type=int, default=0, help="batches before those, not timed")
    flag("--model_config", help="YAML file; default: what the checkpoint was saved with")
    flag("--dataset_dir", help="folder that audio paths in the manifests start from")
    flag("--val_manifests", nargs="+", help="manifests to transcribe and to score")
    flag("--ckpt", help="checkpoint or .nemo archive; without one the weights are random (for measuring speed)")
    flag("--ema", action="store_true", help="the moving average of the weights")
    flag("--amp", "--fp16", action="store_true", help="half precision: fp16 on a GPU, bf16 on a CPU")
    flag("--precision", choices=tuple(PRECISIONS), help="wins over --amp; default tf32 (GPU) or fp32 (CPU) (added)")
    flag("--cudnn_benchmark", **switch, default=False, help="let cuDNN time its algorithms for each shape")
    flag("--cpu", action="store_true", help="leave GPUs alone")
    flag("--seed", type=int, default=0, help="of random weights, without --ckpt")
    flag("--local_rank", "--local-rank", type=int, help="index of this process's GPU; default $LOCAL_RANK or 0")
    flag("--dali_device", choices=("none", "cpu", "gpu"), default="none", help="features of manifests through DALI")
    flag("--num_workers", type=int, help="threads that read audio; default: by the machine (added)")
    flag("--pad_leading", type=int, default=0, help="zero frames put before each utterance (Jasper's scripts: 16)")
    flag("--save_predictions", metavar="FILE", help="hypotheses, one a line, in order; with names in FILE.tsv")
    flag("--save_logits", metavar="FILE", help="log-probabilities by utterance (safetensors)")
    flag("--transcribe_wav", metavar="FILE", help="one audio file of any format and rate")
    flag("--transcribe_filelist", metavar="PATH", nargs="+", help="audio files, folders, text files of one path a line")
    flag("--labels", metavar="FILE", help="one label a line, in order, instead of the configuration's (added)")
    flag(
        "--output_format",
        nargs="+",
        choices=tuple(WRITERS),
        default=[],
        help="files of each utterance, with times (added)",
    )
    flag("--times", action="store_true", help="start, end and confidence of each word on the console (added)")
    flag("-o", "--output_dir", default="results/", help="log, per-utterance report, summary")
    flag("--log_file", help="DLLogger JSON lines; default <output_dir>/nvlog_infer.json")
    flag("--override_config", action="append", default=[], metavar="PATH=VALUE", help="changes the configuration")
    add_flags(parser)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Does what the flags ask for; returns the exit code. Raises UserError for anything a user can fix."""
    args = parse_arguments(argv)
    check_arguments(args)

    group = distributed.init(args.cpu, args.local_rank)
    with group.watching():
        return infer(args, group)


def infer(args: argparse.Namespace, group: distributed.Distributed) -> int:
    """The job on this process; returns the exit code."""
    # ------------------------------------------------------------------------------ model
    precision = choose_precision(args.precision, args.amp, group.device)
    precision.activate()
    torch.backends.cudnn.benchmark = args.cudnn_benchmark
    log = open_log(args, group.rank)
    contents = checkpoint.read(args.ckpt) if args.ckpt else None
    config = choose_config(args, contents)
    read_tokens = choose_decoder(args, config.labels)
    model = load_model(args, config, contents, log).to(group.device)
    recognise = recogniser(evaluation_form(model, precision, group.device), args.pad_leading)

    # ------------------------------------------------------------------------------ utterances
    if args.transcribe_wav or args.transcribe_filelist:
        files = [Path(args.transcribe_wav)] if args.transcribe_wav else list_audio(args.transcribe_filelist)
        utterances, failures = from_files(files)
    else:
        utterances, failures = open_manifests(args, config, log), []
    settings = {"processes": group.size, "device": str(group.device), "precision": precision.name}
    settings |= {"config": config.to_dict(), "machine": machine.describe(["torch", "numpy", "soundfile", "soxr"])}
    log.parameters(vars(args) | settings)

    # ------------------------------------------------------------------------------ measure, or transcribe and report
    if args.steps:
        measure(args, config, utterances, recognise, read_tokens, group, log)
        log.close()
        group.close()
        return 0
    texts, times, logits, unreadable = transcribe(args, config, utterances, recognise, read_tokens, group)
    if group.is_root:
        failures += unreadable
        for message in failures:
            log.warning(message)
        if args.val_manifests:
            report_errors(args, config, utterances, texts, log)
        else:
            keys = [utterance.key for utterance in utterances]
            print_texts(args, files, *(dict(zip(keys, each, strict=True)) for each in (texts, times)), log)
        if args.save_logits:
            save_logits(Path(args.save_logits), utterances, logits, config.labels)
        if failures:
            log.warning(f"{len(failures)} audio files could not be read, see above")
    log.close()
    group.close()
    return UNREADABLE if failures else 0


# ---------------------------------------------------------------------------------------------------- the model
def recogniser(forward: Forward, pad_leading: int) -> Callable[[AsrBatch], tuple[Tensor, Tensor]]:
    """From a batch to log_probs [B,T',V] and lengths [B]; pad_leading: zero frames put before each utterance, which are
    then part of it."""

    def recognise(batch: AsrBatch) -> tuple[Tensor, Tensor]:
        features = nn.functional.pad(batch.features, (pad_leading, 0)) if pad_leading else batch.features
        return forward(features, batch.feature_lengths + pad_leading)

    return recognise


def choose_config(args: argparse.Namespace, contents: dict[str, Any] | None) -> Config:
    """--model_config, else what the checkpoint was saved with (a NeMo archive's in any case, as published); changed by
    --labels and --override_config."""
    if args.model_config and not (args.ckpt and nemo.is_archive(args.ckpt)):
        config = load_config(args.model_config, args.override_config)
    elif contents is not None and "config" in contents:
        config = parse_config(contents["config"], f"configuration in {args.ckpt}", args.override_config)
    else:
        what = f"{args.ckpt} holds no configuration" if args.ckpt else "without --ckpt there is no configuration"
        raise UserError(f"{what}: give --model_config")
    labels = read_labels(args.labels) if args.labels else config.labels
    trained = tuple((contents or {}).get("labels", labels))
    if trained != labels:
        raise UserError(
            f"{args.ckpt} was trained on other labels than {args.labels or args.model_config} has: "
            f"{''.join(trained)!r}, not {''.join(labels)!r}"
        )
    return dataclasses.replace(config, labels=labels)


def load_model(args: argparse.Namespace, config: Config, contents: dict[str, Any] | None, log: RunLog) -> nn.Module:
    """The model in evaluation mode, with the weights asked for."""
    torch.manual_seed(args.seed)
    model = build_model(config, config.n_classes).eval()
    if contents is None:
        log.warning(f"no --ckpt: the weights are random (seed {args.seed})")
        return model
    weights = contents["state_dict"]
    if args.ema:
        average = contents.get("ema_state_dict")
        if average is None:
            log.warning(f"--ema: {args.ckpt} holds no EMA weights; its raw weights are used")
        weights = average or weights
    checkpoint.load_weights(model, weights, args.ckpt)
    return model


# ------------------------------------------------------------------------------------------------- transcription
def transcribe(
    args, config, utterances, recognise, read_tokens: Decoder, group
) -> tuple[list[str | None], list[str], dict[int, Tensor], list[str]]:
    """On the root: texts in the order of the utterances (None: not readable), their words with times (if --times), the
    log-probabilities by index if --save_logits asks for them, and what is wrong with files that cannot be read; nothing
    elsewhere.

    Every utterance is done once, by one of the processes, which also writes the files that --output_format asks for.
    """
    unreadable: list[str] = []
    texts: list[tuple[int, str, str]] = []  # index, text, words with times
    logits: dict[int, Tensor] = {}
    names = output_names([utterance.key for utterance in utterances])
    loader = make_loader(
        args, config, utterances, group.device, group.rank, group.size, lambda _, error: unreadable.append(str(error))
    )
    # The root's own share; the others go at the same speed.
    total = sum(map(len, loader.plan))
    show = Progress(total, "transcribing", "utterances") if group.is_root else contextlib.nullcontext()
    with show as bar:
        for batch in loader:
            log_probs, lengths = recognise(batch)
            for row, (index, tokens) in enumerate(zip(batch.indices, read_tokens(log_probs, lengths), strict=True)):
                times = ""
                if args.output_format or args.times:
                    transcript = timed(args, config, batch, row, tokens)
                    save_transcript(transcript, Path(args.output_dir, "transcripts"), names[index], args.output_format)
                    times = word_lines(transcript) if args.times else ""
                texts.append((index, decode(tokens.ids, config.labels), times))
            if args.save_logits:
                for index, rows, length in zip(batch.indices, log_probs, lengths.tolist(), strict=True):
                    logits[index] = rows[:length].float().cpu().clone()
            if bar is not None:
                bar.update(len(batch.keys))
    gathered = group.gather_json([texts, unreadable])
    if gathered is None:
        return [], [], {}, []
    ordered: list[str | None] = [None] * len(utterances)
    lines = [""] * len(utterances)
    for index, text, times in itertools.chain.from_iterable(texts for texts, _ in gathered):
        ordered[index], lines[index] = text, times
    return ordered, lines, logits, [message for _, messages in gathered for message in messages]


def timed(args: argparse.Namespace, config: Config, batch: AsrBatch, row: int, tokens: Tokens) -> Transcript:
    """The transcript of one utterance of a batch, in seconds of its audio."""
    features = config.input_val.features
    first_frame = batch.starts[row] - args.pad_leading * features.hop_length / features.sample_rate
    return transcript_of(
        tokens, config.labels, config.frame_seconds, batch.durations[row], batch.keys[row], first_frame
    )


def word_lines(transcript: Transcript) -> str:
    """A line a word: start and end (s), confidence, word."""
    return "".join(
        f"\n{word.start:9.2f} {word.end:9.2f} {word.confidence:6.3f}  {word.text}" for word in transcript.words
    )


def make_loader(args, config, utterances, device, rank=0, size=1, on_error=None):
    """Batches of similar duration; on_error as for EvalLoader. Under DALI an unreadable file ends the run."""
    dali_device = args.dali_device if args.val_manifests else "none"
    _, eval_loader = loader_types(dali_device)
    on_error = on_error if dali_device == "none" else None
    return eval_loader(
        utterances, config, args.batch_size, rank, size, args.num_workers, device=device, on_error=on_error
    )


# ------------------------------------------------------------------------------------------------------ utterances
def open_manifests(args: argparse.Namespace, config: Config, log: RunLog) -> list[Utterance]:
    """The utterances to score, all of them unless the configuration limits durations or their number."""
    utterances = [utterance for path in args.val_manifests for utterance in read_manifest(path, args.dataset_dir)]
    utterances, report = filter_utterances(utterances, config, train=False)
    for line in report.lines():
        log.info(line)
    return utterances


def from_files(files: Sequence[Path]) -> tuple[list[Utterance], list[str]]:
    """Utterances without words, and what is wrong with files whose header cannot be read."""
    utterances, failures = [], []
    for path in files:
        try:
            info = audio_info(path)
        except UserError as error:
            failures.append(str(error))
            continue
        parts = ((path, 1.0, info.duration),)
        utterances.append(Utterance(path, "", info.duration, info.sample_rate, 0.0, parts, str(path)))
    return utterances, failures


# ---------------------------------------------------------------------------------------------------------- results
def report_errors(args, config, utterances, texts, log) -> None:
    """Writes error rates over all utterances that could be read, the errors of each, and the predictions."""
    rules = transcript_rules(config.input_val.audio.normalize_transcripts, config.labels)
    references = [rules(utterance.transcript, config.labels) for utterance in utterances]
    rows = [row for row in zip(utterances, references, texts, strict=True) if row[2] is not None]
    if not rows:
        raise UserError("none of the audio files could be read, see above")
    words, characters = ErrorCounts(), ErrorCounts()
    lines = ["key\tduration\twer\tsubstitutions\tinsertions\tdeletions\twords\treference\thypothesis"]
    for utterance, reference, text in rows:
        errors = word_errors([reference], [text])
        words += errors
        characters += character_errors([reference], [text])
        rate = f"{100 * errors.wer:.2f}" if errors.reference_units else ""
        counts = (errors.substitutions, errors.insertions, errors.deletions, errors.reference_units)
        lines.append("\t".join(map(str, (utterance.key, f"{utterance.duration:.3f}", rate, *counts, reference, text))))
    if not words.reference_units:
        log.warning("there is no reference word in the whole set: its word error rate is the number of insertions")
    output_dir = Path(args.output_dir)
    write_lines(output_dir / "utterances.tsv", lines)
    if args.save_predictions:
        save_predictions(Path(args.save_predictions), [utterance.key for utterance in utterances], texts)
    summary = {
        "wer": 100 * words.wer,
        "cer": 100 * characters.wer,
        "insertions": words.insertions,
        "deletions": words.deletions,
        "substitutions": words.substitutions,
        "reference_words": words.reference_units,
        "utterances": len(rows),
        "unreadable": len(utterances) - len(rows),
        "ema": args.ema,
    }
    log.log((), {f"eval_{key}": value for key, value in summary.items()}, echo=False)
    log.console(
        f"WER {summary['wer']:.2f} % ({words.insertions} insertions, {words.deletions} deletions, "
        f"{words.substitutions} substitutions in {words.reference_units} words), CER {summary['cer']:.2f} %, "
        f"{len(rows)} utterances"
    )
    write_json(output_dir / "summary_infer.json", summary)


def print_texts(args, files, texts, times, log) -> None:
    """What was said in each file, in the order given, and with --times when."""
    for path in files:
        text = texts.get(str(path))
        if text is not None:
            log.console((f"Prediction   1: {text}" if args.transcribe_wav else f"{path}\t{text}") + times[str(path)])
    if args.save_predictions:
        save_predictions(Path(args.save_predictions), list(map(str, files)), [texts.get(str(path)) for path in files])


def save_predictions(path: Path, names: Sequence[str], texts: Sequence[str | None]) -> None:
    """The published form, one hypothesis a line without a line end behind the last, empty where a file could not be
    read; and beside it <path>.tsv with the name of each."""
    texts = [text or "" for text in texts]
    with atomic_open(path, "w") as stream:
        stream.write("\n".join(texts))
    write_lines(path.with_name(path.name + ".tsv"), map("\t".join, zip(names, texts, strict=True)))


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Writes text lines atomically."""
    with atomic_open(path, "w") as stream:
        stream.writelines(f"{line}\n" for line in lines)


def save_logits(path: Path, utterances: Sequence[Utterance], logits: dict[int, Tensor], labels: Sequence[str]) -> None:
    """Log-probabilities [T',V], the blank last, of each utterance under its key ("#2", "#3" ... if it comes again)."""
    from safetensors.torch import save

    seen: collections.Counter[str] = collections.Counter()
    tensors = {}
    for index in sorted(logits):
        key = utterances[index].key
        seen[key] += 1
        tensors[key if seen[key] == 1 else f"{key}#{seen[key]}"] = logits[index]
    with atomic_open(path) as stream:  # one entry of metadata only: safetensors writes several in random order
        stream.write(save(tensors, {"labels": json.dumps(list(labels))}))


# ---------------------------------------------------------------------------------------------------------- speed
def measure(args, config, utterances, recognise, read_tokens: Decoder, group, log) -> None:
    """Latency of full batches, the set over and over: of the data (waiting for the next batch), of the network (model
    and decoding, until the result is on the host), and of both. Of several processes, which do the same at the
    same time, the root tells its own latencies and the throughput of all."""
    size, device = args.batch_size, group.device
    count = max(len(utterances) // size, 1) * size  # full batches only
    loader = make_loader(args, config, list(itertools.islice(itertools.cycle(utterances), count)), device)
    stream = itertools.chain.from_iterable(itertools.repeat(loader))
    series: dict[str, list[float]] = {"data": [], "dnn": [], "data+dnn": []}
    audio = 0.0
    steps = args.warmup_steps + args.steps
    show = Progress(steps, "measuring", "batches") if group.is_root else contextlib.nullcontext()
    with show as bar:
        for step in range(steps):
            times = [time.perf_counter()]
            batch = next(stream)
            synchronise(device)
            times.append(time.perf_counter())
            read_tokens(*recognise(batch))
            times.append(time.perf_counter())
            if step >= args.warmup_steps:
                for name, (start, end) in zip(series, ((0, 1), (1, 2), (0, 2)), strict=True):
                    series[name].append(times[end] - times[start])
                audio += sum(batch.durations)
            if bar is not None:
                bar.update()
    results = {}
    for name, seconds in series.items():
        summary = latency_summary(seconds, size)
        p50, p90, p95, p99 = summary[2:6]
        results |= {
            f"{name}_latency_0_99": p99,
            f"{name}_latency_0_95": p95,
            f"{name}_latency_0_9": p90,
            f"{name}_latency_0_5": summary.average_ms,  # published so: the mean, whatever the name says
            f"{name}_latency_mean": summary.average_ms,
            f"{name}_latency_median": p50,
        }
        log.console(
            f"{name:>8}: mean {summary.average_ms:.2f} ms, percentiles 50 {p50:.2f}, 90 {p90:.2f}, 95 {p95:.2f}, "
            f"99 {p99:.2f} ms"
        )
    total = sum(series["data+dnn"])
    rates = torch.tensor([size * args.steps / total, audio / total], dtype=torch.float64, device=device)
    utterance_rate, audio_rate = group.all_reduce_sum(rates).tolist()
    results |= {
        "batch_size": size,
        "steps": args.steps,
        "utterances_per_second": utterance_rate,
        "audio_seconds_per_second": audio_rate,
    }
    log.log((), results, echo=False)
    log.console(f"{utterance_rate:.1f} utts/s, {audio_rate:.0f} s of audio a second")
    if group.is_root:
        write_json(Path(args.output_dir) / "summary_infer.json", results)


def synchronise(device: torch.device) -> None:
    """Waits until a GPU has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


# ---------------------------------------------------------------------------------------------------------- set-up
def check_arguments(args: argparse.Namespace) -> None:
    """What can be refused before anything is opened."""
    tasks = ("val_manifests", "transcribe_wav", "transcribe_filelist")
    if sum(bool(getattr(args, name)) for name in tasks) != 1:
        raise UserError(f"give one of {', '.join('--' + name for name in tasks)}")
    if args.batch_size < 1:
        raise UserError(f"--batch_size is {args.batch_size}; it must be 1 or more")
    for name in ("steps", "warmup_steps", "pad_leading"):
        if getattr(args, name) < 0:
            raise UserError(f"--{name} is {getattr(args, name)}; it must be 0 or more")
    if args.save_logits and distributed.launched():
        raise UserError("--save_logits works in a single process: start it without torchrun")
    if args.steps and not args.val_manifests:
        raise UserError("--steps measures speed on --val_manifests")
    if args.times and args.val_manifests:
        raise UserError("--times shows the words of single files; with manifests take --output_format")
    if args.output_format and args.dali_device != "none" and args.val_manifests:
        raise UserError("--output_format needs --dali_device none: DALI does not tell what silence it trims")


def open_log(args: argparse.Namespace, rank: int) -> RunLog:
    """The log, with the units of what it will hold."""
    log = RunLog(args.log_file or Path(args.output_dir) / "nvlog_infer.json", rank)
    for metric in ("eval_wer", "eval_cer"):
        log.metadata(metric, unit="%", format=":.2f", STAGE="EVAL")
    for name, key in itertools.product(("data", "dnn", "data+dnn"), ("0_99", "0_95", "0_9", "0_5", "mean", "median")):
        log.metadata(f"{name}_latency_{key}", unit="ms", format=":.2f", STAGE="EVAL")
    return log


if __name__ == "__main__":
    run_main(main)
