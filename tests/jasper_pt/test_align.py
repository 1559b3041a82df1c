"""align.py end to end with a model that reads tones."""

import json
import re

import pytest
import torch

from jasper_pt import align
from runkit.errors import UserError

torch.set_num_threads(1)
TONE = 0.12  # as conftest.py makes them: seconds a letter or blank


@pytest.fixture
def run(trained, tmp_path):
    def run(*flags):
        return align.main([*map(str, flags), "--ckpt", str(trained), "--cpu", "--output_dir", str(tmp_path / "out")])

    return run


@pytest.fixture
def spoken(corpus):
    rows = map(json.loads, (corpus / "all.json").read_text().splitlines())
    return [(corpus / row["audio_filepath"], row["text"]) for row in rows]


def check(path, text, given=None):
    """A CTM file against the tones; given: the text as it was written, if not like that."""
    lines = [line.split() for line in path.read_text().splitlines()]
    words = list(re.finditer(r"\S+", text))
    assert [line[4] for line in lines] == (given or text).split()
    for (name, channel, start, duration, _, confidence), match in zip(lines, words, strict=True):
        assert (name, channel) == (path.stem, "1") and 0 < float(confidence) <= 1
        assert abs(float(start) - match.start() * TONE) < 0.08
        assert abs(float(start) + float(duration) - match.end() * TONE) < 0.08


def test_pairs_of_files(run, spoken, tmp_path, capsys):
    words = []
    for path, text in spoken[:3]:
        written = tmp_path / f"{path.stem}.txt"
        written.write_text(text.replace(" ", "\n") + "\n")
        words += [path, written]
    assert run(*words, "--output_format", "ctm", "srt", "--precision", "fp32") == 0
    for path, text in spoken[:3]:
        check(tmp_path / "out" / "alignments" / f"{path.stem}.ctm", text)
        assert text in (tmp_path / "out" / "alignments" / f"{path.stem}.srt").read_text()
    assert f"{spoken[0][0]}\t2 words, confidence " in capsys.readouterr().out


def test_words_on_the_command_line(run, spoken, tmp_path):
    path, text = spoken[0]
    assert run(path, "--text", text.upper() + "!") == 0
    check(tmp_path / "out" / "alignments" / "0.ctm", text, text.upper() + "!")


def test_manifests(run, corpus, spoken, tmp_path):
    """Parts of files too; names are those of the manifest."""
    rows = [json.loads(line) for line in (corpus / "all.json").read_text().splitlines()]
    rows[1] |= {"offset": 3 * TONE, "duration": rows[1]["duration"] - 3 * TONE, "text": rows[1]["text"][3:]}
    manifest = tmp_path / "some.json"
    manifest.write_text("\n".join(map(json.dumps, rows)))
    assert run("--manifests", manifest, "--dataset_dir", corpus) == 0
    made = sorted((tmp_path / "out" / "alignments").iterdir())
    assert len(made) == len(rows)
    check(tmp_path / "out" / "alignments" / "0.ctm", spoken[0][1])


def test_the_rest_is_done(run, spoken, tmp_path, capsys):
    (path, text), (other, _) = spoken[:2]
    good, bad = tmp_path / "good.txt", tmp_path / "bad.txt"
    good.write_text(text)
    bad.write_text("xyz")
    assert (
        run(tmp_path / "none.wav", good, other, bad, path, tmp_path / "none.txt", path, good) == align.NOT_ALIGNED == 3
    )
    (made,) = (path for path in (tmp_path / "out" / "alignments").rglob("*") if path.is_file())
    assert made.suffix == ".ctm" and made.read_text().split()[4] == text.split()[0]
    told = capsys.readouterr().err
    assert "none.wav" in told and "none.txt" in told
    assert f"{other}: the text has characters that the model has no label for: 'x' x 1" in told
    assert "3 of 4 recordings could not be aligned" in told


@pytest.mark.parametrize(
    "words, message",
    [
        ([], "give AUDIO and TEXT files, or --manifests"),
        (["a.wav", "a.txt", "--manifests", "m.json"], "give AUDIO and TEXT files, or --manifests"),
        (["a.wav"], "give a TEXT file for each AUDIO file: 1 files are no pairs"),
        (["a.wav", "b.wav", "--text", "a"], "--text goes with one AUDIO file, not with 2"),
        (["--manifests", "m.json", "--text", "a"], "manifests have transcripts of their own"),
    ],
)
def test_bad_words(run, words, message):
    with pytest.raises(UserError, match=message):
        run(*words)


def test_unknown_flags_and_forms(run, capsys):
    for words in (["--form", "srt"], ["a.wav", "a.txt", "--output_format", "doc"]):
        with pytest.raises(SystemExit) as caught:
            run(*words)
        assert caught.value.code == 2
