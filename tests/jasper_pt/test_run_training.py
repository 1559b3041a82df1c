"""Training end to end on speech of tones: what is left behind, going on after any end, one curve for any split.

A letter is a tone of its own frequency, so that a small network learns to read them within seconds.
"""

import dataclasses
import json
import math
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from jasper_pt import checkpoint, loader, run_training
from jasper_pt.train_step import TrainingStep
from runkit.errors import UserError
from runkit.log import read_log

torch.set_num_threads(1)
ROOT = Path(__file__).resolve().parents[2]


def command(corpus, output, *flags):
    """A run of 3 epochs of 3 updates of 4 utterances."""
    fixed = f"""--cpu --model_config {corpus}/model.yaml --dataset_dir {corpus} --output_dir {output} --seed 1
        --train_manifests {corpus}/all.json --val_manifests {corpus}/all.json --gpu_batch_size 2 --grad_accumulation 2
        --epochs 3 --lr 0.02 --min_lr 1e-4 --ema 0.9 --eval_frequency 3 --log_frequency 1 --save_frequency 1
        --num_workers 0 --save_best_from 1""".split()
    return [*fixed, *map(str, flags)]


def train(corpus, output, *flags):
    assert run_training.main(command(corpus, output, *flags)) == 0


def log_values(output, key):
    """Values of a key by (epoch, iteration); those of a later job in place of earlier ones."""
    return {
        tuple(record["step"][:2]): record["data"][key]
        for record in read_log(output / "nvlog.json")
        if record["type"] == "LOG" and isinstance(record["step"], list) and record["step"] and key in record["data"]
    }


def final(output, epoch=3):
    return checkpoint.read(output / f"QuartzNet_epoch{epoch}_checkpoint.pt")


