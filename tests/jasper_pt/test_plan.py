"""The plan of a training job: its memory formula against what autograd keeps, its checks against broken inputs."""

import dataclasses
import json
import wave
from pathlib import Path

import pytest
import torch

from jasper_pt import plan
from jasper_pt.checkpoint import Checkpoints, Position, Run
from jasper_pt.config import load_config
from jasper_pt.model import build_model
from jasper_pt.novograd import create_optimizer
from jasper_pt.precision import PRECISIONS, LossScale
from jasper_pt.run_training import main
from runkit.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
QUARTZNET, JASPER = (str(ROOT / "configs" / "asr" / f"{name}.yaml") for name in ("quartznet5x5", "jasper10x5dr"))


def kept_by_autograd(config, batch: int, frames: int, precision: str) -> float:
    """Bytes of all storages that the backward pass of the model reads back, parameters and their copies left out."""
    torch.manual_seed(0)
    model = build_model(config).train()
    own = {tensor.shape for tensor in model.parameters()}
    kept = {}

    def note(tensor):
        if tensor.shape not in own and tensor.transpose(0, -1).shape not in own and tensor.numel() > 4096:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes(), tensor
        return tensor

    lengths = torch.tensor([frames] * (batch - 1) + [frames - 40])
    with (
        torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor),
        PRECISIONS[precision].autocast(torch.device("cpu")),
    ):
        model(torch.randn(batch, config.encoder.in_feats, frames), lengths)
    return sum(n_bytes for n_bytes, _ in kept.values())


def small(path: str, **changes):
    """The model of a file with all blocks 48 channels wide (dense ones stay dense)."""
    config = load_config(path)
    blocks = tuple(dataclasses.replace(block, filters=48, kernel_size=5, **changes) for block in config.encoder.blocks)
    return dataclasses.replace(
        config,
        encoder=dataclasses.replace(config.encoder, blocks=blocks),
        decoder=dataclasses.replace(config.decoder, in_feats=48),
    )


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    "path, changes",
    [(QUARTZNET, {}), (QUARTZNET, {"dropout": 0.2}), (JASPER, {"dropout": 0.0}), (JASPER, {})],
    ids=["quartznet", "quartznet with dropout", "jasper", "jasper with dropout"],
)
def test_activations_are_what_autograd_keeps(path, changes, precision):
    config, batch, frames = small(path, **changes), 2, 400
    channels_last = config.family == "quartznet"
    element = PRECISIONS[precision].dtype.itemsize
    expected = kept_by_autograd(config, batch, frames, precision)
    # The loss comes after what is measured here: no labels, and no table of it.
    formula = batch * plan.activation_bytes(config, frames, 0, config.n_classes, element, channels_last)
    assert formula == pytest.approx(expected, rel=0.03)


def test_memory_by_kind():
    config = load_config(QUARTZNET)
    with torch.device("meta"):
        model = build_model(config)
    n = sum(parameter.numel() for parameter in model.parameters())
    assert n == 6_713_181  # published for QuartzNet 5x5: 6.7 M
    parts = {
        part.kind: part.n_bytes
        for part in plan.memory(config, model, PRECISIONS["bf16"], 8, 1000, "adamw", ema=True, cpu=True)
    }
    assert parts["gradients"] == 4 * n and parts["moments"] == 8 * n
    assert parts["weights"] == parts["average"] == pytest.approx(4 * n, rel=0.02)
    assert parts["checkpoint snapshot"] == 16 * n == plan.checkpoint_bytes(n, "adamw", True)
    assert parts["blocks in flight"] == plan.BLOCKS * parts["activations"]


def test_the_longest_batch_is_slowed_and_aligned():
    config = load_config(QUARTZNET)
    train = config.input_train
    plain = dataclasses.replace(train, audio=dataclasses.replace(train.audio, speed_perturbation=None))
    assert plan.longest_frames(dataclasses.replace(config, input_train=plain), 10.0) == 1008  # of 1000, in steps of 16
    if train.audio.speed_perturbation:
        slowest = train.audio.speed_perturbation.min_rate
        assert plan.longest_frames(config, 10.0) == pytest.approx(1000 / slowest, abs=16)


