"""Another alphabet: new labels on a trained encoder, parts that do not learn, labels made from manifests."""

import json
import math

import pytest
import torch

from jasper_pt import checkpoint, make_labels, nemo, run_inference, run_training
from jasper_pt.config import load_config, parse_config
from jasper_pt.model import build_model
from jasper_pt.text import normalize_any, read_labels
from runkit.errors import UserError

torch.set_num_threads(1)
DECODER = ("decoder.layers.0.weight", "decoder.layers.0.bias")
CYRILLIC = str.maketrans("abcd", "абвг")


@pytest.fixture
def cyrillic(corpus, tmp_path):
    """The corpus of tones in other letters: its manifest, and a file of labels."""
    rows = [json.loads(line) for line in (corpus / "all.json").read_text().splitlines()]
    manifest, labels = tmp_path / "cyrillic.json", tmp_path / "labels.txt"
    manifest.write_text("\n".join(json.dumps(row | {"text": row["text"].translate(CYRILLIC)}) for row in rows))
    labels.write_text(" \nа\nб\nв\nг\n")
    return manifest, labels


def fine_tune(corpus, cyrillic, output, *flags):
    manifest, labels = cyrillic
    fixed = f"""--cpu --model_config {corpus}/model.yaml --dataset_dir {corpus} --output_dir {output} --seed 1
        --train_manifests {manifest} --val_manifests {manifest} --labels {labels} --gpu_batch_size 4
        --lr_policy cosine --min_lr 0 --num_workers 0 --save_frequency 1000""".split()
    return run_training.main([*fixed, *map(str, flags)])


def state(output, epoch):
    return checkpoint.read(output / f"QuartzNet_epoch{epoch}_checkpoint.pt")["state_dict"]


def test_a_frozen_encoder_learns_another_alphabet(corpus, trained, cyrillic, tmp_path, capsys):
    """What an encoder hears does not depend on how it is written: a new decoder alone reads all of it."""
    output = tmp_path / "out"
    flags = ("--init_from", trained, "--freeze_encoder", "--freeze_batch_norm", "--freeze_bn_stats")
    assert fine_tune(corpus, cyrillic, output, *flags, "--epochs", 30, "--lr", 0.05) == 0
    assert "this run the 5 labels ' абвг': decoder drawn anew" in capsys.readouterr().out
    before = checkpoint.read(trained)["ema_state_dict"]
    after = state(output, 30)
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items() if name not in DECODER)
    assert not torch.equal(after[DECODER[0]], before[DECODER[0]])
    assert json.loads((output / "summary.json").read_text())["wer"] == 0
    saved = checkpoint.read(output / "QuartzNet_epoch30_checkpoint.pt")
    assert saved["labels"] == list(" абвг") == saved["config"]["labels"]
    wav = ["--cpu", "--ckpt", str(output / "QuartzNet_epoch30_checkpoint.pt"), "--transcribe_wav", f"{corpus}/0.wav"]
    assert run_inference.main([*wav, "-o", str(tmp_path / "text")]) == 0
    spoken = json.loads(cyrillic[0].read_text().splitlines()[0])["text"]
    assert spoken in capsys.readouterr().out


def test_the_encoder_thaws_after_its_updates(corpus, trained, cyrillic, tmp_path):
    flags = ("--init_from", trained, "--freeze_encoder", 3, "--freeze_bn_stats", "--lr", 0.01)  # 3 updates an epoch
    before = checkpoint.read(trained)["ema_state_dict"]
    fine_tune(corpus, cyrillic, tmp_path / "out", *flags, "--epochs", 2, "--epochs_this_job", 1)
    first = state(tmp_path / "out", 1)
    assert all(torch.equal(first[name], tensor) for name, tensor in before.items() if name not in DECODER)
    fine_tune(corpus, cyrillic, tmp_path / "out", *flags, "--epochs", 2, "--resume")
    fine_tune(corpus, cyrillic, tmp_path / "straight", *flags, "--epochs", 2)
    second, straight = state(tmp_path / "out", 2), state(tmp_path / "straight", 2)
    assert all(torch.equal(second[name], straight[name]) for name in straight)
    weights = [name for name in first if name.endswith("weight")]
    assert not any(torch.equal(second[name], first[name]) for name in weights)


def test_batch_norms_that_do_not_learn(corpus, trained, cyrillic, tmp_path):
    fine_tune(
        corpus, cyrillic, tmp_path / "out", "--init_from", trained, "--freeze_batch_norm", "--epochs", 1, "--lr", 0.1
    )
    before, after = checkpoint.read(trained)["ema_state_dict"], state(tmp_path / "out", 1)
    config = parse_config(checkpoint.read(trained)["config"])
    norms = {
        f"{name}.{inner}"
        for name, module in build_model(config).named_modules()
        if isinstance(module, torch.nn.BatchNorm1d)
        for inner in module.state_dict()
    }
    assert {name for name in before if torch.equal(before[name], after[name])} == norms


def test_rows_of_shared_labels():
    before, after = ["a", "b", "c"], [" ", "c", "ä", "a"]
    old = {DECODER[0]: torch.arange(12.0).view(4, 3, 1), DECODER[1]: torch.arange(4.0), "x": torch.ones(1)}
    drawn = {DECODER[0]: -torch.ones(5, 3, 1), DECODER[1]: -torch.ones(5)}
    made, copied = run_training.relabelled(old, drawn, before, after)
    assert copied == 2 and made["x"] is old["x"]
    assert made[DECODER[1]].tolist() == [-1, 2, -1, 0, 3]
    assert made[DECODER[0]][:, 0, 0].tolist() == [-1, 6, -1, 0, 9]
    anew, copied = run_training.relabelled(old, drawn, before, [])
    assert copied == 0 and all(torch.equal(anew[name], drawn[name]) for name in DECODER)
    assert drawn[DECODER[1]].tolist() == [-1] * 5


