"""The closing figures of a training run and its test set, in one file and one table.

    python -m jasper_pt.summary RESULTS_DIR

reads what run_training.py left in RESULTS_DIR/training and run_inference.py in RESULTS_DIR/test and, with --ema, in
RESULTS_DIR/test_ema, and writes RESULTS_DIR/summary.json.
"""

import argparse
from pathlib import Path
from typing import Any

from runkit.errors import UserError, run_main
from runkit.files import read_json, write_json
from runkit.tables import text_table

# Key of the summary: the file it comes from, its key there, its unit. Error counts are those of the raw weights.
FIGURES = {
    "wer": ("test", "wer", "%"),
    "cer": ("test", "cer", "%"),
    "wer_ema": ("test_ema", "wer", "%"),
    "cer_ema": ("test_ema", "cer", "%"),
    "insertions": ("test", "insertions", "words"),
    "deletions": ("test", "deletions", "words"),
    "substitutions": ("test", "substitutions", "words"),
    "reference_words": ("test", "reference_words", "words"),
    "utterances": ("test", "utterances", ""),
    "parameters": ("training", "parameters", ""),
    "epochs": ("training", "epochs", ""),
    "train_loss": ("training", "train_loss", "nat/utterance"),
    "dev_wer": ("training", "wer", "%"),
    "train_audio_seconds_per_second": ("training", "train_audio_seconds_per_second", "s/s"),
}
FILES = {
    "training": "training/summary.json",
    "test": "test/summary_infer.json",
    "test_ema": "test_ema/summary_infer.json",
}


def gather(results_dir: Path) -> dict[str, Any]:
    """The FIGURES. Raises UserError naming the file that is missing or lacks one."""
    contents = {source: read_json(results_dir / name) for source, name in FILES.items()}
    for source, key, _ in FIGURES.values():
        if key not in contents[source]:
            raise UserError(f"{results_dir / FILES[source]}: no {key}; run that stage again")
    return {name: contents[source][key] for name, (source, key, _) in FIGURES.items()}


def main() -> None:
    parser = argparse.ArgumentParser(prog="summary", description=__doc__.partition("\n")[0])
    parser.add_argument("results_dir", type=Path, metavar="RESULTS_DIR")
    results_dir = parser.parse_args().results_dir
    summary = gather(results_dir)
    write_json(results_dir / "summary.json", summary)
    print(text_table([[name, summary[name], unit] for name, (_, _, unit) in FIGURES.items()], ["test set", "", "unit"]))
    for curve in ("loss", "wer"):
        print(f"curve: {results_dir / 'training' / f'{curve}_curve.png'}")
    print(f"written: {results_dir / 'summary.json'}")


if __name__ == "__main__":
    run_main(main)
