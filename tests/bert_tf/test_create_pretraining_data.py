"""The command line from text to records: options, any number of processes, interruptions, refusals."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from bert_tf.create_pretraining_data import main
from bert_tf.record_jobs import combine_lengths, length_facts
from bert_tf.records import iter_tfrecord, read_manifest, scan_tfrecord
from bert_tf.tokenization import SPECIAL_TOKENS
from runkit.errors import UserError
from runkit.files import sha256_file

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
ROOT = Path(__file__).resolve().parents[2]
WORDS = "the old mill by river town had grain boats and light men who came from north with rope salt wood".split()


def write_text(path: Path, n_documents: int, seed: int) -> Path:
    rng = random.Random(seed)
    with open(path, "w", encoding="utf-8") as stream:
        for _ in range(n_documents):
            for _ in range(rng.randint(2, 20)):
                words = rng.choices(WORDS, k=rng.randint(3, 20))
                stream.write(" ".join([words[0].capitalize(), *words[1:]]) + " .\n")
            stream.write("\n")
    return path


@pytest.fixture
def vocab(tmp_path: Path) -> Path:
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join([*SPECIAL_TOKENS, "[unused0]", ".", "##s", *WORDS]) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    folder = tmp_path / "text"
    folder.mkdir()
    for i in range(4):
        write_text(folder / f"part_{i}.txt", 30, i)
    return folder


def run(vocab: Path, *flags: str) -> None:
    sizes = ("--max_seq_length=32", "--max_predictions_per_seq=5", "--n_processes=1", "--dupe_factor=3")
    assert main([f"--vocab_file={vocab}", *sizes, *flags]) == 0


def command_line(*flags: str, script: tuple[str, ...] = ("-m", "bert_tf.create_pretraining_data"), **environment: str):
    return subprocess.run(
        [sys.executable, *script, *flags],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
    )


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def examples(path: Path) -> list[dict[str, list]]:
    tf = pytest.importorskip("tensorflow")
    result = []
    for record in iter_tfrecord(path):
        features = tf.train.Example.FromString(record).features.feature
        result.append({k: list(f.float_list.value or f.int64_list.value) for k, f in features.items()})
    return result


# --- folders ------------------------------------------------------------------------------------------------


def test_same_bytes_for_any_number_of_processes(vocab, texts, tmp_path):
    for n in (1, 3):
        run(vocab, f"--input_file={texts}", f"--output_dir={tmp_path / str(n)}", f"--n_processes={n}")
    assert contents(tmp_path / "1") == contents(tmp_path / "3")
    assert sorted(contents(tmp_path / "1")) == ["manifest.json", *(f"part_{i}.tfrecord" for i in range(4))]


def test_manifest_says_what_is_there(vocab, texts, tmp_path):
    out = tmp_path / "out"
    run(vocab, f"--input_file={texts}", f"--output_dir={out}", "--dupe_factor=2", "--random_seed=7")
    manifest = read_manifest(out)
    counted = ("files", "records", "tokens", "masked_tokens", "lengths", "padding_fraction")
    header = {key: value for key, value in manifest.items() if key not in counted}
    assert header == {
        "format": 1,
        "max_seq_length": 32,
        "max_predictions_per_seq": 5,
        "vocab_size": 8 + len(WORDS),
        "vocab_sha256": sha256_file(vocab),
        "do_lower_case": True,
        "random_seed": 7,
        "dupe_factor": 2,
        "masked_lm_prob": 0.15,
        "short_seq_prob": 0.1,
        "do_whole_word_mask": False,
    }
    rows = {name: examples(out / name) for name in manifest["files"]}
    for name, entry in manifest["files"].items():
        assert entry["records"] == len(rows[name]) == len(scan_tfrecord(out / name)) - 1
        assert entry["sha256"] == sha256_file(out / name)
        assert entry["sources"] == {Path(name).stem + ".txt": sha256_file(texts / (Path(name).stem + ".txt"))}
    everything = [row for file in rows.values() for row in file]
    assert manifest["records"] == len(everything)
    assert manifest["tokens"] == sum(sum(row["input_mask"]) for row in everything)
    assert manifest["masked_tokens"] == sum(sum(row["masked_lm_weights"]) for row in everything)
    lengths = [sum(row["input_mask"]) for row in everything]
    classes = [sum(2 * i < length <= 2 * (i + 1) for length in lengths) for i in range(16)]
    assert manifest["lengths"] == {"shortest": min(lengths), "longest": max(lengths), "classes": classes}
    assert manifest["padding_fraction"] == pytest.approx(1 - sum(lengths) / (32 * len(lengths)), abs=1e-6)


def test_lengths_and_padding_are_printed(vocab, texts, tmp_path, capsys):
    run(vocab, f"--input_file={texts}", f"--output_dir={tmp_path / 'out'}")
    manifest = read_manifest(tmp_path / "out")
    printed = capsys.readouterr().out
    mean = manifest["tokens"] / manifest["records"]
    assert f"to {manifest['lengths']['longest']}, mean {mean:.1f} of 32" in printed
    assert f"{100 * manifest['padding_fraction']:.1f}% of all places are padding" in printed


def test_lengths_in_classes():
    facts = length_facts({1: 1, 8: 2, 9: 4, 128: 8}, 128)
    assert facts == {"shortest": 1, "longest": 128, "classes": [3, 4, *[0] * 13, 8]}
    assert combine_lengths([facts, length_facts({}, 128), length_facts({7: 1}, 128)]) == {
        "shortest": 1,
        "longest": 128,
        "classes": [4, 4, *[0] * 13, 8],
    }


def test_duplicates_and_files_differ(vocab, tmp_path):
    text = tmp_path / "text"
    text.mkdir()
    for name in ("a.txt", "b.txt"):
        write_text(text / name, 30, seed=1)
    run(vocab, f"--input_file={text}", f"--output_dir={tmp_path / 'out'}", "--dupe_factor=2")
    a, b = (list(iter_tfrecord(tmp_path / "out" / name)) for name in ("a.tfrecord", "b.tfrecord"))
    assert len(set(a)) > 0.9 * len(a)
    assert not set(a) & set(b)


def test_finished_files_are_kept(vocab, texts, tmp_path, capsys):
    out = tmp_path / "out"
    flags = (f"--input_file={texts}", f"--output_dir={out}")
    run(vocab, *flags)
    before = contents(out)
    times = {path.name: path.stat().st_mtime_ns for path in out.glob("*.tfrecord")}
    run(vocab, *flags)
    assert "4 of 4 files are already done" in capsys.readouterr().out
    # One text changed, one record file changed by a bit, one is gone.
    write_text(texts / "part_0.txt", 30, 99)
    damaged = bytearray((out / "part_1.tfrecord").read_bytes())
    damaged[100] ^= 1
    (out / "part_1.tfrecord").write_bytes(damaged)
    (out / "part_2.tfrecord").unlink()
    run(vocab, *flags)
    assert "1 of 4 files are already done" in capsys.readouterr().out
    after = contents(out)
    assert [name for name in after if after[name] != before[name]] in (
        ["manifest.json", "part_0.tfrecord"],
        ["part_0.tfrecord", "manifest.json"],
    )
    assert (out / "part_3.tfrecord").stat().st_mtime_ns == times["part_3.tfrecord"]
    run(vocab, *flags, "--overwrite")
    assert contents(out) == after
    assert (out / "part_3.tfrecord").stat().st_mtime_ns > times["part_3.tfrecord"]


def test_other_settings_need_overwrite(vocab, texts, tmp_path):
    out = tmp_path / "out"
    run(vocab, f"--input_file={texts}", f"--output_dir={out}", "--dupe_factor=1")
    with pytest.raises(UserError, match=r"dupe_factor=1, this run has dupe_factor=2; .*--overwrite"):
        run(vocab, f"--input_file={texts}", f"--output_dir={out}", "--dupe_factor=2")
    run(vocab, f"--input_file={texts}", f"--output_dir={out}", "--dupe_factor=2", "--overwrite=1")
    assert read_manifest(out)["dupe_factor"] == 2


@pytest.mark.parametrize("n_processes", [1, 3])
def test_a_failing_file_fails_the_run_and_is_named(vocab, texts, tmp_path, n_processes):
    out = tmp_path / "out"
    (texts / "part_1.txt").write_bytes(b"good line\n\nbad line \xff\n")
    flags = (f"--input_file={texts}", f"--output_dir={out}", f"--n_processes={n_processes}")
    with pytest.raises(UserError, match=r"part_1.txt:3: not UTF-8 at byte 20"):
        run(vocab, *flags)
    assert not (out / "manifest.json").exists()
    with pytest.raises(UserError, match="has not ended"):
        read_manifest(out)
    assert not [name for name in contents(out) if name.endswith(".tmp")]
    write_text(texts / "part_1.txt", 30, 1)
    run(vocab, *flags)
    assert read_manifest(out)["records"] > 0


def processes_below(pid: int) -> list[int]:
    """Parents before children."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [int(child) for child in children] + [pid for child in children for pid in processes_below(int(child))]