def same(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return torch.equal(a, b) if torch.is_tensor(a) else a == b


@pytest.fixture(scope="module")
def straight(corpus, tmp_path_factory):
    """The folder of an undisturbed run."""
    output = tmp_path_factory.mktemp("straight")
    train(corpus, output, "--prediction_frequency", 2)
    return output


# ------------------------------------------------------------------------------------------------ what is left
def test_files_of_a_run(straight):
    names = {path.name for path in straight.iterdir()}
    endings = ("pt", "manifest.json")
    checkpoints = {f"QuartzNet_{name}_checkpoint.{end}" for name in ("epoch2", "epoch3", "best") for end in endings}
    written = {"nvlog.json", "run_config.json", "summary.json", "loss_curve.png", "wer_curve.png"}
    assert names == checkpoints | written | {"train", "dev", "dev_ema"}
    assert all(list((straight / name).glob("events.*")) for name in ("train", "dev", "dev_ema"))
    assert (straight / "loss_curve.png").read_bytes().startswith(b"\x89PNG")


def test_summary(straight):
    summary = json.loads((straight / "summary.json").read_text())
    wanted = "wer cer wer_ema insertions deletions substitutions reference_words utterances parameters".split()
    assert {*wanted, "train_audio_seconds_per_second"} <= summary.keys()
    assert (summary["utterances"], summary["reference_words"], summary["epochs"], summary["updates"]) == (12, 24, 3, 9)
    errors = summary["insertions"] + summary["deletions"] + summary["substitutions"]
    assert summary["wer"] == pytest.approx(100 * errors / 24)
    assert summary["train_audio_seconds_per_second"] > 0
    config = json.loads((straight / "run_config.json").read_text())
    assert config["global_batch_size"] == 4 and config["parameters"] == summary["parameters"]


def test_log_has_the_published_keys(straight):
    for key in ("train_loss", "train_wer", "train_throughput", "train_took", "train_lrate"):
        assert list(log_values(straight, key)) == [(e, i) for e in (1, 2, 3) for i in (1, 2, 3)]
    for key in ("train_avg_throughput", "train_avg_took", "train_avg_loss"):
        assert list(log_values(straight, key)) == [(1, 3), (2, 3), (3, 3)]
    for key in ("dev_loss", "dev_wer", "dev_took", "dev_ema_loss", "dev_ema_wer"):
        assert list(log_values(straight, key)) == [(1, 3), (2, 3), (3, 3)]
    records = [record for record in read_log(straight / "nvlog.json") if record["type"] == "LOG"]
    last = {}
    for record in records:
        if record["step"] == []:
            last |= record["data"]
    assert last["train_avg_benchmark_epochs_num"] == 1 and last["train_avg_throughput"] > 0
    assert {"train_avg_loss", "dev_wer", "dev_ema_wer"} <= last.keys()
    text = (straight / "nvlog.json").read_text()
    assert '"hypothesis' not in text and text.count("  hypothesis: ") == text.count("  reference:  ") == 4


def test_the_rate_of_each_update_is_the_schedules(straight):
    rates = log_values(straight, "train_lrate")
    assert [rates[epoch, 2] for epoch in (1, 2, 3)] == pytest.approx([0.02 * 0.99**epoch for epoch in (1, 2, 3)])


def test_the_checkpoint_tells_all(straight):
    saved = final(straight)
    assert (saved["epoch"], saved["step"], saved["seed"], saved["labels"]) == (3, 9, 1, [" ", *"abcd"])
    assert saved["position"] == {"epoch": 3, "update": 0, "updates_per_epoch": 3, "global_batch_size": 4}
    assert saved["config"]["quartznet"]["encoder"]["blocks"][0]["filters"] == 24
    wers = [log_values(straight, "dev_ema_wer")[epoch, 3] for epoch in (1, 2, 3)]
    best = checkpoint.read(straight / "QuartzNet_best_checkpoint.pt")
    assert best["best_wer"] == saved["best_wer"] == min(wers)


def test_the_last_evaluation_counts_for_the_best_checkpoint_and_the_next_job(corpus, tmp_path):
    train(corpus, tmp_path, "--max_updates", 2)
    best = checkpoint.read(tmp_path / "QuartzNet_best_checkpoint.pt")["best_wer"]
    saved = checkpoint.read(tmp_path / "QuartzNet_epoch0_step2_checkpoint.pt")
    assert saved["best_wer"] == best == json.loads((tmp_path / "summary.json").read_text())["best_wer"]


def test_it_learns_to_read_tones(trained):
    summary = json.loads((trained.parent / "summary.json").read_text())
    assert summary["wer"] < 5 and summary["wer_ema"] < 5


# ------------------------------------------------------------------------------------------------- going on
KILLED = """
import os, signal, sys
from jasper_pt import run_training
from jasper_pt.train_step import TrainingStep
import torch
torch.set_num_threads(1)
update = TrainingStep.__call__
def deadly(self, batches, learning_rate, number, *rest):
    if number == 6:
        os.kill(os.getpid(), signal.SIGKILL)
    return update(self, batches, learning_rate, number, *rest)
TrainingStep.__call__ = deadly
run_training.main(sys.argv[1:])
"""


def test_kill_9_in_mid_epoch_and_resume_equals_straight_through(corpus, straight, tmp_path):
    flags = command(corpus, tmp_path, "--save_steps", 2, "--prediction_frequency", 2)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    killed = subprocess.run([sys.executable, "-c", KILLED, *flags], env=environment, capture_output=True)
    assert killed.returncode == -signal.SIGKILL
    newest = checkpoint.Checkpoints(tmp_path, "QuartzNet").all()[-1]
    # Update 4 was saved in the background: perhaps not to its end.
    assert newest.name in ("QuartzNet_epoch1_step4_checkpoint.pt", "QuartzNet_epoch1_checkpoint.pt")
    train(corpus, tmp_path, "--save_steps", 2, "--prediction_frequency", 2, "--resume")
    assert same(final(tmp_path), final(straight))
    assert log_values(tmp_path, "train_loss") == log_values(straight, "train_loss")
    assert log_values(tmp_path, "dev_ema_wer") == log_values(straight, "dev_ema_wer")


def interrupting(monkeypatch, number, at):
    """Sends this process a signal while update `at` is under way."""
    update = TrainingStep.__call__

    def interrupted(self, batches, learning_rate, step, *rest):
        if step == at:
            os.kill(os.getpid(), number)
        return update(self, batches, learning_rate, step, *rest)

    monkeypatch.setattr(TrainingStep, "__call__", interrupted)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGUSR1, 138)])
def test_a_signal_finishes_the_update_saves_and_ends(corpus, straight, tmp_path, monkeypatch, capsys, number, code):
    before = signal.getsignal(number)
    with monkeypatch.context() as patch:
        interrupting(patch, number, at=5)
        assert run_training.main(command(corpus, tmp_path)) == code
    assert signal.getsignal(number) == before
    assert f"stopped by {signal.Signals(number).name} after update 5; go on with --resume" in capsys.readouterr().out
    assert (tmp_path / "QuartzNet_epoch1_step5_checkpoint.pt").exists() and (tmp_path / "loss_curve.png").exists()
    assert not (tmp_path / "summary.json").exists()
    train(corpus, tmp_path, "--resume")
    assert same(final(tmp_path), final(straight))
    assert log_values(tmp_path, "train_loss") == log_values(straight, "train_loss")


