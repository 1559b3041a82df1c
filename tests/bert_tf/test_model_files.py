"""What lies beside weights: found by folder or prefix, the letter case, labels taken along."""

import json

import pytest

from bert_tf.model_files import beside, carry_labels, is_lower_case, required_beside
from runkit.errors import UserError


def test_files_are_found_by_folder_and_by_prefix(tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n")
    for weights in (str(tmp_path), str(tmp_path / "model.ckpt-7")):
        assert beside(weights, "vocab.txt") == str(tmp_path / "vocab.txt")
        assert beside(weights, "labels.json") is None
        with pytest.raises(UserError, match=r"no bert_config.json beside .*; give --bert_config_file"):
            required_beside(weights, "bert_config.json", "bert_config_file")


def test_the_letter_case_is_that_of_the_files(tmp_path):
    assert is_lower_case(str(tmp_path))  # nothing says otherwise
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False}))
    assert not is_lower_case(str(tmp_path))
    (tmp_path / "labels.json").write_text(json.dumps({"do_lower_case": True}))
    assert is_lower_case(str(tmp_path))  # a run's own word counts first


def test_labels_are_taken_along(tmp_path):
    source, target = tmp_path / "a", tmp_path / "b"
    for folder in (source, target):
        folder.mkdir()
    carry_labels(str(source), str(target))
    assert not list(target.iterdir())
    (source / "labels.json").write_text(json.dumps({"task": "squad v2.0", "labels": []}))
    carry_labels(str(source), str(target))
    assert json.loads((target / "labels.json").read_text()) == {"task": "squad v2.0", "labels": []}