# ------------------------------------------------------------------------------------------------------ the command
@pytest.fixture
def speech(tmp_path: Path) -> Path:
    """A folder with 12 files of 2 s of silence, and their manifest."""
    folder = tmp_path / "speech"
    folder.mkdir()
    for number in range(12):
        with wave.open(str(folder / f"{number}.wav"), "wb") as stream:
            stream.setnchannels(1)
            stream.setsampwidth(2)
            stream.setframerate(16000)
            stream.writeframes(bytes(2 * 32000))
    entries = [{"audio_filepath": f"{number}.wav", "duration": 2.0, "text": "a word"} for number in range(12)]
    (folder / "all.json").write_text("\n".join(map(json.dumps, entries)))
    return folder


def arguments(speech: Path, *more: str, train: str = "all.json") -> list[str]:
    return [
        "--cpu", "--model_config", QUARTZNET, "--dataset_dir", str(speech), "--train_manifests", str(speech / train),
        "--val_manifests", str(speech / "all.json"), "--output_dir", str(speech.parent / "out"),
        "--gpu_batch_size", "2", "--grad_accumulation", "2", "--epochs", "10", "--save_best_from", "1", *more,
    ]  # fmt: skip


def test_a_plan_tells_and_starts_nothing(speech: Path, capsys):
    assert main(arguments(speech, "--plan=4")) == 0
    shown = capsys.readouterr().out
    assert "6,713,181" in shown and "12 utterances, 0.0 h" in shown
    assert "4 utterances (2 passes of 2 on 1 processes)" in shown
    assert "30: 10 epochs of 3, each without 0 utterances" in shown
    assert "0:00:30 at 4 utterances/s (as given)" in shown  # 30 updates of 4
    assert "no problem found" in shown and not (speech.parent / "out").exists()


def test_processes_multiply_the_batch(speech: Path, capsys):
    assert main(arguments(speech, "--plan", "--plan_processes=3")) == 0
    assert "12 utterances (6 passes of 2 on 3 processes)" in capsys.readouterr().out


def test_every_problem_of_a_job(speech: Path, capsys):
    (speech / "3.wav").unlink()
    (speech / "5.wav").write_bytes(b"no sound")
    (speech / "bad.json").write_text("{")
    with pytest.raises(UserError, match="problems in this plan"):
        main([*arguments(speech, "--plan", "--ckpt", "none.pt"), "--train_manifests", str(speech / "all.json"),
              str(speech / "bad.json")])  # fmt: skip
    shown = capsys.readouterr().out
    for problem in ("3.wav: no such sound file", "5.wav", "bad.json:1: not valid JSON", "no checkpoint none.pt"):
        assert any(line.startswith("problem: ") and problem in line for line in shown.splitlines()), problem


def test_what_a_resume_would_do(speech: Path, capsys):
    config = load_config(QUARTZNET)
    model = build_model(config)
    run = Run(model, None, create_optimizer("novograd", model.parameters(), 0.01, 0.0), LossScale(False))
    contents = run.contents(Position(2, 1, 3, 4), 7, 50.0, 0, config.to_dict())
    Checkpoints(speech.parent / "out", config.name).save(contents)
    assert main(arguments(speech, "--plan=1", "--resume", "--plan_processes=3")) == 0
    shown = capsys.readouterr().out
    assert "2.33 epochs done" in shown
    assert "4 utterances (2 passes of 2 on 3 processes)" in shown  # the global batch is the run's
    assert "0:01:32 at 1 utterances/s" in shown  # 23 of 30 updates of 4 are left
    with pytest.raises(UserError):
        main(arguments(speech, "--plan"))
    assert "holds checkpoints of an earlier run" in capsys.readouterr().out


def test_a_broken_config_is_one_problem_among_others(speech: Path, capsys):
    with pytest.raises(UserError):
        main(arguments(speech, "--plan", "--model_config", "nowhere.yaml", "--precision", "fp16"))
    shown = capsys.readouterr().out
    assert "nowhere.yaml" in shown and "fp16 needs a GPU" in shown


def test_more_utterances_an_update_than_there_are(speech: Path, capsys):
    with pytest.raises(UserError):
        main(arguments(speech, "--plan", "--plan_processes=4"))
    assert "12 training utterances are fewer than one update takes, 16" in capsys.readouterr().out
