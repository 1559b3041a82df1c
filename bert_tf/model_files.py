"""The files that belong to a model's weights and lie beside them: vocabulary, configuration, labels."""

import os
from pathlib import Path

from runkit.errors import UserError
from runkit.files import read_json, write_json


def beside(weights: str, name: str) -> str | None:
    """The file of this name in the folder of the weights; None where there is none."""
    path = os.path.join(weights if os.path.isdir(weights) else os.path.dirname(weights), name)
    return path if os.path.isfile(path) else None


def required_beside(weights: str, name: str, flag: str) -> str:
    """As beside; raises UserError where there is none."""
    path = beside(weights, name)
    if path is None:
        raise UserError(f"there is no {name} beside {weights}; give --{flag}")
    return path


def carry_labels(source: str, directory: str) -> None:
    """Takes a run's labels.json along, which tells our programs the task (of SQuAD, the version)."""
    path = beside(source, "labels.json")
    if path is not None:
        write_json(Path(directory, "labels.json"), read_json(path))


def is_lower_case(weights: str) -> bool:
    """What a run's labels.json or a tokenizer_config.json beside the weights says of the vocabulary; else True."""
    for name in ("labels.json", "tokenizer_config.json"):
        path = beside(weights, name)
        content = read_json(path) if path else None
        if isinstance(content, dict) and isinstance(content.get("do_lower_case"), bool):
            return content["do_lower_case"]
    return True