def start_long_run(vocab: Path, tmp_path: Path) -> tuple[subprocess.Popen, Path, list[int]]:
    """A run with two workers at work on files that take long; returns it, its output and its workers."""
    text, out = tmp_path / "long", tmp_path / "out"
    text.mkdir()
    for name in ("a.txt", "b.txt"):
        write_text(text / name, 2000, 1)
    flags = [f"--vocab_file={vocab}", f"--input_file={text}", f"--output_dir={out}", "--dupe_factor=1000"]
    process = subprocess.Popen(
        [sys.executable, "-m", "bert_tf.create_pretraining_data", *flags, "--n_processes=2"],
        cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, encoding="utf-8",
    )  # fmt: skip
    deadline = time.monotonic() + 30
    while not len(list(out.glob(".*.tmp"))) >= 2:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    servers = [pid for pid in processes_below(process.pid) if processes_below(pid)]
    return process, out, processes_below(servers[-1])


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds worker processes through /proc")
def test_a_killed_worker_fails_the_run(vocab, tmp_path):
    process, out, workers = start_long_run(vocab, tmp_path)
    assert len(workers) == 2
    os.kill(workers[0], signal.SIGKILL)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 2
    assert "error: a worker process was killed" in errors
    assert "a.txt" in errors and "b.txt" in errors
    assert not (out / "manifest.json").exists()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds worker processes through /proc")