@pytest.mark.parametrize("limit", [("--epochs_this_job", 1), ("--max_updates", 4)])
def test_jobs_in_a_row_equal_straight_through(corpus, straight, tmp_path, limit):
    for _ in range(3):
        train(corpus, tmp_path, "--resume", *limit)
    assert same(final(tmp_path), final(straight))
    train(corpus, tmp_path, "--resume")  # nothing left to do: evaluates once more
    assert json.loads((tmp_path / "summary.json").read_text())["updates"] == 9


def test_a_damaged_newest_checkpoint_is_told_and_the_one_before_used(corpus, straight, tmp_path, capsys):
    train(corpus, tmp_path, "--epochs_this_job", 2)
    path = tmp_path / "QuartzNet_epoch2_checkpoint.pt"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    train(corpus, tmp_path, "--resume")
    text = capsys.readouterr().out
    assert "warning:" in text and "epoch2_checkpoint.pt is damaged" in text and "1 epochs and 0 updates done" in text
    assert same(final(tmp_path), final(straight))


def test_an_earlier_runs_folder_is_not_overwritten(corpus, tmp_path):
    train(corpus, tmp_path, "--max_updates", 1)
    with pytest.raises(UserError, match="earlier run: give --resume"):
        run_training.main(command(corpus, tmp_path))
    train(corpus, tmp_path, "--max_updates", 1, "--no_save")
    assert len(checkpoint.Checkpoints(tmp_path, "QuartzNet").all()) == 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--seed", 2), "trained with --seed 1, not 2"),
        (("--global_batch_size", 8), "mid-epoch.*utterances an update was 4, is 8"),
        (("--gpu_batch_size", 3), "global batch of 4 utterances is no multiple of --gpu_batch_size 3 x"),
        (("--optimizer", "adamw"), "not AdamW's"),
        (("--override_config", "quartznet.encoder.blocks.0.kernel_size=[7]"), "of another shape"),
    ],
)
def test_what_cannot_go_on_is_refused(corpus, tmp_path, flags, message):
    train(corpus, tmp_path, "--max_updates", 1)
    with pytest.raises(UserError, match=message):
        run_training.main([*command(corpus, tmp_path, "--resume"), *map(str, flags)])


def test_a_published_checkpoint_goes_on_at_its_epoch(corpus, straight, tmp_path):
    saved = final(straight, 2)
    for key in ("position", "seed", "config", "labels", "format"):
        del saved[key]
    torch.save(saved, tmp_path / "published.pt")
    train(corpus, tmp_path / "run", "--ckpt", tmp_path / "published.pt")
    ours, theirs = final(tmp_path / "run"), final(straight)
    assert same(ours, theirs)


def test_starting_from_weights_only(corpus, straight, tmp_path, capsys):
    train(
        corpus,
        tmp_path,
        "--init_ckpt",
        straight / "QuartzNet_best_checkpoint.pt",
        "--lr",
        0,
        "--min_lr",
        0,
        "--epochs",
        1,
    )
    weights = final(tmp_path, 1)["state_dict"]
    average = checkpoint.read(straight / "QuartzNet_best_checkpoint.pt")["ema_state_dict"]
    assert torch.equal(weights["decoder.layers.0.weight"], average["decoder.layers.0.weight"])
    assert "(ema_state_dict)" in capsys.readouterr().out


# --------------------------------------------------------------------------------------------- splits of a batch
def test_accumulation_splits_agree_with_frozen_statistics(corpus, tmp_path):
    """Also with the flags of the Jasper recipe, which count utterances of an update."""
    curves = []
    overrides = ("--override_config", "quartznet.encoder.blocks.*.dropout=0.0")
    for name, *flags in (
        ("one", "--batch_size", 4, "--grad_accumulation_steps", 1),
        ("two", "--batch_size", 4, "--grad_accumulation_steps", 2),
        ("four", "--gpu_batch_size", 1, "--update-freq", 4),
    ):
        train(corpus, tmp_path / name, "--freeze_bn_stats", "--epochs", 2, *overrides, *flags)
        curves.append(list(log_values(tmp_path / name, "train_loss").values()))
    assert curves[0] == pytest.approx(curves[1], rel=1e-4) and curves[0] == pytest.approx(curves[2], rel=1e-4)
    assert curves[0][0] > curves[0][-1]


