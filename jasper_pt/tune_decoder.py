"""Finds the options of the beam search that make the fewest errors on a development set.

    python -m jasper_pt.run_inference ... --val_manifests dev.json --save_logits dev.safetensors
    python -m jasper_pt.tune_decoder --logits dev.safetensors --manifests dev.json --lm 3gram.arpa --output decoder.yaml

From log-probabilities that are there already, so that each setting takes only the time of decoding. alpha and beta are
searched one after the other, each over its values while the rest stays as it is best so far, until nothing changes
(--search coordinate), or in all combinations (--search grid), at the first width; then every width is tried with the
best of them. The table (word and character error rates, utterances a second of decoding alone) is printed and written
to <output>.csv; the best options to <output>, which --decoder_config reads. Of settings with as many errors the one
with fewer character errors is taken, then the narrower, then the one tried first.
"""

import argparse
import collections
import dataclasses
import json
import os
import string
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
import yaml
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from jasper_pt import ngram
from jasper_pt.decode import greedy_tokens
from jasper_pt.decoder_options import PATHS, DecoderOptions, add_flags, beam_decoder, from_arguments
from jasper_pt.manifest import read_manifest
from jasper_pt.metrics import ErrorCounts, character_errors, word_errors
from jasper_pt.streaming import Decoder
from jasper_pt.text import Normalizer, decode
from runkit.errors import UserError, run_main
from runkit.files import atomic_open
from runkit.progress import Progress
from runkit.tables import csv_text, rounded, text_table


class DevelopmentSet(NamedTuple):
    """What is decoded, in batches of utterances of like lengths, and what it should be."""

    labels: tuple[str, ...]
    batches: list[tuple[Tensor, Tensor]]  # log_probs [B,T,V], lengths [B]
    references: list[str]


class Setting(NamedTuple):
    """What is searched."""

    alpha: float
    beta: float
    width: int


