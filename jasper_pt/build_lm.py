"""Estimates an n-gram language model from text, for machines without KenLM.

    python -m jasper_pt.build_lm --text sentences.txt more.txt.gz --order 3 --output 3gram.arpa
    python -m jasper_pt.build_lm --manifests train.json --output 3gram.arpa.gz

Interpolated modified Kneser-Ney smoothing (Chen and Goodman 1999, "An empirical study of smoothing techniques for
language modeling", section 4.1), with the conventions of KenLM's lmplz (Heafield et al. 2013): n-grams that begin with
<s> keep their counts in lower orders, and unigrams are interpolated with the uniform distribution over all words, </s>
and <unk>. A sentence is a line; words are what white space separates, and are taken as they are. It counts in memory,
about 0.3 kB a distinct n-gram: for corpora of thousands of millions of words there is lmplz.
"""

import argparse
import gzip
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

from jasper_pt import ngram
from jasper_pt.manifest import read_manifest
from runkit.errors import UserError, run_main
from runkit.files import atomic_open

BEGIN, END, UNKNOWN = "<s>", "</s>", "<unk>"
SPECIAL = (BEGIN, END, UNKNOWN, "<UNK>")
FALLBACK = (0.0, 0.5, 1.0, 1.5)  # discounts where there are too few n-grams to estimate them; as lmplz has them
NEVER = -99.0  # log10 p(<s>), which is never predicted; as SRILM writes it

