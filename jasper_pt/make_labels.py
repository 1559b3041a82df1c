"""The labels of a language, from what its manifests hold: the letters and marks in them, and the blank between words.

    python -m jasper_pt.make_labels data/train.json data/dev.json [--dataset_dir DATA] --output labels.txt

The table says how often each character comes, what the rules for transcripts make of it (lower case, composed letters,
one apostrophe), and which are rare: a letter that comes a few times is mostly of a foreign name, or a mistake.
"""

import argparse
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from jasper_pt.manifest import read_manifest
from jasper_pt.text import APOSTROPHES, lower_case
from runkit.errors import UserError, run_main
from runkit.files import atomic_open
from runkit.tables import text_table

RARE = 10


class Inventory(NamedTuple):
    characters: Counter[str]  # behind the rules
    words: dict[str, str]  # a word that holds it, by character
    changes: Counter[tuple[str, str]]  # from, to
    inner_apostrophes: int  # between two letters


def take_stock(texts: Iterable[str], dotless_i: bool = False) -> Inventory:
    """Counts characters as the rules for any alphabet leave them (jasper_pt.text.normalize_any), and what these rules
    change."""
    characters: Counter[str] = Counter()
    changes: Counter[tuple[str, str]] = Counter()
    words: dict[str, str] = {}
    inner = 0
    for text in texts:
        composed = unicodedata.normalize("NFC", text)
        if composed != text:
            changes["decomposed letters", "composed (NFC)"] += 1
        for word in composed.split():
            low = lower_case(word, dotless_i).translate(APOSTROPHES)
            if low != word:
                changes.update((a, lower_case(a, dotless_i).translate(APOSTROPHES)) for a in word
                               if lower_case(a, dotless_i).translate(APOSTROPHES) != a)  # fmt: skip
            for index, character in enumerate(low):
                characters[character] += 1
                words.setdefault(character, word)
                inner += character == "'" and low[index - 1 : index].isalpha() and low[index + 1 : index + 2].isalpha()
    return Inventory(characters, words, changes, inner)


def choose_labels(inventory: Inventory, min_count: int = 1) -> tuple[str, ...]:
    """The blank, an apostrophe where one stands between letters, and letters and marks in the order of their code
    points. Raises UserError where there are none."""
    letters = sorted(
        c for c, count in inventory.characters.items() if unicodedata.category(c)[0] in "LM" and count >= min_count
    )
    if not letters:
        raise UserError(f"no letter comes {min_count} times in these transcripts: are they in the manifests?")
    return (" ", *(["'"] if inventory.inner_apostrophes >= min_count else []), *letters)


def table(inventory: Inventory, labels: Sequence[str]) -> str:
    """Every character, the most frequent first, and what becomes of it."""
    rows = []
    for character, count in inventory.characters.most_common():
        fate = "label" if character in labels else "dropped"
        if character in labels and count < RARE:
            fate = "label, RARE"
        elif character.isdigit():
            fate = "dropped: WRITE NUMBERS AS WORDS"
        name = unicodedata.name(character, f"U+{ord(character):04X}")
        rows.append([character, name, count, fate, inventory.words[character]])
    return text_table(rows, ["character", "name", "count", "becomes", "for example in"])


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make_labels", description=__doc__.partition("\n")[0])
    flag = parser.add_argument
    flag("manifests", nargs="+", help="manifests whose transcripts are looked at")
    flag("--dataset_dir", help="folder that paths in the manifests start from; default: each manifest's own")
    flag("--output", type=Path, required=True, help="the labels, one a line, for --labels of run_training")
    flag("--min_count", type=int, default=1, help="leave out what comes less often")
    flag("--dotless_i", action="store_true", help="Turkish and Azerbaijani: I and i are different letters")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_arguments(argv)
    texts = [utterance.transcript for path in args.manifests for utterance in read_manifest(path, args.dataset_dir)]
    inventory = take_stock(texts, args.dotless_i)
    labels = choose_labels(inventory, args.min_count)
    print(table(inventory, labels))
    for (before, after), count in inventory.changes.most_common():
        print(f"changed: {before} -> {after} x {count}")
    with atomic_open(args.output, "w") as stream:
        stream.write("".join(f"{label}\n" for label in labels))
    print(f"written: {args.output}, {len(labels)} labels: {''.join(labels)!r}")


if __name__ == "__main__":
    run_main(main)
