"""The closing figures of a two-phase pre-training run, in one file and one table.

    python -m bert_tf.summary RESULTS_DIR

reads RESULTS_DIR/phase_1/summary.json and phase_2/summary.json, as run_pretraining.py leaves them, and
squad/summary.json of run_squad.py where fine-tuning followed, and writes RESULTS_DIR/summary.json.
"""

import argparse
from pathlib import Path

from runkit.errors import UserError, run_main
from runkit.files import read_json, write_json
from runkit.tables import text_table

PHASES = ("phase_1", "phase_2")
# unigram_masked_lm_loss: what predicting the training set's token frequencies costs on the same positions.
KEYS = (
    "steps",
    "loss",
    "initial_masked_lm_loss",
    "masked_lm_loss",
    "masked_lm_accuracy",
    "next_sentence_loss",
    "next_sentence_accuracy",
    "sequences_per_second",
    "unigram_masked_lm_loss",
)

SQUAD_KEYS = ("exact_match", "f1", "total", "HasAns_f1", "NoAns_f1", "sequences_per_second")  # percent, but the last

Summary = dict[str, dict[str, float]]


def gather(results_dir: Path) -> Summary:
    """The figures KEYS of each phase, and SQUAD_KEYS. Raises UserError naming the file that is missing or lacks one."""
    summary = {}
    for phase in PHASES:
        path = results_dir / phase / "summary.json"
        figures = read_json(path)
        missing = [key for key in KEYS if key not in figures]
        if missing:
            raise UserError(f"{path}: no {', '.join(missing)}; run that phase again with --do_eval")
        summary[phase] = {key: figures[key] for key in KEYS}
    answers = results_dir / "squad" / "summary.json"
    if answers.exists():
        figures = read_json(answers)
        summary["squad"] = {key: figures[key] for key in SQUAD_KEYS if key in figures}
    return summary


def closing_table(summary: Summary) -> str:
    """A row for each figure, a column for each phase, and below them what the losses and answers say."""
    table = text_table([[key, *(summary[phase][key] for phase in PHASES)] for key in KEYS], ["", *PHASES])
    lines = [table, "", *(_verdict(phase, summary[phase]) for phase in PHASES)]
    if scores := summary.get("squad"):
        lines.append("questions: " + ", ".join(f"{key} {value:.4g}" for key, value in scores.items()))
    return "\n".join(lines)


def _verdict(phase: str, figures: dict[str, float]) -> str:
    gain = figures["unigram_masked_lm_loss"] - figures["masked_lm_loss"]
    if gain > 0:
        return f"{phase}: masked-LM loss {gain:.3f} below that of token frequencies alone"
    return f"{phase}: masked-LM loss NOT below that of token frequencies alone: no context was learnt"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("results_dir", type=Path, metavar="RESULTS_DIR")
    results_dir = parser.parse_args().results_dir
    summary = gather(results_dir)
    write_json(results_dir / "summary.json", summary)
    print(closing_table(summary))
    print(f"written: {results_dir / 'summary.json'}")


if __name__ == "__main__":
    run_main(main)