class Outcome(NamedTuple):
    """What it does."""

    words: ErrorCounts
    characters: ErrorCounts
    rate: float  # utterances a second, decoding alone


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """Unknown flags are refused."""
    parser = argparse.ArgumentParser(prog="tune_decoder", description=__doc__.split("\n\n")[0])
    flag = parser.add_argument
    flag("--logits", required=True, metavar="FILE", help="log-probabilities that run_inference --save_logits wrote")
    flag("--manifests", required=True, nargs="+", metavar="FILE", help="the manifests of that call, in its order")
    flag("--dataset_dir", help="folder that audio paths in the manifests start from")
    flag("--normalization", choices=Normalizer.KINDS, help="of references; default: english for labels a to z, or none")
    flag("--alphas", type=float, nargs="+", default=[0.5, 0.2, 0.35, 0.7, 1.0, 1.4, 2.0], metavar="N")
    flag("--betas", type=float, nargs="+", default=[0.0, -1.0, 0.5, 1.0, 1.5, 2.0, 3.0], metavar="N")
    flag("--widths", type=int, nargs="+", default=[50, 10, 20, 100, 200], metavar="N")
    flag("--search", choices=("coordinate", "grid"), default="coordinate")
    flag("--batch_size", type=int, default=64, help="utterances decoded at a time")
    flag("--output", required=True, metavar="FILE", help="best options (YAML); the table goes to FILE.csv")
    add_flags(parser)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Returns the exit code. Raises UserError for anything a user can fix."""
    args = parse_arguments(argv)
    if args.decoder == "greedy":
        raise UserError("--decoder greedy has nothing to tune: leave it out")
    if args.batch_size < 1:
        raise UserError(f"--batch_size is {args.batch_size}; it must be 1 or more")
    args.decoder = "beam"
    options = from_arguments(args)
    lm = ngram.read(options.lm) if options.lm else None
    dev = read_development_set(args)

    outcomes: dict[Setting, Outcome] = {}
    with Progress(None, "tuning", "settings") as bar:

        def errors(setting: Setting) -> tuple[int, int]:
            if setting not in outcomes:
                outcomes[setting] = measure(beam_decoder(with_setting(options, setting), dev.labels, lm).tokens, dev)
                bar.update()
            return outcomes[setting].words.errors, outcomes[setting].characters.errors

        alphas = args.alphas if lm is not None else [0.0]  # without a model it has no effect
        best = search(errors, alphas, args.betas, args.widths, args.search == "grid")

    for name, value, values in (("alphas", best.alpha, alphas), ("betas", best.beta, args.betas)):
        if len(values) > 2 and value in (min(values), max(values)):
            print(f"note: {value:g} is at the end of --{name}: values beyond it may be better")
    greedy = measure(greedy_tokens, dev)
    table = [row("greedy", None, greedy), *(row("beam", *entry) for entry in outcomes.items())]
    print(text_table(rounded(table)))
    with atomic_open(f"{args.output}.csv", "w") as stream:
        stream.write(csv_text(table))
    save(Path(args.output), with_setting(options, best), table[0], row("beam", best, outcomes[best]))
    rates = [100 * outcome.words.wer for outcome in (outcomes[best], greedy)]
    print(f"{args.output}: WER {rates[0]:.2f} % with {best._asdict()}; greedy: {rates[1]:.2f} %")
    return 0


def search(
    errors: Callable[[Setting], tuple[int, int]],
    alphas: Sequence[float],
    betas: Sequence[float],
    widths: Sequence[int],
    grid: bool,
) -> Setting:
    """The setting with the fewest errors; the first value of each list is where the search begins."""
    best = Setting(alphas[0], betas[0], widths[0])
    if grid:
        best = min((Setting(alpha, beta, widths[0]) for alpha in alphas for beta in betas), key=errors)
    else:
        before = None
        while best != before:
            before = best
            best = min([best, *(best._replace(alpha=alpha) for alpha in alphas)], key=errors)
            best = min([best, *(best._replace(beta=beta) for beta in betas)], key=errors)
    return min((best._replace(width=width) for width in sorted(widths)), key=errors)


def measure(tokens: Decoder, dev: DevelopmentSet) -> Outcome:
    """Decodes the set."""
    texts: list[str] = []
    seconds = 0.0
    for log_probs, lengths in dev.batches:
        begin = time.perf_counter()
        found = tokens(log_probs, lengths)
        seconds += time.perf_counter() - begin
        texts += [decode(each.ids, dev.labels) for each in found]
    words, characters = word_errors(dev.references, texts), character_errors(dev.references, texts)
    return Outcome(words, characters, len(texts) / seconds)


# ------------------------------------------------------------------------------------------------------------- files
def read_development_set(args: argparse.Namespace) -> DevelopmentSet:
    """Log-probabilities and references. Raises UserError where one lacks what the other has."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(args.logits, "pt") as file:
            labels = tuple(json.loads((file.metadata() or {})["labels"]))
            log_probs = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  (no dict)
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise UserError(f"{args.logits} is not what run_inference --save_logits writes: {error}") from error
    kind = args.normalization or ("english" if set(string.ascii_lowercase).issuperset(_letters(labels)) else "none")
    normalize = Normalizer(kind, labels)
    seen: collections.Counter[str] = collections.Counter()
    pairs = []
    for utterance in (u for path in args.manifests for u in read_manifest(path, args.dataset_dir)):
        seen[utterance.key] += 1
        key = utterance.key if seen[utterance.key] == 1 else f"{utterance.key}#{seen[utterance.key]}"
        if key in log_probs:  # unreadable or too long ones are not
            pairs.append((log_probs.pop(key), normalize(utterance.transcript)))
    if log_probs or not pairs:
        missing = next(iter(log_probs), "everything")
        raise UserError(f"{args.logits} and {' '.join(args.manifests)} are not of the same utterances: {missing} of "
                        "the first is not in the manifests")  # fmt: skip
    pairs.sort(key=lambda pair: len(pair[0]))
    batches = []
    for begin in range(0, len(pairs), args.batch_size):
        rows = [rows for rows, _ in pairs[begin : begin + args.batch_size]]
        batches.append((pad_sequence(rows, batch_first=True), torch.tensor([len(each) for each in rows])))
    return DevelopmentSet(labels, batches, [reference for _, reference in pairs])


def _letters(labels: Sequence[str]) -> set[str]:
    return {label for label in labels if label.isalpha()}


def with_setting(options: DecoderOptions, setting: Setting) -> DecoderOptions:
    """The options with this setting; without a model alpha is left out."""
    values = setting._asdict()
    if not options.lm:
        del values["alpha"]
    return dataclasses.replace(options, **values)


def row(name: str, setting: Setting | None, outcome: Outcome) -> dict:
    """A line of the table."""
    values = setting._asdict() if setting else dict.fromkeys(Setting._fields)
    rates = {"wer": 100 * outcome.words.wer, "cer": 100 * outcome.characters.wer}
    return {"decoder": name, **values, **rates, "utterances_per_second": outcome.rate}


def save(path: Path, options: DecoderOptions, greedy: dict, best: dict) -> None:
    """Writes what --decoder_config reads, with paths that start from its own folder."""
    values = {key: value for key, value in dataclasses.asdict(options).items() if value is not None}
    for key in PATHS:
        if key in values:
            values[key] = os.path.relpath(values[key], path.parent)
    with atomic_open(path, "w") as stream:
        stream.write(f"# python -m jasper_pt.tune_decoder: WER {best['wer']:.2f} %, greedy {greedy['wer']:.2f} %\n")
        yaml.safe_dump(values, stream, sort_keys=False)


if __name__ == "__main__":
    run_main(main)