@pytest.mark.dist
def test_two_processes_give_the_curve_of_one_with_synchronised_batch_norm(corpus, tmp_path):
    """Every clip is padded to one length: the statistics include padding, as published."""
    overrides = ["quartznet.encoder.blocks.*.dropout=0.0"]
    for part in ("audio_dataset", "filterbank_features"):
        overrides += [f"input_train.{part}.max_duration=1.5", f"input_train.{part}.pad_to_max_duration=True"]
    flags = ["--sync_bn", *(word for override in overrides for word in ("--override_config", override))]
    train(corpus, tmp_path / "one", "--gpu_batch_size", 4, "--grad_accumulation", 1, *flags)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    launcher = f"-m torch.distributed.run --nproc_per_node 2 --master_port {port} -m jasper_pt.run_training".split()
    run = subprocess.run(
        [
            sys.executable,
            *launcher,
            *command(corpus, tmp_path / "two", "--gpu_batch_size", 2, "--grad_accumulation", 1),
            *flags,
        ],
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    for key in ("train_loss", "dev_loss", "dev_ema_loss"):
        one, two = (log_values(tmp_path / name, key) for name in ("one", "two"))
        assert len(one) >= 3 and one == pytest.approx(two, rel=1e-5)
    summaries = [json.loads((tmp_path / name / "summary.json").read_text()) for name in ("one", "two")]
    assert [s["utterances"] for s in summaries] == [12, 12] and summaries[1]["processes"] == 2
    for name in ("state_dict", "ema_state_dict"):
        for a, b in zip(*(final(tmp_path / run)[name].values() for run in ("one", "two")), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


# ------------------------------------------------------------------------------------------- what goes wrong
def test_non_finite_losses_stop_training_and_keep_the_last_good_checkpoint(corpus, tmp_path, monkeypatch, capsys):
    train(corpus, tmp_path, "--max_updates", 2)
    path = tmp_path / "QuartzNet_epoch0_step2_checkpoint.pt"
    before = path.read_bytes()
    monkeypatch.setattr("jasper_pt.train_step.ctc_loss", lambda log_probs, *_: log_probs.sum() * math.nan)
    message = (
        r"diverged at update 5: loss or gradient of the last 3 updates(.|\n)*rank 0: loss not finite.*batch: .*\.wav"
    )
    with pytest.raises(UserError, match=message):
        run_training.main(command(corpus, tmp_path, "--resume", "--nonfinite_patience", 3, "--save_frequency", 100))
    assert capsys.readouterr().out.count("skipped: loss nan") == 3
    good, last = (
        checkpoint.read(tmp_path / f"QuartzNet_{name}_checkpoint.pt") for name in ("epoch0_step2", "epoch1_step5")
    )
    assert path.read_bytes() == before and last["scaler"]["skipped_updates"] == 3
    assert same(good["optimizer"]["state"], last["optimizer"]["state"])
    for key in ("state_dict", "ema_state_dict"):
        assert same(good[key], last[key])


def test_an_exploding_gradient_stops_training_and_leaves_the_checkpoints_alone(corpus, tmp_path, monkeypatch):
    update = TrainingStep.__call__

    def exploding(self, batches, learning_rate, number, *rest):
        result = update(self, batches, learning_rate, number, *rest)
        return result._replace(gradient_norm=1.0 if number <= 20 else 5.0)

    monkeypatch.setattr(TrainingStep, "__call__", exploding)
    flags = ("--epochs", 8, "--explosion_factor", 4, "--explosion_patience", 3, "--save_frequency", 5)
    message = r"update 23: the gradient explodes(.|\n)*rank 0: loss [0-9.]+,.*\.wav(.|\n)*state of update 15 is saved"
    with pytest.raises(UserError, match=message):
        run_training.main(command(corpus, tmp_path, *flags))
    assert [path.name for path in checkpoint.Checkpoints(tmp_path, "QuartzNet").all()] == [
        "QuartzNet_epoch5_checkpoint.pt"
    ]


def test_input_that_stalls_stops_training_and_names_the_file(corpus, tmp_path, monkeypatch):
    hanging, read = threading.Event(), loader.read_audio

    def hang(path, *rest):
        if path.name == "5.wav":
            hanging.wait(60)
        return read(path, *rest)

    monkeypatch.setattr(loader, "read_audio", hang)
    with pytest.raises(UserError, match=r"no input for 0 s from .*5\.wav.*then resume"):
        run_training.main(command(corpus, tmp_path, "--num_workers", 1, "--input_timeout", 0.2))
    hanging.set()


def test_pre_allocation_changes_nothing(corpus, straight, tmp_path):
    train(corpus, tmp_path, "--pre_allocate_range", 208, 240)
    assert same(final(tmp_path), final(straight))


def test_files_that_cannot_be_read_are_named_before_training(corpus, tmp_path, capsys):
    rows = [json.loads(line) for line in (corpus / "all.json").read_text().splitlines()]
    rows[3]["audio_filepath"] = "missing.wav"
    (tmp_path / "m.json").write_text("\n".join(map(json.dumps, rows)))
    train(corpus, tmp_path / "run", "--train_manifests", tmp_path / "m.json", "--max_updates", 1)
    assert "missing.wav" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--batch_size", 5, "--grad_accumulation", 2), "must divide it"),
        (("--grad_accumulation", 0), "1 or more"),
        (("--save_frequency", 0), "1 or more"),
        (("--clip_norm", -1), "0 .off. or more"),
        (("--ckpt", "a.pt", "--init_ckpt", "b.pt"), "exclude each other"),
        (("--ckpt", "absent.pt"), "no checkpoint absent.pt"),
        (("--gpu_batch_size", 32), "fewer than one update takes"),
        (("--lr", "nan"), "finite"),
        (("--ema", 1.5), "0 switches averaging off"),
        (("--override_config", "no.such=1"), "no"),
    ],
)
def test_unusable_flags(corpus, tmp_path, flags, message):
    with pytest.raises(UserError, match=message):
        run_training.main(command(corpus, tmp_path, *flags))


