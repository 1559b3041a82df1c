"""Averaged checkpoints: the mean by its definition, what is refused, and statistics made anew."""

import numpy as np
import pytest
import torch

from jasper_pt import average_checkpoints, checkpoint, run_inference
from jasper_pt.average_checkpoints import average_files, choose, recompute_statistics
from jasper_pt.config import load_config
from jasper_pt.loader import EvalLoader
from jasper_pt.manifest import read_manifest
from jasper_pt.model import build_model
from runkit.errors import UserError

torch.set_num_threads(1)


@pytest.fixture
def run(corpus, trained, tmp_path):
    """Three checkpoints around the trained one, in a run's folder."""
    contents = checkpoint.read(trained)
    generator = torch.manual_seed(0)
    for epoch in (9, 10, 11):
        for kind in ("state_dict", "ema_state_dict"):
            contents[kind] = {
                key: value + 1e-3 * torch.rand(value.shape, generator=generator)
                if value.is_floating_point()
                else value + 1
                for key, value in contents[kind].items()
            }
        checkpoint.write(tmp_path / f"QuartzNet_epoch{epoch}_checkpoint.pt", contents | {"epoch": epoch})
    for name in ("QuartzNet_epoch11_step99", "QuartzNet_best"):
        checkpoint.write(tmp_path / f"{name}_checkpoint.pt", contents)
    return tmp_path


def average(*words):
    return average_checkpoints.main(list(map(str, words)))


@pytest.mark.parametrize("kind", ["state_dict", "ema_state_dict"])
def test_the_mean_of_weights_and_statistics(run, kind):
    flags = ["--ema"] if kind == "ema_state_dict" else []
    assert average(run, "--last", 2, "--output", run / "out" / "mean.pt", *flags) == 0
    made = checkpoint.read(run / "out" / "mean.pt")
    files = [checkpoint.read(run / f"QuartzNet_epoch{epoch}_checkpoint.pt") for epoch in (10, 11)]
    assert made["averaged"] == ["QuartzNet_epoch10_checkpoint.pt", "QuartzNet_epoch11_checkpoint.pt"]
    assert made["epoch"] == 11 and made["labels"] == files[1]["labels"] and "optimizer" not in made
    for key, value in made["state_dict"].items():
        parts = [file[kind][key].numpy() for file in files]
        if value.is_floating_point():
            mean = np.mean(np.stack(parts).astype(np.float64), axis=0)
            assert np.array_equal(value.numpy(), mean.astype(np.float32)), key
        else:
            assert np.array_equal(value.numpy(), parts[1])


def test_it_serves_inference_and_fine_tuning_but_not_a_resume(run, corpus, capsys):
    out = run / "mean.pt"
    average(run, "--output", out)
    words = f"--cpu --ckpt {out} --dataset_dir {corpus} --val_manifests {corpus}/all.json --output_dir {run}/test"
    assert run_inference.main(words.split()) == 0
    assert "WER " in capsys.readouterr().out

    from jasper_pt import run_training

    base = f"""--cpu --model_config {corpus}/model.yaml --dataset_dir {corpus} --train_manifests {corpus}/all.json
        --val_manifests {corpus}/all.json --gpu_batch_size 4 --epochs 1 --num_workers 0 --output_dir {run}/a""".split()
    with pytest.raises(UserError, match="holds weights only: start from it with --init_ckpt"):
        run_training.main([*base, "--ckpt", str(out)])
    assert run_training.main([*base, "--init_ckpt", str(out)]) == 0


def test_files_are_taken_as_given_and_folders_by_epoch(run):
    names = [path.name for path in choose([run], None)]
    assert names == [f"QuartzNet_epoch{epoch}_checkpoint.pt" for epoch in (9, 10, 11)]  # not by the alphabet
    files = [run / "QuartzNet_best_checkpoint.pt", run / names[0]]
    assert choose(files, None) == files


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--last", "4"], "holds the checkpoints of 3 epochs"),
        (["--last", "1"], "2 or more are averaged"),
        (["--output", "mean.safetensors"], r"ends in \.pt"),
        (["--train_manifests", "absent.json"], r"absent\.json"),
    ],
)
def test_what_cannot_be_is_refused(run, words, message):
    with pytest.raises(UserError, match=message):
        average(run, "--output", run / "mean.pt", *words)
    assert not (run / "mean.pt").exists()


def test_other_runs_are_not_mixed_in(run, tmp_path):
    first = run / "QuartzNet_epoch9_checkpoint.pt"
    contents = checkpoint.read(first)
    weights = contents["state_dict"]
    key = next(iter(weights))
    shorter = {name: value for name, value in weights.items() if name != key}
    config = contents["config"]
    blocks = [block | {"dropout": 0.5} for block in config["quartznet"]["encoder"]["blocks"]]
    encoder = config["quartznet"]["encoder"] | {"blocks": blocks}
    for change, message in (
        ({"labels": list("edcba")}, "labels differ"),
        ({"state_dict": shorter}, f"only one of them has {key}"),
        ({"state_dict": weights | {key: weights[key][:1]}}, "has the shape"),
        ({"config": config | {"quartznet": config["quartznet"] | {"encoder": encoder}}}, "configuration differs"),
    ):
        other = tmp_path / "other.pt"
        checkpoint.write(other, contents | change)
        with pytest.raises(UserError, match=rf"other\.pt is not of the same run as .*: .*{message}"):
            average_files([first, other], ema=False)
    checkpoint.write(other, contents | {"ema_state_dict": None})
    with pytest.raises(UserError, match=r"other\.pt holds no EMA weights"):
        average_files([first, other], ema=True)
    with pytest.raises(UserError, match="two checkpoints or more"):
        choose([first], None)


def test_statistics_are_the_mean_over_batches(corpus):
    config = load_config(corpus / "model.yaml")
    utterances = read_manifest(corpus / "all.json")
    torch.manual_seed(0)
    model = build_model(config)
    batches = list(EvalLoader(utterances, config, 5, num_workers=0))
    before = {key: value.clone() for key, value in model.state_dict().items()}
    seen = []
    norm = model.encoder.layers[0].mconv[2]
    hook = norm.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0].detach()))
    with torch.no_grad():
        model.layout = "ncl"  # so that BatchNorm is called as a module
        assert recompute_statistics(model, batches, lambda: None) == len(batches) == 3
    hook.remove()
    assert len(seen) == 3 and not model.training
    mean = torch.stack([x.mean((0, 2)) for x in seen]).mean(0)
    variance = torch.stack([x.var((0, 2)) for x in seen]).mean(0)
    torch.testing.assert_close(norm.running_mean, mean, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(norm.running_var, variance, atol=1e-6, rtol=1e-5)
    for key, value in model.state_dict().items():
        assert ("running_" in key) or torch.equal(value, before[key])


def test_statistics_can_be_recomputed_from_the_command_line(run, corpus, capsys):
    flags = ("--train_manifests", corpus / "all.json", "--dataset_dir", corpus, "--batch_size", 4, "--num_workers", 0)
    average(run, "--output", run / "plain.pt")
    average(run, "--output", run / "again.pt", *flags)
    assert "the mean over 3 batches" in capsys.readouterr().out
    plain, again = (checkpoint.read(run / f"{name}.pt")["state_dict"] for name in ("plain", "again"))
    changed = {key for key in plain if not torch.equal(plain[key], again[key])}
    assert changed == {key for key in plain if "running_" in key}
