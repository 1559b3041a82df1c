"""What command lines and files of options say about decoding: greedy, or a beam search with models and word lists.

A file (--decoder_config; YAML or JSON) has the keys of DecoderOptions; paths in it start from its own folder. Flags win
over it. jasper_pt.tune_decoder writes such files.
"""

import argparse
import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jasper_pt import ngram
from jasper_pt.beam import BeamDecoder, BeamOptions
from jasper_pt.config import read_yaml
from runkit.errors import UserError
from runkit.files import read_lines

if TYPE_CHECKING:  # a server of exported models has no PyTorch
    from jasper_pt.streaming import Decoder


@dataclasses.dataclass(frozen=True)
class DecoderOptions:
    """How to decode; the keys of a decoder configuration. None: BeamOptions' default."""

    decoder: str = "greedy"
    lm: str | None = None  # path of a model
    alpha: float | None = None
    beta: float | None = None
    unknown: float | None = None
    width: int | None = None
    token_threshold: float | None = None
    top_k: int | None = None
    beam_threshold: float | None = None
    lexicon: str | None = None  # path of a word list
    hotwords: str | None = None  # path of a list of hot words
    hotword_weight: float = 5.0


DECODERS = ("greedy", "beam")
PATHS = ("lm", "lexicon", "hotwords")
BEAM = tuple(field.name for field in dataclasses.fields(BeamOptions) if field.name != "sentence_ends")
# Flag: key, type, help
FLAGS = {
    "--decoder": ("decoder", str, "greedy (default), or beam: CTC prefix beam search, see docs/decoding.md"),
    "--lm": ("lm", str, "n-gram model of words, ARPA (also .gz) or KenLM binary"),
    "--lm_alpha": ("alpha", float, "weight of ln p of the model (0.5)"),
    "--lm_beta": ("beta", float, "score of each word (0)"),
    "--lm_unknown": ("unknown", float, "score of each word that the model does not know (-10)"),
    "--beam_width": ("width", int, "prefixes kept at each frame (100)"),
    "--beam_prune_logp": ("token_threshold", float, "labels of a lower log-probability are not tried (-8)"),
    "--beam_prune_top": ("top_k", int, "at most so many labels are tried at each frame (all)"),
    "--beam_threshold": ("beam_threshold", float, "prefixes that score so much less than the best are dropped (20)"),
    "--lexicon": ("lexicon", str, "the only words allowed, one a line"),
    "--hotwords": ("hotwords", str, "words or phrases to prefer, one a line, a weight behind a tab"),
    "--hotword_weight": ("hotword_weight", float, "weight of hot words that have none in the file (5)"),
}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of decoding, all of them added to the published ones."""
    group = parser.add_argument_group("decoding (added)")
    group.add_argument("--decoder_config", metavar="FILE", help="options, YAML or JSON; the flags below win")
    for name, (key, kind, help_text) in FLAGS.items():
        if key == "decoder":
            group.add_argument(name, choices=DECODERS, help=help_text)
        else:
            group.add_argument(name, type=kind, metavar="FILE" if key in PATHS else "N", help=help_text)


def from_arguments(args: argparse.Namespace) -> DecoderOptions:
    """The options of a command line. Raises UserError where they contradict each other."""
    options = read_options(args.decoder_config) if args.decoder_config else DecoderOptions()
    given = {key: getattr(args, name[2:]) for name, (key, _, _) in FLAGS.items()}
    given = {key: value for key, value in given.items() if value is not None}
    options = dataclasses.replace(options, **given)
    superfluous = [name for name, (key, _, _) in FLAGS.items() if key in given and key != "decoder"]
    if options.decoder == "greedy" and superfluous:
        raise UserError(f"{', '.join(superfluous)}: the greedy decoder has no such option; add --decoder beam")
    return options


def read_options(path: str | Path) -> DecoderOptions:
    """Reads a file of options. Raises UserError naming the file and the key."""
    path = Path(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    values = read_yaml(content, path)
    fields = {field.name: field for field in dataclasses.fields(DecoderOptions)}
    for key, value in values.items():
        if key not in fields:
            raise UserError(f"{path}: {key!r} is not known; there are: {', '.join(fields)}")
        kinds = (int, float) if "float" in str(fields[key].type) else int if "int" in str(fields[key].type) else str
        optional = "None" in str(fields[key].type)
        if not (isinstance(value, kinds) and not isinstance(value, bool)) and not (optional and value is None):
            raise UserError(f"{path}: {key} is {value!r}; {fields[key].type} is expected")
    if values.get("decoder", "greedy") not in DECODERS:
        raise UserError(f"{path}: decoder is {values['decoder']!r}; choose {' or '.join(DECODERS)}")
    for key in PATHS:
        if values.get(key) is not None:
            values[key] = str(path.parent / values[key])
    return DecoderOptions(**values)


def beam_options(options: DecoderOptions) -> BeamOptions:
    """Those of the search itself."""
    given = {name: getattr(options, name) for name in BEAM}
    return BeamOptions(**{name: value for name, value in given.items() if value is not None})


def beam_decoder(options: DecoderOptions, labels: Sequence[str], lm: ngram.Model | None = None) -> BeamDecoder:
    """The search; lm: the model, where it is read already. Raises UserError naming the file that does not fit."""
    if options.lm is None and options.alpha is not None:
        raise UserError("the weight alpha is given (--lm_alpha), but no language model: add --lm FILE")
    return BeamDecoder(
        labels,
        beam_options(options),
        lm or (ngram.read(options.lm) if options.lm else None),
        read_word_list(options.lexicon) if options.lexicon else None,
        read_hot_words(options.hotwords, options.hotword_weight) if options.hotwords else None,
    )


def choose_decoder(args: argparse.Namespace, labels: Sequence[str]) -> "Decoder":
    """The decoder that a command line asks for."""
    from jasper_pt.decode import greedy_tokens

    options = from_arguments(args)
    if options.decoder == "greedy":
        return greedy_tokens
    return beam_decoder(options, labels).tokens


def read_word_list(path: str | Path) -> list[str]:
    """Words, one a line. Raises UserError naming the line that is not one word."""
    words = []
    for number, line in enumerate(read_lines(path), 1):
        if len(line.split()) > 1:
            raise UserError(f"{path}:{number}: {line!r} is more than one word; a word a line is expected")
        words += line.split()
    return words


def read_hot_words(path: str | Path, weight: float) -> dict[str, float]:
    """Words or phrases, one a line, and their weights: behind a tab, or else `weight`."""
    found = {}
    for number, line in enumerate(read_lines(path), 1):
        phrase, tab, text = line.partition("\t")
        if not phrase.strip():
            continue
        try:
            value = float(text) if tab else weight
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise UserError(f"{path}:{number}: {text!r} is not a weight; write PHRASE<tab>NUMBER, or PHRASE alone")
        found[phrase.strip()] = value
    return found
