"""The published command line of data preparation, in front of the stages of this folder.

    python data/bertPrep.py --action download --dataset wikicorpus_en
    python data/bertPrep.py --action text_formatting --dataset wikicorpus_en
    python data/bertPrep.py --action sharding --dataset wikicorpus_en [--n_training_shards 1472 ...]
    python data/bertPrep.py --action create_tfrecord_files --dataset wikicorpus_en --max_seq_length 128
                            --max_predictions_per_seq 20 --vocab_file FILE

Downloads are those of data/datasets.py, all else is one stage of data/create_datasets_from_start.sh, whose variables
(EXECUTOR, MIRROR, DUMP_DATE, BOOKS ...) apply. Everything lands below BERT_PREP_WORKING_DIR (default: this folder).
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if not __package__:  # called by its path
    sys.path.insert(0, str(ROOT))

from data.datasets import dump_date  # noqa: E402
from runkit.errors import UserError, run_main  # noqa: E402

# The published names of data sets: what create_datasets_from_start.sh calls them, None where they are only downloaded.
DATASETS = {
    "bookscorpus": "books",
    "wikicorpus_en": "wiki_only",
    "wikicorpus_zh": None,
    "books_wiki_en_corpus": "wiki_books",
    "pubmed_baseline": "pubmed",
    "pubmed_daily_update": None,
    "pubmed_fulltext": None,
    "pubmed_open_access": None,
    "google_pretrained_weights": None,
    "nvidia_pretrained_weights": None,
    "squad": None,
    "mrpc": None,
    "sst-2": None,
    "mnli": None,
    "cola": None,
    "all": None,
}
# What a download of theirs fetches, where data/datasets.py has another name.
DOWNLOADS = {
    "books_wiki_en_corpus": ("bookscorpus", "wikicorpus_en"),
    "nvidia_pretrained_weights": ("nvidia_pretrained",),
    "all": (
        *("squad", "mrpc", "sst-2", "mnli", "cola", "google_pretrained_weights", "nvidia_pretrained"),
        *("wikicorpus_en", "wikicorpus_zh"),
    ),
}
STAGES = {"text_formatting": "formatting", "sharding": "sharding", "create_tfrecord_files": "records"}
ACTIONS = ("download", *STAGES, "create_hdf5_files")


def command(arguments: argparse.Namespace) -> tuple[list[str], dict[str, str]]:
    """(command line, variables) that do what was asked for. Raises UserError for what there is no way to do."""
    working_dir = os.environ.get("BERT_PREP_WORKING_DIR") or str(ROOT / "data")
    source = DATASETS[arguments.dataset]
    if arguments.action == "download":
        names = DOWNLOADS.get(arguments.dataset, (arguments.dataset,))
        words = [sys.executable, "-m", "data.datasets", "fetch", *names, "--data_dir", working_dir]
        for mirror in os.environ.get("MIRROR", "").split():
            words += ["--mirror", mirror]
        if date := os.environ.get("DUMP_DATE"):
            words += ["--dump_date", dump_date(date)]
        return words, {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])}
    if arguments.action == "create_hdf5_files":
        raise UserError(
            "--action create_hdf5_files: HDF5 is not written; the recipe reads TFRecords (create_tfrecord_files)"
        )
    if source is None:
        raise UserError(
            f"--action {arguments.action}: {arguments.dataset} is only downloaded; of text to pre-train on there are "
            f"{', '.join(name for name, word in DATASETS.items() if word)}"
        )
    variables = {
        "STAGES": STAGES[arguments.action],
        "BERT_PREP_WORKING_DIR": working_dir,
        "BERT_PYTHON": os.environ.get("BERT_PYTHON") or sys.executable,
        "N_PROCESSES": str(arguments.n_processes),
        "N_TRAINING_SHARDS": str(arguments.n_training_shards),
        "N_TEST_SHARDS": str(arguments.n_test_shards),
        "FRACTION_TEST_SET": str(arguments.fraction_test_set),
        "RANDOM_SEED": str(arguments.random_seed),
        "DUPE_FACTOR": str(arguments.dupe_factor),
        "MASKED_LM_PROB": str(arguments.masked_lm_prob),
        "SEQ_LENGTHS": f"{arguments.max_seq_length}:{arguments.max_predictions_per_seq}",
        "DO_LOWER_CASE": str(arguments.do_lower_case),
    }
    if arguments.vocab_file:
        variables["VOCAB_FILE"] = arguments.vocab_file
    if arguments.input_files:
        if arguments.action != "sharding":
            raise UserError(
                "--input_files: formatted text for --action sharding; other actions find their files themselves"
            )
        variables["FORMATTED_FILES"] = arguments.input_files
    return ["bash", str(ROOT / "data" / "create_datasets_from_start.sh"), source], variables


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--action", choices=ACTIONS, required=True)
    parser.add_argument("--dataset", choices=tuple(DATASETS), required=True)
    parser.add_argument("--input_files", help="formatted text to shard, separated by commas (default: the data set's)")
    parser.add_argument("--n_training_shards", type=int, default=1472, help="0: by size")
    parser.add_argument("--n_test_shards", type=int, default=1472, help="0: by size")
    parser.add_argument("--fraction_test_set", type=float, default=0.1)
    parser.add_argument("--segmentation_method", choices=("nltk",), default="nltk")
    parser.add_argument("--n_processes", type=int, default=4)
    parser.add_argument("--random_seed", type=int, default=12345)
    parser.add_argument("--dupe_factor", type=int, default=5)
    parser.add_argument("--masked_lm_prob", type=float, default=0.15)
    parser.add_argument("--max_seq_length", type=int, default=512)
    parser.add_argument("--max_predictions_per_seq", type=int, default=20)
    parser.add_argument("--do_lower_case", type=int, choices=(0, 1), default=1)
    parser.add_argument("--vocab_file", help="default: Google's (--dataset google_pretrained_weights)")
    parser.add_argument(
        "--skip_wikiextractor", type=int, choices=(0, 1), default=0, help="of no effect: text that is current is kept"
    )
    return parser.parse_args()


def main() -> int:
    words, variables = command(parse_arguments())
    return subprocess.run(words, env=os.environ | variables).returncode


if __name__ == "__main__":
    run_main(main)
