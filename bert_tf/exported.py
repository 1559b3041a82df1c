"""Questions answered with what run_export wrote, by ONNX Runtime: no TensorFlow is needed.

    answerer = exported.load("OUT")
    answers, candidates = answerer.answer(to_examples({"context": "...", "questions": ["..."]}, "questions"))

Legend: B windows, S tokens.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from bert_tf.answering import Answer, Settings, answer_questions
from bert_tf.records import Feature
from bert_tf.squad import SquadExample
from bert_tf.squad_answers import Answers
from bert_tf.tokenization import FullTokenizer
from runkit.errors import UserError
from runkit.exports import check_files, onnx_session, read_metadata

# input_ids, input_mask, segment_ids, each [B,S] int32 -> start_logits, end_logits [B,S]
Model = Callable[[np.ndarray, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
ROWS = 8

MAKER = "scripts/export_bert.sh"


class ExportedAnswerer:
    """Tokenizer, model, and the choice of answers."""

    def __init__(self, folder: str | os.PathLike, model: Model, rows: int = ROWS):
        """model: wherever it runs; rows: windows it is given at a time. Raises UserError for a folder that is no export
        of a model that answers questions."""
        metadata = read_metadata(folder, ("head", "task", "settings"), MAKER)
        if metadata["head"] != "span":
            raise UserError(f"{folder} is an export for {metadata['task']}, which answers no questions")
        self.settings = Settings(**metadata["settings"])
        self.tokenizer = FullTokenizer(str(Path(folder) / "vocab.txt"), self.settings.do_lower_case)
        self.model, self.rows = model, rows

    def answer(self, examples: Sequence[SquadExample]) -> tuple[list[Answer], Answers]:
        """See answering.answer_questions."""
        return answer_questions(examples, self.tokenizer, self.settings, self.logits)

    def logits(self, features: Sequence[Feature]) -> list[np.ndarray]:
        """The logits [tokens, 2] of each feature; those of like length go through the model together."""
        lengths = [len(feature.input_ids) for feature in features]
        order = sorted(range(len(features)), key=lengths.__getitem__, reverse=True)
        outputs: list[np.ndarray] = [np.empty(0)] * len(features)
        for start in range(0, len(order), self.rows):
            indices = order[start : start + self.rows]
            logits = np.stack(self.model(*padded([features[index] for index in indices])), -1)
            for row, index in enumerate(indices):
                outputs[index] = logits[row, : lengths[index]]
        return outputs


def padded(features: Sequence[Feature]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """input_ids, input_mask and segment_ids [B,S] int32 of features, S that of the longest."""
    length = max(len(feature.input_ids) for feature in features)
    ids, mask, segments = (np.zeros((len(features), length), np.int32) for _ in range(3))
    for row, feature in enumerate(features):
        n = len(feature.input_ids)
        ids[row, :n], mask[row, :n], segments[row, :n] = feature.input_ids, 1, feature.segment_ids
    return ids, mask, segments


def load(folder: str | os.PathLike, name: str = "model.onnx", threads: int | None = None) -> ExportedAnswerer:
    """An answerer with a model of the folder. Raises UserError for files that are missing or changed."""
    check_files(folder, ("vocab.txt", name), MAKER)
    session = onnx_session(Path(folder) / name, threads)

    def model(ids: np.ndarray, mask: np.ndarray, segments: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        feed = {"input_ids": ids, "input_mask": mask, "segment_ids": segments}
        start, end = session.run(["start_logits", "end_logits"], feed)
        return start, end

    return ExportedAnswerer(folder, model)