def test_labels_in_another_order_are_told_from_the_same(corpus, trained, tmp_path, capsys):
    """A decoder of the same size is not taken over by its size alone."""
    labels = tmp_path / "labels.txt"
    labels.write_text("d\nc\nb\na\n \n")
    flags = ("--init_from", trained, "--copy_label_rows", "--epochs", 1, "--lr", 0, "--min_lr", 0, "--freeze_bn_stats")
    fine_tune(corpus, (corpus / "all.json", labels), tmp_path / "out", *flags)
    assert "rows of 5 labels and the blank copied" in capsys.readouterr().out
    before, after = checkpoint.read(trained)["ema_state_dict"], state(tmp_path / "out", 1)
    assert torch.equal(after[DECODER[0]], before[DECODER[0]][[4, 3, 2, 1, 0, 5]])
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["wer"] == 0  # all that changed is the order


def test_a_nemo_archive_is_fine_tuned(corpus, trained, cyrillic, tmp_path):
    contents = checkpoint.read(trained)
    archive = tmp_path / "trained.nemo"
    nemo.write(archive, parse_config(contents["config"]), contents["ema_state_dict"])
    flags = ("--init_from", archive, "--epochs", 1, "--lr", 0, "--min_lr", 0, "--freeze_bn_stats")
    fine_tune(corpus, cyrillic, tmp_path / "out", *flags)
    after = state(tmp_path / "out", 1)
    assert all(torch.equal(after[n], t) for n, t in contents["ema_state_dict"].items() if n not in DECODER)


def test_the_plan_knows_of_new_labels(corpus, trained, cyrillic, tmp_path, capsys):
    labels = tmp_path / "more.txt"
    labels.write_text(cyrillic[1].read_text() + "д\nе\n")
    assert fine_tune(corpus, (cyrillic[0], labels), tmp_path / "out", "--init_from", trained, "--plan") == 0
    assert "but for the decoder: other labels" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--freeze_encoder", "-2"), "--freeze_encoder is -2"),
        (("--copy_label_rows",), "needs --init_ckpt"),
    ],
)
def test_unusable_flags(corpus, cyrillic, tmp_path, flags, message):
    with pytest.raises(UserError, match=message):
        fine_tune(corpus, cyrillic, tmp_path / "out", *flags)


def test_frozen_parameters():
    model = build_model(load_config("quartznet_quickstart"))
    names = {p: name for name, p in model.named_parameters()}
    until = {names[p]: last for p, last in run_training.frozen_parameters(model, 7, True)}
    assert set(until) == {name for name in names.values() if not name.startswith("decoder.")}
    assert set(until.values()) == {7, math.inf}
    assert until["encoder.layers.0.mconv.0.weight"] == 7
    assert run_training.frozen_parameters(model, 0, False) == []


# ---------------------------------------------------------------------------------------------------- labels, rules
def test_labels_of_a_language(tmp_path, capsys):
    manifest, output = tmp_path / "de.json", tmp_path / "labels.txt"
    texts = ["Gru\u0308ße, Österreich!", "geht’s um 5 Uhr", "'quoted' naïve"]
    manifest.write_text("\n".join(json.dumps({"audio_filepath": "a.wav", "duration": 1, "text": t}) for t in texts))
    make_labels.main([str(manifest), "--output", str(output)])
    labels = read_labels(output)
    assert labels == (" ", "'", *sorted(set("grüßeösterreichgehtsumuhrquotednaïve")))
    out = capsys.readouterr().out
    assert "WRITE NUMBERS AS WORDS" in out and "changed: Ö -> ö x 1" in out and "changed: ’ -> ' x 1" in out
    assert "label, RARE" in out and "LATIN SMALL LETTER SHARP S" in out
    assert normalize_any(texts[0], labels) == "grüße österreich"
    make_labels.main([str(manifest), "--output", str(output), "--min_count", "2"])
    assert "ï" not in read_labels(output) and "'" not in read_labels(output)
    with pytest.raises(UserError, match="no letter comes 100 times"):
        make_labels.main([str(manifest), "--output", str(output), "--min_count", "100"])


def test_marks_are_labels_and_punctuation_is_not():
    inventory = make_labels.take_stock(["कि।", "«да»"])
    assert make_labels.choose_labels(inventory) == (" ", *sorted("किда"))


def test_capitals_of_the_dotted_and_the_dotless_i():
    turkish = [" ", *"abcçdefgğhıijklmnoöprsştuüvyz"]
    assert normalize_any("IŞIK İyi, DİYARBAKIR", turkish) == "ışık iyi diyarbakır"
    assert normalize_any("I\u0307yi", turkish) == "iyi"  # decomposed
    assert normalize_any("INDIGO", [" ", *"dgino"]) == "indigo"
    inventory = make_labels.take_stock(["IŞIK İyi"], dotless_i=True)
    assert "".join(make_labels.choose_labels(inventory)) == " ikyış"


def test_the_end_of_a_greek_word():
    assert normalize_any("ΟΔΟΣ ΣΟΦΟΣ", [" ", *"δοσςφ"]) == "οδος σοφος"
