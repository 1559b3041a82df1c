"""WordPiece as Google defines it, character by character: what the fast tokenizer is compared with.

    python -m tests.bert_tf.plain_wordpiece VOCAB_FILE [--cased] [--strings 1000000] [--seed 1]

compares the two on random strings; the tests do the same with fewer.
"""

import argparse
import random
import unicodedata
from collections.abc import Sequence
from pathlib import Path

from bert_tf.tokenization import FullTokenizer
from runkit.progress import Progress


def is_whitespace(char: str) -> bool:
    return char in " \t\n\r" or unicodedata.category(char) == "Zs"


def is_control(char: str) -> bool:
    return char not in "\t\n\r" and unicodedata.category(char) in ("Cc", "Cf")


def is_punctuation(char: str) -> bool:
    ascii_sign = 33 <= ord(char) <= 126 and not char.isalnum()
    return ascii_sign or unicodedata.category(char).startswith("P")


def is_ideograph(char: str) -> bool:
    ranges = "4E00-9FFF 3400-4DBF 20000-2A6DF 2A700-2B73F 2B740-2B81F 2B820-2CEAF F900-FAFF 2F800-2FA1F"
    return any(int(a, 16) <= ord(char) <= int(b, 16) for a, b in (r.split("-") for r in ranges.split()))


def reference_basic(text: str, do_lower_case: bool) -> list[str]:
    cleaned = ""
    for char in text:
        if char in "\0\ufffd" or is_control(char):
            continue
        cleaned += " " if is_whitespace(char) else f" {char} " if is_ideograph(char) else char
    words: list[str] = []
    for word in cleaned.split():
        if do_lower_case:
            decomposed = unicodedata.normalize("NFD", word.lower())
            word = "".join(char for char in decomposed if unicodedata.category(char) != "Mn")
        parts = [""]
        for char in word:
            if is_punctuation(char):
                parts += [char, ""]
            else:
                parts[-1] += char
        words += parts
    return " ".join(words).split()


def reference_wordpiece(word: str, vocab: dict[str, int]) -> list[str]:
    if len(word) > 200:
        return ["[UNK]"]
    pieces: list[str] = []
    start = 0
    while start < len(word):
        for end in range(len(word), start, -1):
            piece = ("##" if start else "") + word[start:end]
            if piece in vocab:
                break
        else:
            return ["[UNK]"]
        pieces.append(piece)
        start = end
    return pieces


def reference_tokenize(text: str, vocab: dict[str, int], do_lower_case: bool) -> list[str]:
    return [piece for word in reference_basic(text, do_lower_case) for piece in reference_wordpiece(word, vocab)]


# Characters that are cleaned, split off, folded or composed; and letters that make words.
ALPHABETS = (
    "abe ieruntheßAB",
    " \t\n\r\x0b\x0c\x1c\x1f\x85\xa0\u1680\u2003\u2028\u2029\u3000\u200b\ufeff\0\ufffd\x07",
    ".,!?;:'\"#[]^$`=“”。、‘’¿…",
    "éÉïÅŞİıΣςσǅﬃ\u0301\u0308\u0328\u1fef\u037e\u2260",
    "北京中文力が\u3099かバ한글กัดอ\uf900\U00020000\U0002f800",
)


def random_text(rng: random.Random, pieces: Sequence[str]) -> str:
    """Up to 60 characters or pieces: mostly the awkward parts of Unicode, repeated so that remembered words return."""
    parts = []
    for _ in range(rng.randrange(60)):
        kind = rng.random()
        if kind < 0.1:
            parts.append(chr(rng.choice([rng.randrange(0x300), rng.randrange(0x3000), rng.randrange(0x110000)])))
        elif kind < 0.3:
            parts.append(rng.choice(pieces) + rng.choice(("", " ")))
        else:
            parts.append(rng.choice(rng.choice(ALPHABETS)))
    return "".join(parts)


def compare(vocab_file: Path, do_lower_case: bool, n_strings: int, seed: int) -> int:
    """Asserts that ids equal the definition's on n_strings random strings; returns the number of ids compared."""
    tokenizer = FullTokenizer(vocab_file, do_lower_case)
    pieces = [token.removeprefix("##") for token in tokenizer.vocab]
    rng, n_ids = random.Random(seed), 0
    with Progress(n_strings, f"comparing, {'uncased' if do_lower_case else 'cased'}", "strings") as progress:
        for _ in range(n_strings):
            text = random_text(rng, pieces)
            expected = [tokenizer.vocab[token] for token in reference_tokenize(text, tokenizer.vocab, do_lower_case)]
            assert tokenizer.encode(text) == expected, ascii(text)
            n_ids += len(expected)
            progress.update()
    return n_ids


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("vocab_file", type=Path)
    parser.add_argument("--cased", action="store_true")
    parser.add_argument("--strings", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    n_ids = compare(arguments.vocab_file, not arguments.cased, arguments.strings, arguments.seed)
    print(f"{arguments.strings} strings, {n_ids} ids, all equal")


if __name__ == "__main__":
    main()