def test_a_killed_run_takes_its_workers_along_and_can_be_repeated(vocab, tmp_path):
    process, out, workers = start_long_run(vocab, tmp_path)
    process.kill()
    process.communicate(timeout=30)
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes() for pid in workers):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    with pytest.raises(UserError, match="has not ended"):
        read_manifest(out)
    write_text(tmp_path / "short.txt", 30, 1)
    main(
        [
            f"--vocab_file={vocab}",
            f"--input_file={tmp_path / 'short.txt'}",
            f"--output_dir={out}",
            "--overwrite",
        ]
    )
    assert sorted(contents(out)) == ["manifest.json", "short.tfrecord"]  # half-written files are gone


def killed_at(operation: int, work: Callable[[], None]) -> bool:
    """Runs work() in a copy of this process that is killed at its n-th renaming; False when it comes to its end."""
    pid = os.fork()
    if pid == 0:
        try:
            left, really = operation, os.replace

            def counted(*args):
                nonlocal left
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return really(*args)

            os.replace = counted
            work()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def test_a_killed_run_repeated_gives_the_bytes_of_an_undisturbed_one(vocab, texts, tmp_path):
    """Wherever it is killed: at a file of records, at the manifest of an unfinished run, at the last one."""
    run(vocab, f"--input_file={texts}", f"--output_dir={tmp_path / 'whole'}")
    whole, points = contents(tmp_path / "whole"), 0
    while True:
        out = tmp_path / str(points)
        work = partial(run, vocab, f"--input_file={texts}", f"--output_dir={out}")
        if not killed_at(points + 1, work):
            break
        points += 1
        if points > 1:  # at the first, nothing was there yet
            with pytest.raises(UserError, match="has not ended"):
                read_manifest(out)
        work()
        assert contents(out) == whole
    assert points == 1 + 4 + 1 + 1  # the unfinished manifest before and after, four files, the manifest