def test_unknown_flags_are_refused(corpus, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        run_training.main([*command(corpus, tmp_path), "--no_such_flag"])
    assert stop.value.code == 2 and "--no_such_flag" in capsys.readouterr().err


REQUIRED = "--model_config m --train_manifests a --val_manifests c --dataset_dir d --output_dir o".split()


def test_published_spellings_are_understood():
    args = run_training.parse_arguments(
        """--model_config m --train_manifests a b --val_manifest c --dataset_dir d --output_dir o --fp16 --update-freq 3
        --local-rank 1 --cudnn_benchmark --multi_tensor_ema --pre_allocate_range 1408 1920 --optimizer fused_novograd
        --override_config a=1 --override_config b=2 --keep_milestones 100 200 --benchmark_epochs_num 2""".split()
    )
    assert args.amp and args.grad_accumulation == 3 and args.local_rank == 1 and args.val_manifests == ["c"]
    assert args.override_config == ["a=1", "b=2"] and args.pre_allocate_range == [1408, 1920]
    assert not run_training.parse_arguments([*REQUIRED, "--no-cudnn_benchmark"]).cudnn_benchmark


def test_defaults_are_the_published_ones():
    published = """epochs=400 warmup_epochs=0 hold_epochs=0 epochs_this_job=0 cudnn_benchmark=True amp=False seed=None
        pre_allocate_range=None gpu_batch_size=32 lr=0.001 min_lr=1e-05 lr_policy=exponential lr_exp_gamma=0.99
        weight_decay=0.001 grad_accumulation=1 optimizer=novograd ema=0.0 multi_tensor_ema=False resume=False ckpt=None
        save_frequency=10 save_best_from=380 eval_frequency=200 log_frequency=25 prediction_frequency=100 log_file=None
        benchmark_epochs_num=1""".split()
    found = vars(run_training.parse_arguments(REQUIRED))
    assert [f"{name}={found[name]}" for name in (word.split("=")[0] for word in published)] == published
    assert found["keep_milestones"] == [100, 200, 300]


def test_tallies_add_up():
    a = run_training.Tally(1, 4, 10.0, 2.0, 3.0, 1)
    total = run_training.Tally.total([a, dataclasses.replace(a, applied=0, losses=0.0)])
    assert dataclasses.astuple(total) == (2, 8, 20.0, 4.0, 3.0, 1)
    assert (total.throughput, total.audio_per_second, total.loss) == (2.0, 5.0, 3.0)
    assert math.isnan(run_training.Tally.total([]).loss) and run_training.Tally().throughput == 0


# ------------------------------------------------------------------------------------------- options for accuracy
@pytest.fixture(scope="module")
def options(tmp_path_factory):
    """Flags that switch on all of them at once; with subwords as labels."""
    path = tmp_path_factory.mktemp("labels") / "labels.txt"
    path.write_text("\u2581\na\nb\nc\nd\nab\n\u2581c\n\u2581ab\n", encoding="utf-8")
    changes = (
        "input_train.audio_dataset.noise_perturbation.p=0.8",
        "input_train.audio_dataset.impulse_perturbation.p=0.5",
        "input_train.audio_dataset.gain_perturbation.p=0.5",
        "input_train.filterbank_features.spec_augment.adaptive_multiplicity=0.05",
        "input_train.filterbank_features.spec_augment.adaptive_size=0.1",
    )
    flags = [word for change in changes for word in ("--override_config", change)]
    return [*flags, "--consistency", "0.2", "--labels", str(path)]


@pytest.fixture(scope="module")
def straight_with_options(corpus, options, tmp_path_factory):
    output = tmp_path_factory.mktemp("options")
    train(corpus, output, *options)
    return output


def test_options_go_on_bit_for_bit(corpus, options, straight_with_options, tmp_path):
    for _ in range(3):
        train(corpus, tmp_path, "--resume", "--max_updates", 4, *options)
    assert same(final(tmp_path), final(straight_with_options))
    assert final(tmp_path)["labels"] == [" ", *"abcd", "ab", " c", " ab"]


def test_options_do_not_depend_on_workers(corpus, options, straight_with_options, tmp_path):
    train(corpus, tmp_path, *options, "--num_workers", 3)
    assert same(final(tmp_path), final(straight_with_options))


def test_the_weight_of_consistency_matters(corpus, options, straight_with_options, tmp_path):
    train(corpus, tmp_path, *options, "--consistency", 2)
    ours, theirs = (log_values(path, "train_loss") for path in (tmp_path, straight_with_options))
    assert ours[1, 1] > theirs[1, 1] and ours != theirs


def test_other_labels_cannot_go_on(corpus, options, straight_with_options, tmp_path):
    train(corpus, tmp_path, "--max_updates", 1, *options)
    other = tmp_path / "other.txt"
    other.write_text("\u2581\na\nb\nc\nd\nab\ncd\n\u2581ab\n", encoding="utf-8")  # as many
    with pytest.raises(UserError, match=r"trained on other labels \(8\) than those of .* \(8\)"):
        run_training.main(command(corpus, tmp_path, "--resume", *options, "--labels", other))


def test_subwords_are_recognised_as_text(corpus, straight_with_options, tmp_path):
    from jasper_pt import run_inference

    flags = f"""--cpu --ckpt {straight_with_options}/QuartzNet_epoch3_checkpoint.pt --dataset_dir {corpus}
        --val_manifests {corpus}/all.json --output_dir {tmp_path} --save_predictions {tmp_path}/texts""".split()
    assert run_inference.main(flags) == 0
    references = [line.split("\t")[7] for line in (tmp_path / "utterances.tsv").read_text().splitlines()[1:]]
    manifest = [json.loads(line)["text"] for line in (corpus / "all.json").read_text().splitlines()]
    assert sorted(references) == sorted(manifest)
    assert set((tmp_path / "texts").read_text()) <= set(" abcd\n")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--consistency", -1), "--consistency is -1"),
        (("--consistency_mask_ratio", 0.5), "must be from 1 to 100"),
        (("--keep_newest", 1), "must be 2 or more"),
        (("--labels", "absent.txt"), r"absent\.txt"),
    ],
)
def test_wrong_options_are_refused(corpus, tmp_path, flags, message):
    with pytest.raises(UserError, match=message):
        run_training.main(command(corpus, tmp_path, *flags))


def test_views_that_are_the_same_are_refused(corpus, tmp_path):
    same_views = ("input_train.filterbank_features.spec_augment=null", "quartznet.encoder.blocks.*.dropout=0")
    flags = [word for change in same_views for word in ("--override_config", change)]
    with pytest.raises(UserError, match="the same without masks and dropout"):
        run_training.main(command(corpus, tmp_path, *flags, "--consistency", 0.2))


def test_as_many_checkpoints_stay_as_asked_for(corpus, tmp_path):
    train(corpus, tmp_path, "--keep_newest", 3)
    assert [path.name for path in checkpoint.Checkpoints(tmp_path, "QuartzNet").all()] == [
        f"QuartzNet_epoch{epoch}_checkpoint.pt" for epoch in (1, 2, 3)
    ]