Ngram = tuple[str, ...]


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """Unknown flags are refused."""
    parser = argparse.ArgumentParser(prog="build_lm", description=__doc__.split("\n\n")[0])
    flag = parser.add_argument
    flag("--text", nargs="+", default=[], metavar="FILE", help="sentences, one a line (also .gz)")
    flag("--manifests", nargs="+", default=[], metavar="FILE", help="manifests, whose transcripts are taken")
    flag("--order", type=int, default=3, help="n-grams of 1 to so many words")
    help = (
        "leave out n-grams that come N times at most: a number for each order from 1 (0), the last for all that follow"
    )
    flag("--prune", type=int, nargs="+", default=[0], metavar="N", help=help)
    flag("--vocabulary", type=int, metavar="N", help="only the N most frequent words; others become <unk>")
    flag("--output", required=True, metavar="FILE", help="ARPA file to write (.gz: compressed)")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Returns the exit code. Raises UserError for anything a user can fix."""
    args = parse_arguments(argv)
    if not args.text and not args.manifests:
        raise UserError("give --text or --manifests")
    if not 1 <= args.order <= 10:
        raise UserError(f"--order is {args.order}; 1 to 10 are possible")
    if args.vocabulary is not None and args.vocabulary < 1:
        raise UserError(f"--vocabulary is {args.vocabulary}; it must be 1 or more")
    thresholds = [args.prune[min(n, len(args.prune) - 1)] for n in range(args.order)]
    if thresholds[0] != 0 or thresholds != sorted(thresholds):
        raise UserError(f"--prune {' '.join(map(str, args.prune))}: thresholds begin with 0 and do not fall")

    sentences = list(read_sentences(args.text, args.manifests))
    if not any(sentences):
        raise UserError(f"there is no word in {' '.join(args.text + args.manifests)}")
    if args.vocabulary is not None:
        sentences = limit_vocabulary(sentences, args.vocabulary)
    counts = count(sentences, args.order)
    orders = estimate(counts, thresholds)
    write_arpa(args.output, orders)

    words = sum(map(len, sentences))
    sizes = ", ".join(f"{len(entries)} {n}-grams" for n, entries in enumerate(orders, 1))
    model = ngram.read(args.output)
    print(f"{args.output}: {sizes}, from {len(sentences)} sentences of {words} words")
    print(f"perplexity of this text, sentence ends included: {ngram.perplexity(model, sentences):.2f}")
    return 0


# ------------------------------------------------------------------------------------------------------------- counts
def read_sentences(text_files: Iterable[str], manifests: Iterable[str]) -> Iterator[list[str]]:
    """The words of each line that has some."""
    for path in text_files:
        for number, line in enumerate(ngram.text_lines(path), 1):
            words = line.split()
            for mark in SPECIAL:
                if mark in words:
                    raise UserError(f"{path}:{number}: {mark} stands for itself in language models; take it out")
            if words:
                yield words
    for path in manifests:
        for utterance in read_manifest(path, Path(path).parent):
            if utterance.transcript.split():
                yield utterance.transcript.split()


def limit_vocabulary(sentences: Sequence[list[str]], size: int) -> list[list[str]]:
    """The sentences with all but the most frequent words as <unk>; of equally frequent ones those first in order."""
    frequencies = Counter(word for words in sentences for word in words)
    kept = set(sorted(frequencies, key=lambda word: (-frequencies[word], word))[:size])
    return [[word if word in kept else UNKNOWN for word in words] for words in sentences]


def count(sentences: Iterable[Sequence[str]], order: int) -> list[Counter[Ngram]]:
    """How often n-grams of each order come, a sentence between one <s> and one </s>; <s> alone is not counted."""
    counts: list[Counter[Ngram]] = [Counter() for _ in range(order)]
    for words in sentences:
        padded = (BEGIN, *words, END)
        for n in range(1, order + 1):
            counts[n - 1].update(padded[i : i + n] for i in range(n == 1, len(padded) - n + 1))
    return counts


def adjusted(counts: Sequence[Counter[Ngram]]) -> list[Counter[Ngram]]:
    """Kneser-Ney's counts: below the highest order, in how many ways an n-gram is continued to the left; but n-grams
    that begin with <s>, before which there is nothing, as often as they come."""
    result = []
    for lower, higher in itertools.pairwise(counts):
        before = Counter(key[1:] for key in higher)
        result.append(Counter({key: n if key[0] == BEGIN else before[key] for key, n in lower.items()}))
    return [*result, counts[-1]]


def discounts(counts: Counter[Ngram]) -> tuple[float, float, float, float]:
    """What counts of 0, 1, 2, and of 3 and more are lowered by (Chen and Goodman 1999, equation 26)."""
    n = Counter(counts.values())
    if not all(n[i] for i in (1, 2, 3, 4)):
        return FALLBACK
    y = n[1] / (n[1] + 2 * n[2])
    found = tuple(i - (i + 1) * y * n[i + 1] / n[i] for i in (1, 2, 3))
    if not all(0 <= d <= i for i, d in enumerate(found, 1)):
        return FALLBACK
    return 0.0, *found


# ----------------------------------------------------------------------------------------------------------- estimates
def estimate(counts: Sequence[Counter[Ngram]], thresholds: Sequence[int]) -> list[dict[Ngram, tuple[float, float]]]:
    """Probability and back-off weight (1 for what nothing follows) of the n-grams of each order.

    With a(h w) the adjusted count, D its discount, h' the context without its first word:
    p(w | h) = (a(h w) - D) / sum a(h .) + b(h) p(w | h'), and b(h) what is left for other words; n-grams whose count
    is at most the threshold of their order are left out, and b(h) is the greater.
    """
    probabilities: list[dict[Ngram, float]] = []
    backoffs: dict[Ngram, float] = {}
    vocabulary = {key for key in counts[0] if key != (UNKNOWN,)} | {(END,)}
    uniform = 1 / (len(vocabulary) + 1)  # of these and <unk>
    for raw, a, threshold in zip(counts, adjusted(counts), thresholds, strict=True):
        discount = discounts(a)
        totals: defaultdict[Ngram, float] = defaultdict(float)
        shares: defaultdict[Ngram, float] = defaultdict(float)  # of what is kept
        kept: dict[Ngram, float] = {}
        for key, n in a.items():
            totals[key[:-1]] += n
            if raw[key] > threshold:
                kept[key] = n - discount[min(n, 3)]
                shares[key[:-1]] += kept[key]
        backoffs |= {context: 1 - shares[context] / total for context, total in totals.items()}
        found = {}
        if not probabilities:
            kept |= {key: 0.0 for key in ((END,), (UNKNOWN,)) if key not in kept}
        for key, value in kept.items():
            lower = probabilities[-1][key[1:]] if probabilities else uniform
            found[key] = value / totals[key[:-1]] + backoffs[key[:-1]] * lower
        probabilities.append(found)
    probabilities[0][(BEGIN,)] = 0.0
    return [{key: (p, backoffs.get(key, 1.0)) for key, p in found.items()} for found in probabilities]


def write_arpa(path: str, orders: Sequence[dict[Ngram, tuple[float, float]]]) -> None:
    """Writes ARPA text, whole or not at all; the same model gives the same bytes."""
    with atomic_open(path) as stream:
        if path.endswith(".gz"):
            with gzip.GzipFile(fileobj=stream, mode="wb", filename="", mtime=0) as packed:
                _write(packed, orders)
        else:
            _write(stream, orders)


def _write(stream: IO[bytes], orders) -> None:
    lines = ["\\data\\", *(f"ngram {n}={len(entries)}" for n, entries in enumerate(orders, 1))]
    stream.write(("\n".join(lines) + "\n").encode())
    for n, entries in enumerate(orders, 1):
        stream.write(f"\n\\{n}-grams:\n".encode())
        for key in sorted(entries):
            probability, backoff = entries[key]
            line = f"{_log10(probability):.7g}\t{' '.join(key)}"
            if n < len(orders) and backoff != 1:
                line += f"\t{_log10(backoff):.7g}"
            stream.write(f"{line}\n".encode())
    stream.write(b"\n\\end\\\n")


def _log10(value: float) -> float:
    return max(math.log10(value), NEVER) if value > 0 else NEVER


if __name__ == "__main__":
    run_main(main)
