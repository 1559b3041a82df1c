"""How fast are the data stages of BERT on one core, next to a straightforward implementation of the published ones?

    .venv/bert/bin/python benchmarks/bert_data.py --text FILE[,FILE...] --vocab_file FILE

FILEs are text that data/text.py understands. Three stages are measured, all in this process, by CPU time, in MB of text
a second:

    tokenisation   sentences to WordPiece ids, and tokenizers of Hugging Face beside it where it is installed
    sharding       documents, one a line, to shards of sentences; Punkt's parameters are given to both sides (training
                   them, where none are installed, is 2 s whatever the size of the text)
    records        shards to TFRecords at duplication factor 5

The reference is what the published scripts do, written by us: text is cleaned and split character by character, words
are cut greedily, tokens are strings; the corpus, and then all instances of a shard, are kept in lists; records are
tf.train.Examples, made and written by TensorFlow. Ours and the reference take turns; figures are medians over the
rounds, ratios medians of the ratios within a round. Every turn starts with empty caches.
"""

import argparse
import collections
import contextlib
import os
import random
import resource
import shutil
import statistics
import sys
import tempfile
import time
import unicodedata
from collections.abc import Callable
from pathlib import Path
from unittest import mock

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
import tensorflow as tf  # noqa: E402

from bert_tf import create_pretraining_data  # noqa: E402
from bert_tf.instances import InstanceSettings  # noqa: E402
from bert_tf.record_jobs import RecordSettings, _maker  # noqa: E402
from bert_tf.tokenization import FullTokenizer, load_vocab  # noqa: E402
from data.executors import open_workers  # noqa: E402
from data.segmentation import Segmenter, corpus_parameters, trained_parameters  # noqa: E402
from data.sharding import shard_documents  # noqa: E402
from data.text import format_text  # noqa: E402
from runkit import machine  # noqa: E402
from runkit.errors import run_main  # noqa: E402
from runkit.files import write_json  # noqa: E402
from runkit.tables import text_table  # noqa: E402

DUPE_FACTOR = 5
MASKED_LM_PROB, SHORT_SEQ_PROB, SEED = 0.15, 0.1, 12345
PUBLISHED_MB_PER_SECOND = 0.17  # the published script, as measured on a core like this one


# ------------------------------------------------------------------------------------- the reference: WordPiece


def _is_whitespace(char: str) -> bool:
    return char in " \t\n\r" or unicodedata.category(char) == "Zs"


def _is_control(char: str) -> bool:
    return char not in "\t\n\r" and unicodedata.category(char) in ("Cc", "Cf")


def _is_punctuation(char: str) -> bool:
    code = ord(char)
    if 33 <= code <= 47 or 58 <= code <= 64 or 91 <= code <= 96 or 123 <= code <= 126:
        return True
    return unicodedata.category(char).startswith("P")


def _is_ideograph(code: int) -> bool:
    return (
        0x4E00 <= code <= 0x9FFF
        or 0x3400 <= code <= 0x4DBF
        or 0x20000 <= code <= 0x2A6DF
        or 0x2A700 <= code <= 0x2CEAF
        or 0xF900 <= code <= 0xFAFF
        or 0x2F800 <= code <= 0x2FA1F
    )


class ReferenceTokenizer:
    """Text to tokens, one character after the other; uncased."""

    def __init__(self, vocab: dict[str, int]):
        self.vocab = vocab

    def tokenize(self, text: str) -> list[str]:
        return [piece for word in self._words(text) for piece in self._pieces(word)]

    def _words(self, text: str) -> list[str]:
        output = []
        for char in text:
            if ord(char) in (0, 0xFFFD) or _is_control(char):
                continue
            if _is_ideograph(ord(char)):
                output += [" ", char, " "]
            else:
                output.append(" " if _is_whitespace(char) else char)
        words = []
        for word in "".join(output).split():
            word = unicodedata.normalize("NFD", word.lower())
            word = "".join([char for char in word if unicodedata.category(char) != "Mn"])
            words += self._split_punctuation(word)
        return " ".join(words).split()

    @staticmethod
    def _split_punctuation(word: str) -> list[str]:
        parts: list[list[str]] = []
        begins = True
        for char in word:
            if _is_punctuation(char):
                parts.append([char])
                begins = True
            else:
                if begins:
                    parts.append([])
                begins = False
                parts[-1].append(char)
        return ["".join(part) for part in parts]

    def _pieces(self, word: str) -> list[str]:
        if len(word) > 200:
            return ["[UNK]"]
        pieces, start = [], 0
        while start < len(word):
            end = len(word)
            while start < end:
                piece = word[start:end] if start == 0 else "##" + word[start:end]
                if piece in self.vocab:
                    break
                end -= 1
            else:
                return ["[UNK]"]
            pieces.append(piece)
            start = end
        return pieces