@pytest.mark.slow
def test_case_p01_memory_does_not_grow_with_the_text(vocab, shared, tmp_path):
    rule = json.loads((shared / "cases/P01/expected.json").read_text(encoding="utf-8"))["rule"]
    assert rule == "peak_rss(50MB) <= 2 * peak_rss(5MB) + 200MB"
    peak = {}
    for megabytes in (5, 50):
        text = tmp_path / f"{megabytes}.txt"
        with open(text, "wb") as stream:
            subprocess.run(
                [sys.executable, shared / "cases/P01/make_input.py", str(megabytes)], stdout=stream, check=True
            )
        flags = [f"--vocab_file={vocab}", f"--input_file={text}", f"--output_dir={tmp_path / 'out'}"]
        program = (
            "import resource, sys; from bert_tf.create_pretraining_data import main; main(sys.argv[1:]); "
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000)"
        )
        result = subprocess.run(
            [sys.executable, "-c", program, *flags, "--dupe_factor=1", "--n_processes=1"],
            cwd=ROOT, check=True, capture_output=True, encoding="utf-8",
        )  # fmt: skip
        peak[megabytes] = float(result.stdout.split()[-1])  # MB
    assert peak[50] <= 2 * peak[5] + 200


def test_two_runs_do_not_share_a_folder(vocab, texts, tmp_path):
    import fcntl

    out = tmp_path / "out"
    out.mkdir()
    descriptor = os.open(out, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(UserError, match="another run"):
        run(vocab, f"--input_file={texts}", f"--output_dir={out}")
    os.close(descriptor)
    run(vocab, f"--input_file={texts}", f"--output_dir={out}")


# --- named files --------------------------------------------------------------------------------------------


def test_output_files_get_instances_in_turn(vocab, texts, tmp_path):
    run(vocab, f"--input_file={texts / 'part_0.txt'}", f"--output_dir={tmp_path / 'dir'}")
    outputs = [tmp_path / "files" / f"{name}.tfrecord" for name in "abc"]
    run(vocab, f"--input_file={texts / 'part_0.txt'}", "--output_file=" + ",".join(map(str, outputs)))
    whole = list(iter_tfrecord(tmp_path / "dir" / "part_0.tfrecord"))
    assert [list(iter_tfrecord(output)) for output in outputs] == [whole[0::3], whole[1::3], whole[2::3]]
    assert read_manifest(tmp_path / "files")["records"] == len(whole)


def test_output_files_of_several_inputs(vocab, texts, tmp_path):
    run(vocab, f"--input_file={texts}", f"--output_dir={tmp_path / 'dir'}")
    for n in (1, 3):
        folder = tmp_path / f"files_{n}"
        outputs = f"--output_file={folder / 'a.tfrecord'},{folder / 'b.tfrecord'}"
        run(vocab, f"--input_file={texts}", outputs, f"--n_processes={n}")
    assert contents(tmp_path / "files_1") == contents(tmp_path / "files_3")
    assert sorted(contents(tmp_path / "files_1")) == ["a.tfrecord", "b.tfrecord", "manifest.json"]
    dealt = [record for name in "ab" for record in iter_tfrecord(tmp_path / "files_1" / f"{name}.tfrecord")]
    whole = [record for path in (tmp_path / "dir").glob("*.tfrecord") for record in iter_tfrecord(path)]
    assert sorted(dealt) == sorted(whole)
    totals = ("records", "tokens", "masked_tokens")
    of_files, of_folder = read_manifest(tmp_path / "files_1"), read_manifest(tmp_path / "dir")
    assert [of_files[key] for key in totals] == [of_folder[key] for key in totals]


def test_runs_with_named_files_add_to_one_manifest(vocab, texts, tmp_path, capsys):
    out = tmp_path / "out"
    for i in range(3):
        run(vocab, f"--input_file={texts / f'part_{i}.txt'}", f"--output_file={out / f'{i}.tfrecord'}")
    assert list(read_manifest(out)["files"]) == ["0.tfrecord", "1.tfrecord", "2.tfrecord"]
    before = contents(out)
    run(vocab, f"--input_file={texts / 'part_1.txt'}", f"--output_file={out / '1.tfrecord'}")
    assert "already done" in capsys.readouterr().out
    run(vocab, f"--input_file={texts / 'part_1.txt'}", f"--output_file={out / '1.tfrecord'}", "--overwrite")
    assert contents(out) == before
    with pytest.raises(UserError, match="random_seed=12345, this run has random_seed=1"):
        run(
            vocab,
            f"--input_file={texts / 'part_1.txt'}",
            f"--output_file={out / '3.tfrecord'}",
            "--random_seed=1",
        )


# --- options ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "lower"),
    [
        ((), True),
        (("--do_lower_case",), True),
        (("--do_lower_case", "1"), True),
        (("--do_lower_case=True",), True),
        (("--do_lower_case=0",), False),
        (("--do_lower_case", "false"), False),
        (("--nodo_lower_case",), False),
    ],
)
def test_casing_is_honoured(texts, tmp_path, flags, lower):
    vocab = tmp_path / "cased.txt"
    tokens = [*SPECIAL_TOKENS, ".", *WORDS, *(word.capitalize() for word in WORDS)]
    vocab.write_text("\n".join(tokens), encoding="utf-8")
    run(
        vocab,
        f"--input_file={texts / 'part_0.txt'}",
        f"--output_dir={tmp_path / 'out'}",
        "--dupe_factor=1",
        *flags,
    )
    assert read_manifest(tmp_path / "out")["do_lower_case"] is lower
    first_capital = 6 + len(WORDS)
    rows = examples(tmp_path / "out" / "part_0.tfrecord")
    originals = [i for row in rows for i in row["masked_lm_ids"]]
    assert any(i >= first_capital for i in originals) is not lower


