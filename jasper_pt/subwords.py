"""Learns subword labels from the transcripts of a training set, for a model that spells with pieces of words.

    python -m jasper_pt.subwords --model_config quartznet5x5 --train_manifests train.json --dataset_dir DATA \
        --vocab_size 128 --output labels.txt
    python -m jasper_pt.run_training --model_config quartznet5x5 --labels labels.txt ...

Byte-pair encoding (Sennrich et al. 2016, arXiv 1508.07909): beginning with characters, the most frequent pair of
neighbouring pieces becomes a piece, until there are as many as asked for. The `sentencepiece` package learns (Kudo and
Richardson 2018, arXiv 1808.06226); with the file it wrote it is not needed any more, since text.encode applies the
pieces.

The labels are the configuration's characters, in their order, then the pieces in the order they were learnt. A line of
the file is a label; the blank before a word is written as U+2581. Transcripts are normalised as in training.

CTC needs an output frame for each label and one more between equal neighbours. Subwords are fewer than characters, so
they leave room for encoders of larger strides; how much there is, is told at the end.
"""

import argparse
import io
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

if __package__ in (None, ""):  # started by path: python jasper_pt/subwords.py
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from jasper_pt.config import Config, load_config
from jasper_pt.loader import output_frames
from jasper_pt.manifest import Utterance, read_manifest
from jasper_pt.text import WORD_MARK, alphabet, encode, frames_needed, transcript_rules, write_labels
from runkit.errors import UserError, run_main


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The flags. Unknown ones are refused."""
    parser = argparse.ArgumentParser(prog="subwords", description=__doc__.split("\n\n")[0])
    flag = parser.add_argument
    flag("--model_config", required=True, help="YAML file: its characters and its rules for transcripts")
    flag("--train_manifests", required=True, nargs="+")
    flag("--dataset_dir", help="folder that manifests and audio paths start from")
    flag("--vocab_size", type=int, default=256, help="labels in all, characters included, without the blank")
    flag("--output", required=True, type=Path, help="the file of labels")
    flag("--override_config", action="append", default=[], metavar="PATH=VALUE", help="changes the YAML file")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Learns, writes and tells; returns 0. Raises UserError for anything a user can fix."""
    args = parse_arguments(argv)
    config = load_config(args.model_config, args.override_config)
    if config.input_train is None:
        raise UserError(f"{args.model_config} has no section input_train, whose rules for transcripts are needed")
    characters = alphabet(config.labels)
    rules = transcript_rules(config.input_train.audio.normalize_transcripts, characters)
    utterances = [u for path in args.train_manifests for u in read_manifest(path, args.dataset_dir)]
    unknown: Counter[str] = Counter()
    transcripts = [rules(utterance.transcript, characters, unknown) for utterance in utterances]
    labels = learn(transcripts, characters, args.vocab_size)
    write_labels(args.output, labels)
    if unknown:
        print(f"{unknown.total()} characters are not among the labels of {args.model_config} and were left out")
    for line in (describe(utterances, transcripts, labels, config), f"written: {args.output}"):
        print(line)
    return 0


def learn(transcripts: Iterable[str], characters: Sequence[str], vocab_size: int) -> tuple[str, ...]:
    """`characters`, then the pieces that byte-pair encoding learns from transcripts made of them, vocab_size in all.

    Raises UserError where the package is missing, where vocab_size leaves no room for a piece, and where there are not
    so many pieces to learn.
    """
    if vocab_size <= len(characters):
        raise UserError(f"--vocab_size {vocab_size} must be greater than the number of characters, {len(characters)}")
    trainer = import_sentencepiece().SentencePieceTrainer
    present = set().union(*transcripts)
    model = io.BytesIO()
    try:
        trainer.train(
            sentence_iterator=iter(transcripts),
            model_writer=model,
            model_type="bpe",
            # Its own vocabulary: the unknown piece, and of the characters those that are there.
            vocab_size=vocab_size - len(characters) + 1 + len(present | {" "}),
            character_coverage=1.0,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            bos_id=-1,
            eos_id=-1,
            max_sentence_length=1 << 20,  # bytes; longer ones would be left out in silence
            num_threads=1,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise UserError(
            f"sentencepiece cannot learn {vocab_size} labels from these transcripts ({str(error).splitlines()[-1]}): "
            "lower --vocab_size"
        ) from error
    processor = import_sentencepiece().SentencePieceProcessor(model_proto=model.getvalue())
    pieces = [
        processor.id_to_piece(index) for index in range(processor.get_piece_size()) if not processor.is_unknown(index)
    ]
    pieces = [piece.replace(WORD_MARK, " ") for piece in pieces]
    return (*characters, *(piece for piece in pieces if len(piece) > 1))


def import_sentencepiece():
    """The package. Raises UserError where it is not installed."""
    try:
        import sentencepiece
    except ImportError as error:
        raise UserError("learning subwords needs sentencepiece: bash scripts/setup.sh asr") from error
    return sentencepiece


def describe(utterances: Sequence[Utterance], transcripts: Sequence[str], labels: Sequence[str], config: Config) -> str:
    """One line: labels and output frames an utterance, and how many utterances CTC cannot align."""
    inputs = config.input_train
    targets = [encode(text, labels) for text in transcripts]
    frames = [output_frames(u.duration, inputs.features, config.stride) for u in utterances]
    impossible = sum(frames_needed(target) > there for target, there in zip(targets, frames, strict=True))
    n_labels, n_characters, n_frames = (
        sum(counts) / len(targets) for counts in (map(len, targets), map(len, transcripts), frames)
    )
    return (
        f"{len(labels)} labels; {n_labels:.1f} an utterance in the mean ({n_characters:.1f} characters) on "
        f"{n_frames:.0f} output frames (stride {config.stride}); "
        f"CTC cannot align {impossible} of {len(targets)} utterances"
    )


if __name__ == "__main__":
    run_main(main)