# --------------------------------------------------------------------------------------- the reference: sharding


def reference_sharding(text: Path, folder: Path, segmenter: Segmenter, n_training: int, n_test: int) -> None:
    """All documents in memory; the longest that fits goes to each shard in turn, passes without effect raise the
    limit."""
    with open(text, encoding="utf-8") as stream:
        documents = [segmenter.sentences(line.strip()) for line in stream if line.strip()]
    by_length = collections.defaultdict(list)
    for document in documents:
        by_length[len(document)].append(document)
    total = sum(map(len, documents))
    limits = [int(0.9 * total / n_training)] * n_training + [int(0.1 * total / n_test)] * n_test
    shards: list[list[list[str]]] = [[] for _ in limits]
    sizes = [0] * len(limits)
    while by_length:
        placed = False
        for i, limit in enumerate(limits):
            fitting = [length for length in by_length if sizes[i] + length <= limit]
            if fitting:
                length = max(fitting)
                shards[i].append(by_length[length].pop())
                if not by_length[length]:
                    del by_length[length]
                sizes[i] += length
                placed = True
        if not placed:
            limits = [limit + max(1, limit // 100) for limit in limits]
    folder.mkdir()
    for i, shard in enumerate(shards):
        with open(folder / f"{i}.txt", "w", encoding="utf-8") as stream:
            for document in shard:
                stream.write("\n".join(document) + "\n\n")


# ---------------------------------------------------------------------------------------- the reference: records


def reference_records(source: Path, output: Path, tokenizer: ReferenceTokenizer, length: int, predictions: int) -> int:
    """Records of a shard; returns their number."""
    documents: list[list[list[str]]] = [[]]
    with open(source, encoding="utf-8") as stream:
        for line in stream:
            line = line.strip()
            if not line:
                documents.append([])
            elif tokens := tokenizer.tokenize(line):
                documents[-1].append(tokens)
    documents = [document for document in documents if document]
    rng, words = random.Random(SEED), list(tokenizer.vocab)
    rng.shuffle(documents)
    instances = []
    for _ in range(DUPE_FACTOR):
        for i in range(len(documents)):
            instances += _reference_instances(documents, i, length, predictions, words, rng)
    rng.shuffle(instances)
    with tf.io.TFRecordWriter(str(output)) as writer:
        for instance in instances:
            writer.write(_reference_example(instance, tokenizer.vocab, length, predictions))
    return len(instances)


def _reference_instances(documents, index, length, predictions, words, rng) -> list[tuple]:
    document, room = documents[index], length - 3
    target = rng.randint(2, room) if rng.random() < SHORT_SEQ_PROB else room
    instances, chunk, size, i = [], [], 0, 0
    while i < len(document):
        chunk.append(document[i])
        size += len(document[i])
        if i == len(document) - 1 or size >= target:
            a_end = rng.randint(1, len(chunk) - 1) if len(chunk) >= 2 else 1
            tokens_a = [token for sentence in chunk[:a_end] for token in sentence]
            tokens_b = []
            is_random = len(chunk) == 1 or rng.random() < 0.5
            if is_random:
                for _ in range(10):
                    other = rng.randint(0, len(documents) - 1)
                    if other != index:
                        break
                for sentence in documents[other][rng.randint(0, len(documents[other]) - 1) :]:
                    tokens_b.extend(sentence)
                    if len(tokens_b) >= target - len(tokens_a):
                        break
                i -= len(chunk) - a_end
            else:
                tokens_b = [token for sentence in chunk[a_end:] for token in sentence]
            while len(tokens_a) + len(tokens_b) > room:
                longer = tokens_a if len(tokens_a) > len(tokens_b) else tokens_b
                if rng.random() < 0.5:
                    del longer[0]
                else:
                    longer.pop()
            tokens = ["[CLS]", *tokens_a, "[SEP]", *tokens_b, "[SEP]"]
            segments = [0] * (len(tokens_a) + 2) + [1] * (len(tokens_b) + 1)
            instances.append((*_reference_mask(tokens, predictions, words, rng), segments, is_random))
            chunk, size = [], 0
        i += 1
    return instances


def _reference_mask(tokens, predictions, words, rng) -> tuple[list[str], list[tuple[int, str]]]:
    candidates = [i for i, token in enumerate(tokens) if token not in ("[CLS]", "[SEP]")]
    rng.shuffle(candidates)
    output, masked = list(tokens), []
    for i in candidates[: min(predictions, max(1, round(len(tokens) * MASKED_LM_PROB)))]:
        if rng.random() < 0.8:
            output[i] = "[MASK]"
        elif rng.random() >= 0.5:
            output[i] = words[rng.randint(0, len(words) - 1)]
        masked.append((i, tokens[i]))
    return output, sorted(masked)


def _reference_example(instance, vocab, length, predictions) -> bytes:
    tokens, masked, segments, is_random = instance
    ids, mask = [vocab[token] for token in tokens], [1] * len(tokens)
    positions, masked_ids = [i for i, _ in masked], [vocab[token] for _, token in masked]
    weights = [1.0] * len(masked)
    for values in (ids, mask, segments):
        while len(values) < length:
            values.append(0)
    for values in (positions, masked_ids, weights):
        while len(values) < predictions:
            values.append(0)

    def integers(values: list[int]) -> tf.train.Feature:
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    features = {
        "input_ids": integers(ids),
        "input_mask": integers(mask),
        "segment_ids": integers(segments),
        "masked_lm_positions": integers(positions),
        "masked_lm_ids": integers(masked_ids),
        "masked_lm_weights": tf.train.Feature(float_list=tf.train.FloatList(value=weights)),
        "next_sentence_labels": integers([int(is_random)]),
    }
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


# ----------------------------------------------------------------------------------------------------- the turns


def cpu_seconds(work: Callable[[], object]) -> float:
    """CPU time of this process and of children that have ended, in seconds."""

    def used() -> float:
        usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(u.ru_utime + u.ru_stime for u in usage)

    start = used()
    with contextlib.redirect_stdout(None), contextlib.redirect_stderr(open(os.devnull, "w")):
        work()
    return used() - start


def contestants(options, work: Path) -> dict[str, tuple[int, dict[str, Callable[[], object]]]]:
    """Stage -> (bytes of text, {name: one turn}). What a stage reads is made here, by ours."""
    texts = []
    for number, path in enumerate(options.text):
        texts.append(format_text(path, f"text{number}", work / "formatted"))
    text = work / "all.txt"
    with open(text, "wb") as stream:
        for path in texts:
            shutil.copyfileobj(open(path, "rb"), stream)  # noqa: SIM115
    parameters = trained_parameters() or corpus_parameters([text])
    with open_workers() as workers:
        sharded = shard_documents([text], work / "sharded", "text", options.shards, 1, 0.1, SEED, workers=workers)
    shards = sorted((sharded / "training").glob("*.txt"))
    lines = [line for path in shards for line in path.read_text(encoding="utf-8").splitlines() if line]
    vocab = load_vocab(options.vocab_file)
    length, predictions = options.max_seq_length, options.max_predictions_per_seq

    def fresh(name: str) -> Path:
        shutil.rmtree(work / name, ignore_errors=True)
        return work / name

    def our_tokens() -> None:
        encode = FullTokenizer(options.vocab_file).encode
        for line in lines:
            encode(line)

    def reference_tokens() -> None:
        tokenizer = ReferenceTokenizer(vocab)
        for line in lines:
            [vocab[token] for token in tokenizer.tokenize(line)]

    def our_sharding() -> None:
        with mock.patch("data.sharding.corpus_parameters", lambda _: parameters), open_workers() as workers:
            shard_documents([text], fresh("out"), "text", options.shards, 1, 0.1, SEED, workers=workers)

    def reference_shards() -> None:
        reference_sharding(text, fresh("out"), Segmenter(*parameters), options.shards, 1)

    def our_records() -> None:
        _maker.cache_clear()  # the tokenizer of the turn before
        settings = RecordSettings(
            str(options.vocab_file), True, SEED, DUPE_FACTOR, InstanceSettings(length, predictions)
        )
        with open_workers() as workers:
            create_pretraining_data.create_folder(shards, fresh("out"), settings, workers, overwrite=False)

    def reference_record_files() -> None:
        folder = fresh("out")
        folder.mkdir()
        tokenizer = ReferenceTokenizer(vocab)
        for path in shards:
            reference_records(path, folder / f"{path.stem}.tfrecord", tokenizer, length, predictions)

    tokens = {"ours": our_tokens, "reference": reference_tokens}
    with contextlib.suppress(ImportError):
        from tokenizers import BertWordPieceTokenizer

        def their_tokens() -> None:
            tokenizer = BertWordPieceTokenizer(str(options.vocab_file), lowercase=True)
            for line in lines:
                tokenizer.encode(line, add_special_tokens=False).ids  # noqa: B018

        tokens["tokenizers (Rust)"] = their_tokens
    n_text, n_shards = text.stat().st_size, sum(path.stat().st_size for path in shards)
    return {
        "tokenisation": (n_shards, tokens),
        "sharding": (n_text, {"ours": our_sharding, "reference": reference_shards}),
        "records": (n_shards, {"ours": our_records, "reference": reference_record_files}),
    }


def measure(n_bytes: int, functions: dict[str, Callable[[], object]], rounds: int) -> list[dict]:
    """A row for each contestant: MB a second in every round, and ours by the reference."""
    rates: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            rates[name].append(n_bytes / 1e6 / cpu_seconds(function))
    return [
        {
            "contestant": name,
            "mb_per_second": round(statistics.median(found), 3),
            "rounds": [round(rate, 3) for rate in found],
            "ours_is_faster_by": round(statistics.median(a / b for a, b in zip(rates["ours"], found, strict=True)), 2),
        }
        for name, found in rates.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=lambda text: [Path(name) for name in text.split(",")], required=True)
    parser.add_argument("--vocab_file", type=Path, required=True, help="uncased")
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--max_seq_length", type=int, default=128)
    parser.add_argument("--max_predictions_per_seq", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "bert_data.json")
    options = parser.parse_args()
    rows, sizes = [], {}
    with tempfile.TemporaryDirectory() as folder:
        for stage, (n_bytes, functions) in contestants(options, Path(folder)).items():
            sizes[stage] = n_bytes
            rows += [{"stage": stage, **row} for row in measure(n_bytes, functions, options.rounds)]
    ours = next(row["mb_per_second"] for row in rows if row["stage"] == "records" and row["contestant"] == "ours")
    shown = ("stage", "contestant", "mb_per_second", "ours_is_faster_by")
    print(text_table([[row[key] for key in shown] for row in rows], list(shown)))
    print(f"records: {ours / PUBLISHED_MB_PER_SECOND:.1f} times the published script's {PUBLISHED_MB_PER_SECOND} MB/s")
    keys = ("shards", "max_seq_length", "max_predictions_per_seq", "rounds")
    settings = {key: getattr(options, key) for key in keys} | {
        "dupe_factor": DUPE_FACTOR,
        "text": [path.name for path in options.text],
        "bytes": sizes,
    }
    write_json(
        options.out,
        {"settings": settings, "machine": machine.describe(), "load_average": os.getloadavg(), "rows": rows},
    )
    print(f"written: {options.out}; CPU time of all: {time.process_time():.0f} s")


if __name__ == "__main__":
    run_main(main)
