"""Names of the data folders, in one place: what the data stages write is what the launchers find.

    <root>/download  extracted                                        what the downloaders leave
    <root>/formatted_one_article_per_line/<dataset>_one_article_per_line.txt, of books <dataset>_one_book_per_line.txt
    <root>/sharded/<dataset>/{training,test}/<dataset>_{training,test}_<i>.txt
    <root>/tfrecord/<config>/<dataset>/{training,test}/<dataset>_{training,test}_<i>.tfrecord
    <root>/vocab/<dataset>/vocab.txt                                  where no published vocabulary is used

    python -m data.layout config_name --max_seq_length 128 --max_predictions_per_seq 20 --sharded FOLDER
    python -m data.layout find --data_dir data --max_seq_length 128 --max_predictions_per_seq 20 [--source X]

`find` prints two lines, `training <folder>[,<folder>...]` and `test <folder>[,<folder>...]`.
"""

import argparse
import re
from pathlib import Path

from runkit.errors import UserError, run_main
from runkit.files import read_json

SPLITS = ("training", "test")
MANIFEST = "manifest.json"  # in a folder of shards or records: written last, so one without it is not complete
# Where several corpora are there and none is named, the published ones come first.
PREFERRED_DATASETS = ("books_wiki_en_corpus", "wikicorpus_en")
MAKE_DATA = "bash data/create_datasets_from_start.sh"


def dataset_name(text: str) -> str:
    """A name that can be part of file names, and of lists separated by commas or blanks; for argparse."""
    if not re.fullmatch(r"\w[\w.-]*", text):
        raise argparse.ArgumentTypeError(f"{text!r}: use letters, digits, '_', '-' and '.' only")
    return text


def formatted_file(root: Path, dataset: str, unit: str = "article") -> Path:
    """unit: what stands on a line, "article" or (of books, as published) "book"."""
    return root / "formatted_one_article_per_line" / f"{dataset}_one_{unit}_per_line.txt"


def sharded_folder(root: Path, dataset: str) -> Path:
    return root / "sharded" / dataset


def vocab_file(root: Path, dataset: str) -> Path:
    return root / "vocab" / dataset / "vocab.txt"


def tfrecord_folder(root: Path, config: str, dataset: str) -> Path:
    return root / "tfrecord" / config / dataset


def config_name(
    max_seq_length: int,
    max_predictions_per_seq: int,
    n_training_shards: int,
    do_lower_case: bool = True,
    masked_lm_prob: float = 0.15,
    random_seed: int = 12345,
    dupe_factor: int = 5,
    fraction_test_set: float = 0.1,
) -> str:
    """The <config> part of a TFRecord folder: the published naming of bertPrep.py, which other tools parse.

    The test share is in whole percent, rounded down; 1e-9 takes up the float error of 100 * 0.29.
    """
    return (
        f"lower_case_{int(do_lower_case)}_seq_len_{max_seq_length}_max_pred_{max_predictions_per_seq}"
        f"_masked_lm_prob_{masked_lm_prob:g}_random_seed_{random_seed}_dupe_factor_{dupe_factor}"
        f"_shard_{n_training_shards}_test_split_{int(100 * fraction_test_set + 1e-9)}"
    )


def find_datasets(data_dir: Path, max_seq_length: int, max_predictions_per_seq: int, sources: list[str]) -> list[Path]:
    """The TFRecord folders (.../<config>/<dataset>) to train on, each with a complete training and test
    folder.

    sources: names of data sets, or <config>/<dataset> where one was made with several settings; none: the
    preferred data set that is there, or the only one. Raises UserError when there is none, a named one is
    missing, or the choice is not clear; the message lists what is there.
    """
    pattern = f"*_seq_len_{max_seq_length}_max_pred_{max_predictions_per_seq}_*/*/training/{MANIFEST}"
    folders = sorted(path.parent.parent for path in (data_dir / "tfrecord").glob(pattern))
    folders = [folder for folder in folders if (folder / "test" / MANIFEST).is_file() and _is_present(folder, data_dir)]
    if not folders:
        raise UserError(
            f"no complete TFRecords of sequence length {max_seq_length} with {max_predictions_per_seq} "
            f"predictions under {data_dir / 'tfrecord'}: make them with "
            f"'{MAKE_DATA} embedded' (needs no download) or '{MAKE_DATA} text PATH NAME'"
        )
    if not sources:
        names = sorted({folder.name for folder in folders})
        preferred = [name for name in PREFERRED_DATASETS if name in names]
        if not preferred and len(names) > 1:
            raise UserError(
                f"several corpora under {data_dir / 'tfrecord'}: {', '.join(names)}; choose with SOURCES, "
                f"for example SOURCES={names[0]} (or several, separated by commas)"
            )
        sources = (preferred or names)[:1]
    return [_only_match(source, folders) for source in sources]


def _is_present(folder: Path, data_dir: Path) -> bool:
    """False for records of an earlier text: the shards that are there now have another number.

    The number is part of the folder's name and may change with the text, so older records stay beside the new ones.
    Records without shards beside them (brought from elsewhere) count.
    """
    manifest = sharded_folder(data_dir, folder.name) / "training" / MANIFEST
    return not manifest.is_file() or f"_shard_{len(read_json(manifest)['files'])}_" in folder.parent.name


def _only_match(source: str, folders: list[Path]) -> Path:
    matches = [folder for folder in folders if source in (folder.name, f"{folder.parent.name}/{folder.name}")]
    if len(matches) == 1:
        return matches[0]
    there = "\n  ".join(f"{folder.parent.name}/{folder.name}" for folder in matches or folders)
    if matches:
        raise UserError(f"{source} was made with several settings; name one of these in SOURCES:\n  {there}")
    raise UserError(f"SOURCES names {source}, of which there are no complete TFRecords; there are:\n  {there}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    name = commands.add_parser("config_name", help="print the <config> folder name", allow_abbrev=False)
    find = commands.add_parser("find", help="print the TFRecord folders to train on", allow_abbrev=False)
    for command in (name, find):
        command.add_argument("--max_seq_length", type=int, required=True)
        command.add_argument("--max_predictions_per_seq", type=int, required=True)
    shards = name.add_mutually_exclusive_group(required=True)
    shards.add_argument("--n_training_shards", type=int)
    shards.add_argument("--sharded", type=Path, metavar="FOLDER", help="count them in this sharded/<dataset>")
    name.add_argument("--do_lower_case", type=int, choices=(0, 1), default=1)
    name.add_argument("--masked_lm_prob", type=float, default=0.15)
    name.add_argument("--random_seed", type=int, default=12345)
    name.add_argument("--dupe_factor", type=int, default=5)
    name.add_argument("--fraction_test_set", type=float, default=0.1)
    find.add_argument("--data_dir", type=Path, required=True, help="the folder that holds tfrecord/")
    find.add_argument(
        "--source",
        nargs="*",
        action="extend",
        default=[],
        metavar="NAME",
        help="data set, or <config>/<data set>",
    )
    return parser.parse_args()


def main() -> None:
    arguments = vars(parse_arguments())
    if arguments.pop("command") == "config_name":
        if sharded := arguments.pop("sharded"):
            arguments["n_training_shards"] = read_json(sharded / MANIFEST)["training"]["shards"]
        print(config_name(**arguments))
        return
    folders = find_datasets(
        arguments["data_dir"],
        arguments["max_seq_length"],
        arguments["max_predictions_per_seq"],
        arguments["source"],
    )
    for split in SPLITS:
        print(split, ",".join(str(folder / split) for folder in folders))


if __name__ == "__main__":
    run_main(main)
