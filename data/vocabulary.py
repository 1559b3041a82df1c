"""Trains a WordPiece vocabulary on formatted text, for corpora that no published vocabulary fits.

    python -m data.vocabulary --input_files FILE[,FILE...] --output vocab.txt --vocab_size 8192
    --do_lower_case 1

The file has one token a line, [PAD] first (BERT pads with id 0), and is the same for every run on the same
text.
"""

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.trainers import WordPieceTrainer

from data.sharding import input_list, read_documents
from data.stage import fingerprint, make_file
from runkit.errors import UserError, run_main

SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
# Letters beyond the most frequent ones become [UNK]: the tail of a multilingual corpus has thousands.
MAX_LETTERS = 1000


def train_vocabulary(files: Sequence[Path], vocab_size: int, do_lower_case: bool) -> list[str]:
    """The tokens in the order of their ids; fewer than vocab_size when the text has no more to learn.

    Merges by frequency, as the `tokenizers` trainer does. Its ties go by id, and it numbers the "##" letters
    in the order of a hash table that differs from run to run; so every letter is numbered here, before it
    starts. Raises UserError when there is no text or vocab_size does not hold the letters.
    """
    tokenizer = Tokenizer(WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = BertNormalizer(lowercase=do_lower_case)
    tokenizer.pre_tokenizer = BertPreTokenizer()
    letters = frequent_letters(files, tokenizer)
    if not letters:
        raise UserError(f"{', '.join(map(str, files))}: no text to train a vocabulary on")
    fixed = SPECIAL_TOKENS + ["##" + letter for letter in letters if continues_words(letter, tokenizer)]
    if vocab_size < len(fixed) + len(letters):
        raise UserError(
            f"--vocab_size {vocab_size} is too small: the letters of this text alone need {len(fixed) + len(letters)}"
        )
    trainer = WordPieceTrainer(
        vocab_size=vocab_size,
        special_tokens=fixed,
        initial_alphabet=letters,
        limit_alphabet=len(letters),
        show_progress=False,
    )
    tokenizer.train_from_iterator(read_documents(files), trainer)
    ids = tokenizer.get_vocab()
    return sorted(ids, key=ids.__getitem__)


def frequent_letters(files: Sequence[Path], tokenizer: Tokenizer) -> list[str]:
    """The MAX_LETTERS most frequent characters after normalization, sorted."""
    counts: Counter[str] = Counter()
    for document in read_documents(files):
        counts.update(tokenizer.normalizer.normalize_str(document))
    letters = [letter for letter in counts if not letter.isspace()]
    return sorted(sorted(letters, key=lambda letter: (-counts[letter], letter))[:MAX_LETTERS])


def continues_words(letter: str, tokenizer: Tokenizer) -> bool:
    """False for punctuation and Chinese characters, which always are words of their own."""
    words = tokenizer.pre_tokenizer.pre_tokenize_str(tokenizer.normalizer.normalize_str("a" + letter))
    return len(words) == 1


def write_vocabulary(files: Sequence[Path], output: Path, vocab_size: int, do_lower_case: bool) -> None:
    """Writes the vocabulary to output, unless it was made from the same text and settings."""

    def write(stream: IO[str]) -> dict[str, int]:
        tokens = train_vocabulary(files, vocab_size, do_lower_case)
        stream.writelines(token + "\n" for token in tokens)
        return {"tokens": len(tokens)}

    settings = {"vocab_size": vocab_size, "do_lower_case": do_lower_case}
    record = make_file(output, fingerprint(files), settings, write)
    if record:
        print(f"{output}: {record['tokens']} tokens")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--input_files", type=input_list, required=True, help="formatted text, separated by commas")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--vocab_size", type=int, default=8192)
    parser.add_argument("--do_lower_case", type=int, choices=(0, 1), default=1)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    write_vocabulary(arguments.input_files, arguments.output, arguments.vocab_size, bool(arguments.do_lower_case))


if __name__ == "__main__":
    run_main(main)