def test_casing_doubts_are_said(vocab, texts, tmp_path, capsys):
    run(
        vocab,
        f"--input_file={texts}",
        f"--output_dir={tmp_path / 'out'}",
        "--do_lower_case=0",
        "--dupe_factor=1",
    )
    assert "no token has a capital, but the text is not lower-cased" in capsys.readouterr().err


def test_whole_word_masking(tmp_path):
    vocab, text = tmp_path / "vocab.txt", tmp_path / "text.txt"
    vocab.write_text("\n".join([*SPECIAL_TOKENS, "ab", "##cd", "##ef", "x"]), encoding="utf-8")
    text.write_text("abcdef x abcd x x abcdef\nx abcd x x x\n\nabcd x x x abcdef x\nx x x x x\n", encoding="utf-8")
    run(
        vocab,
        f"--input_file={text}",
        f"--output_dir={tmp_path / 'out'}",
        "--do_whole_word_mask",
        "--dupe_factor=50",
    )
    rows = examples(tmp_path / "out" / "text.tfrecord")
    assert len(rows) > 100
    for row in rows:
        tokens = list(row["input_ids"])
        k = int(sum(row["masked_lm_weights"]))
        masked = row["masked_lm_positions"][:k]
        for position, token in zip(masked, row["masked_lm_ids"], strict=False):
            tokens[position] = token
        for position in masked:
            if tokens[position + 1] in (6, 7):  # a continuation goes with the piece before it
                assert position + 1 in masked


