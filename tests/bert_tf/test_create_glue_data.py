"""Records of a GLUE task: names, contents, what is left out."""

from pathlib import Path

import pytest

from bert_tf import create_glue_data
from bert_tf.features import CLASS, read_features
from bert_tf.glue import TASKS
from bert_tf.tokenization import SPECIAL_TOKENS
from runkit.errors import UserError
from tests.bert_tf.mains import run_here


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    (tmp_path / "train.tsv").write_text("x\t1\t\ta b\nx\t0\t*\tb\n")
    (tmp_path / "test.tsv").write_text("index\tsentence\n0\tb a\n")
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, "a", "b"]) + "\n")
    return tmp_path


def test_records_under_the_published_names(data_dir, capsys):
    values = {"data_dir": data_dir, "task_name": "cola", "vocab_file": data_dir / "vocab.txt", "max_seq_length": 8}
    run_here(create_glue_data, values | {"verbose_logging": True})
    folder = data_dir / "final_tfrecords_sharded"
    assert sorted(path.name for path in folder.iterdir()) == ["colapredict.tf_record", "colatrain.tf_record"]
    features = read_features(folder / "colatrain.tf_record", CLASS, 8)
    read = [(list(f.input_ids), list(f.segment_ids), int(f.label)) for f in (features[0], features[1])]
    assert read == [([2, 5, 6, 3], [0] * 4, 1), ([2, 6, 3], [0] * 3, 0)]
    printed = capsys.readouterr().out
    assert "train-0: [CLS] a b [SEP] (label: 1, id 1)" in printed
    assert f"not in {data_dir}, left out: the dev set" in printed


def test_names_and_refusals(data_dir, tmp_path):
    assert create_glue_data.record_name(TASKS["MNLI"], "dev_mismatched") == "mnlieval_mismatched.tf_record"
    values = {"data_dir": data_dir, "task_name": "rte", "vocab_file": data_dir / "vocab.txt"}
    with pytest.raises(UserError, match="no file of SST-2 in this folder"):
        run_here(create_glue_data, values | {"task_name": "sst-2", "data_dir": tmp_path / "none"})