def test_blocks_of_a_file_are_paired_on_their_own(vocab, texts, tmp_path, monkeypatch):
    run(vocab, f"--input_file={texts / 'part_0.txt'}", f"--output_dir={tmp_path / 'one'}")
    monkeypatch.setattr("bert_tf.record_jobs.BLOCK_CHARS", 1000)
    run(vocab, f"--input_file={texts / 'part_0.txt'}", f"--output_dir={tmp_path / 'many'}")
    one, many = (read_manifest(tmp_path / name) for name in ("one", "many"))
    assert contents(tmp_path / "one") != contents(tmp_path / "many")
    assert abs(one["records"] - many["records"]) < 0.1 * one["records"]


def test_started_as_a_file_and_as_a_module(vocab, texts, tmp_path):
    for name, script in (
        ("a", ("bert_tf/create_pretraining_data.py",)),
        ("b", ("-m", "bert_tf.create_pretraining_data")),
    ):
        flags = (
            f"--vocab_file={vocab}",
            f"--input_file={texts}",
            f"--output_dir={tmp_path / name}",
            "--n_processes=2",
        )
        result = command_line(*flags, script=script)
        assert result.returncode == 0, result.stderr
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_utf8_whatever_the_locale(tmp_path):
    vocab, text = tmp_path / "vocab.txt", tmp_path / "été.txt"
    vocab.write_text("\n".join([*SPECIAL_TOKENS, "été", "北", "naïve"]), encoding="utf-8")
    text.write_text("été 北 été\nnaïve été\n\nnaïve naïve\n北 北\n", encoding="utf-8")
    locale = {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    flags = (
        f"--vocab_file={vocab}",
        f"--input_file={text}",
        f"--output_dir={tmp_path / 'out'}",
        "--do_lower_case=0",
    )
    result = command_line(*flags, **locale)
    assert result.returncode == 0, result.stderr
    ids = {i for row in examples(tmp_path / "out" / "été.tfrecord") for i in row["input_ids"] + row["masked_lm_ids"]}
    assert ids == {0, 2, 3, 4, 5, 6, 7}  # no [UNK]


def test_google_sample_text(shared, tmp_path):
    for kind, lower in (("uncased", 1), ("cased", 0)):
        out = tmp_path / kind
        flags = [f"--vocab_file={shared / f'data/vocab_bert/{kind}_vocab.txt'}", f"--do_lower_case={lower}"]
        main(
            [
                *flags,
                f"--input_file={shared / 'data/text_corpora/bert_sample_text.txt'}",
                f"--output_dir={out}",
            ]
        )
        rows = examples(out / "bert_sample_text.tfrecord")
        assert len(rows) > 100
        vocab = (shared / f"data/vocab_bert/{kind}_vocab.txt").read_text(encoding="utf-8").split("\n")
        cls, sep, mask = (vocab.index(token) for token in ("[CLS]", "[SEP]", "[MASK]"))
        never = {i for i, token in enumerate(vocab) if token.startswith("[") and len(token) > 1} - {
            cls,
            sep,
            mask,
        }
        for row in rows:
            assert [len(row[k]) for k in ("input_ids", "input_mask", "segment_ids")] == [128] * 3
            assert len(row["masked_lm_positions"]) == 20
            n, k = sum(row["input_mask"]), int(sum(row["masked_lm_weights"]))
            assert 1 <= k <= 19
            tokens = row["input_ids"][:n]
            seps = [i for i, token in enumerate(tokens) if token == sep]
            assert (tokens[0], len(seps), seps[1]) == (cls, 2, n - 1)
            assert not {0, *seps} & set(row["masked_lm_positions"][:k])
            assert not (set(tokens) - {vocab.index("[UNK]")}) & never


# --- refusals -----------------------------------------------------------------------------------------------


def test_case_p02_single_document_is_warned_about(shared, tmp_path, capsys):
    vocab = shared / "data/vocab_bert/uncased_vocab.txt"
    text = shared / "cases/P02/one_document.txt"
    main([f"--vocab_file={vocab}", f"--input_file={text}", f"--output_dir={tmp_path / 'out'}"])
    assert "one_document.txt: a single document, so only true next sentences" in capsys.readouterr().err
    rows = examples(tmp_path / "out" / "one_document.tfrecord")
    assert rows and all(row["next_sentence_labels"] == [0] for row in rows)


def test_one_sentence_a_document_is_warned_about(vocab, tmp_path, capsys):
    text = tmp_path / "articles.txt"
    text.write_text("the old mill .\n\nriver town .\n\nmen who came .\n", encoding="utf-8")
    run(vocab, f"--input_file={text}", f"--output_dir={tmp_path / 'out'}")
    assert "articles.txt: every document is a single sentence" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "text.txt: no text"),
        ("\n \n\n", "text.txt: no text"),
        ("the mill .\n", "text.txt: a single sentence"),
    ],
)
def test_text_without_pairs(vocab, tmp_path, text, message):
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=message):
        run(vocab, f"--input_file={tmp_path / 'text.txt'}", f"--output_dir={tmp_path / 'out'}")
    assert not list((tmp_path / "out").glob("*.tfrecord"))


def test_paths_that_are_wrong(vocab, texts, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    write_text(tmp_path / "other" / "part_0.txt", 3, 1)
    out = f"--output_dir={tmp_path / 'out'}"
    with pytest.raises(UserError, match=r"empty: no \*.txt files"):
        run(vocab, f"--input_file={tmp_path / 'empty'}", out)
    with pytest.raises(UserError, match=r"'.*absent.txt' is neither a file nor a folder"):
        run(vocab, f"--input_file={texts},{tmp_path / 'absent.txt'}", out)
    with pytest.raises(UserError, match="have the same name"):
        run(vocab, f"--input_file={texts},{tmp_path / 'other'}", out)
    with pytest.raises(UserError, match=r"cannot read .*absent_vocab.txt"):
        run(tmp_path / "absent_vocab.txt", f"--input_file={texts}", out)
    with pytest.raises(UserError, match="cannot make the folder"):
        run(vocab, f"--input_file={texts}", f"--output_dir={vocab / 'out'}")
    with pytest.raises(UserError, match="stands twice"):
        run(vocab, f"--input_file={texts}", f"--output_file={tmp_path / 'a'},{tmp_path / 'a'}")


@pytest.mark.parametrize(
    "flag",
    [
        "--max_seq_length=4",
        "--max_predictions_per_seq=0",
        "--dupe_factor=0",
        "--masked_lm_prob=1.5",
        "--n_processes=0",
    ],
)
def test_values_out_of_range_name_their_flag(vocab, texts, tmp_path, flag):
    with pytest.raises(UserError, match=f"{flag}"):
        run(vocab, f"--input_file={texts}", f"--output_dir={tmp_path / 'out'}", flag)


def test_full_disk_is_seen_before_the_work(vocab, texts, tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(UserError, match=r"0.00 GB free, but these records will take about"):
        run(vocab, f"--input_file={texts}", f"--output_dir={tmp_path / 'out'}")


def test_command_line_errors_exit_with_2(vocab, texts, tmp_path):
    flags = (f"--vocab_file={vocab}", f"--input_file={texts}", f"--output_dir={tmp_path / 'out'}")
    unknown = command_line(*flags, "--no_such_flag=1")
    assert (unknown.returncode, "--no_such_flag=1" in unknown.stderr) == (2, True)
    refused = command_line(*flags, "--dupe_factor=0")
    assert (refused.returncode, refused.stderr) == (2, "error: --dupe_factor=0: must be at least 1\n")
    neither = command_line(*flags[:2])
    assert (neither.returncode, "--output_dir" in neither.stderr) == (2, True)


def test_settings_are_json_readable_by_anyone(vocab, texts, tmp_path):
    run(vocab, f"--input_file={texts}", f"--output_dir={tmp_path / 'out'}")
    text = (tmp_path / "out" / "manifest.json").read_text(encoding="utf-8")
    assert json.loads(text)["masked_lm_prob"] == 0.15
    assert str(tmp_path) not in text
