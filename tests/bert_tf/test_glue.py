"""GLUE's files against their descriptions, the cases from the field, metrics against their formulas."""

import json
import math
import random
from pathlib import Path

import numpy as np
import pytest

from bert_tf import glue
from bert_tf.glue import TASKS, PairExample, convert_examples, find_task, metrics, read_examples
from bert_tf.tokenization import SPECIAL_TOKENS, FullTokenizer
from runkit.errors import UserError

WORDS = "a b c d e f g h".split()


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> FullTokenizer:
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    path.write_text("\n".join([*SPECIAL_TOKENS, *WORDS]) + "\n", encoding="utf-8")
    return FullTokenizer(path)


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    return path


# ------------------------------------------------------------------------------------------------- the table
@pytest.mark.parametrize(
    ("name", "task"),
    [("mrpc", "MRPC"), ("MRPC", "MRPC"), ("cola", "CoLA"), ("sst2", "SST-2"), ("SST-2", "SST-2"), ("stsb", "STS-B")],
)
def test_names_in_any_case_with_and_without_hyphen(name, task):
    assert find_task(name).name == task


def test_unknown_task_names_the_known_ones():
    with pytest.raises(
        UserError, match=r"'snli'; there are CoLA, MRPC, MNLI, SST-2, QQP, QNLI, RTE, STS-B, WNLI, XNLI"
    ):
        find_task("snli")


def test_splits_and_outputs_of_the_tasks():
    assert TASKS["MNLI"].dev_splits == ("dev", "dev_mismatched")
    assert TASKS["MNLI"].test_splits == ("test", "test_mismatched")
    assert TASKS["XNLI"].test_splits == ()
    assert TASKS["MNLI"].labels == ("contradiction", "entailment", "neutral")
    assert [TASKS[name].num_labels for name in ("CoLA", "MNLI", "STS-B")] == [2, 3, 1]
    for task in TASKS.values():
        assert set(task.submissions) == set(task.test_splits)


# One training and one test row of each task in GLUE's layout, then what is read from them.
LAYOUTS = {
    "CoLA": ("x\t1\t\ta b", "index\tsentence\n0\ta b", "a b", None, "1"),
    "MRPC": (
        "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n0\t1\t2\ta\tb",
        "index\t#1 ID\t#2 ID\t#1 String\t#2 String\n0\t1\t2\ta\tb",
        "a",
        "b",
        "0",
    ),
    "SST-2": ("sentence\tlabel\na b\t0", "index\tsentence\n0\ta b", "a b", None, "0"),
    "QQP": (
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n5\t6\t7\ta\tb\t1",
        "id\tquestion1\tquestion2\n0\ta\tb",
        "a",
        "b",
        "1",
    ),
    "QNLI": (
        "index\tquestion\tsentence\tlabel\n0\ta\tb\tnot_entailment",
        "index\tquestion\tsentence\n0\ta\tb",
        "a",
        "b",
        "not_entailment",
    ),
    "RTE": (
        "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tentailment",
        "index\tsentence1\tsentence2\n0\ta\tb",
        "a",
        "b",
        "entailment",
    ),
    "STS-B": (
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"
        "0\tg\tf\t2012\t1\tnone\tnone\ta\tb\t3.800",
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\n"
        "0\tg\tf\t2012\t1\tnone\tnone\ta\tb",
        "a",
        "b",
        "3.800",
    ),
    "WNLI": (
        "index\tsentence1\tsentence2\tlabel\n0\ta\tb\t1",
        "index\tsentence1\tsentence2\n0\ta\tb",
        "a",
        "b",
        "1",
    ),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_glue_layouts(tmp_path, name):
    train, test, text_a, text_b, label = LAYOUTS[name]
    for split, text in (("train", train), ("dev", train), ("test", test)):
        write(tmp_path, f"{split}.tsv", text + "\n")
    for split in ("train", "dev"):
        assert read_examples(TASKS[name], tmp_path, split) == [PairExample(f"{split}-0", text_a, text_b, label)]
    assert read_examples(TASKS[name], tmp_path, "test") == [PairExample("test-0", text_a, text_b, None)]


def test_xnli_reads_chinese_rows_and_its_spelling_of_contradiction(tmp_path):
    write(tmp_path, "multinli/multinli.train.zh.tsv", "premise\thypo\tlabel\n甲\t乙\tcontradictory\n")
    header = "language\tgold_label\ts1b\ts2b\ts1p\ts2p\tsentence1\tsentence2\n"
    row = "{}\tneutral\t\t\t\t\ta\tb\n"
    write(tmp_path, "xnli.dev.tsv", header + row.format("de") + row.format("zh"))
    assert read_examples(TASKS["XNLI"], tmp_path, "train") == [PairExample("train-0", "甲", "乙", "contradiction")]
    assert read_examples(TASKS["XNLI"], tmp_path, "dev") == [PairExample("dev-0", "a", "b", "neutral")]
    with pytest.raises(UserError, match="XNLI has no split 'test'; it has train, dev"):
        read_examples(TASKS["XNLI"], tmp_path, "test")


# ------------------------------------------------------------------------------------------- rows that are wrong
MRPC_HEADER = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"


def test_quotes_are_letters_and_bom_and_cr_go(tmp_path):
    text = "\ufeff" + MRPC_HEADER + '1\t1\t2\t"open\tb\n0\t1\t2\tc "\td\n'
    write(tmp_path, "train.tsv", text.replace("\n", "\r\n"))
    examples = read_examples(TASKS["MRPC"], tmp_path, "train")
    assert [(e.text_a, e.text_b, e.label) for e in examples] == [('"open', "b", "1"), ('c "', "d", "0")]


@pytest.mark.parametrize(
    ("task", "text", "message"),
    [
        ("MRPC", MRPC_HEADER + "1\t1\t2\ta\tb\n\n0\t3\t4\tonly\n", r"train\.tsv:4: 4 columns .*expected .*'#2 String'"),
        ("MRPC", MRPC_HEADER + "2\t1\t2\ta\tb\n", r"train\.tsv:2: '2' is no label of MRPC; known labels: '0', '1'"),
        ("MRPC", MRPC_HEADER, r"train\.tsv: no examples below the header"),
        ("MRPC", "1\t1\t2\ta\tb\n", r"train\.tsv:1: no column '#1 String', '#2 String', 'Quality'"),
        ("MRPC", MRPC_HEADER.replace("\t", ","), r"train\.tsv:1: no column .*separated by tabs"),
        ("CoLA", "", r"train\.tsv: no examples$"),
        ("CoLA", "index\tsentence\n0\ta\n", r"train\.tsv:1: 2 columns .* none of them 3; expected at least 4 columns"),
        ("CoLA", "source\tlabel\tmark\tsentence\n", r"train\.tsv:1: 'label' is no label of CoLA"),
        (
            "STS-B",
            LAYOUTS["STS-B"][0].replace("3.800", "high"),
            r"train\.tsv:2: the label 'high' of STS-B is not a num",
        ),
        ("STS-B", LAYOUTS["STS-B"][0].replace("3.800", "nan"), r"train\.tsv:2: the label 'nan' of STS-B is not a num"),
    ],
)
def test_errors_name_file_line_and_what_was_expected(tmp_path, task, text, message):
    write(tmp_path, "train.tsv", text)
    with pytest.raises(UserError, match=message):
        read_examples(TASKS[task], tmp_path, "train")


def test_missing_files_name_all_ways(tmp_path):
    with pytest.raises(UserError, match=r"no dev set of CoLA; expected dev\.tsv; or in_domain_dev\.tsv and out_of_dom"):
        read_examples(TASKS["CoLA"], tmp_path, "dev")


# ---------------------------------------------------------------------------------------- corpora as distributed
def test_raw_mrpc_without_dev_ids_takes_the_test_file_and_says_so(tmp_path, capsys):
    write(tmp_path, "msr_paraphrase_train.txt", "\ufeff" + MRPC_HEADER + "1\t1\t2\ta\tb\r\n0\t3\t4\tc\td\r\n")
    write(tmp_path, "msr_paraphrase_test.txt", "\ufeff" + MRPC_HEADER + "1\t5\t6\te\tf\r\n")
    assert [e.text_a for e in read_examples(TASKS["MRPC"], tmp_path, "train")] == ["a", "c"]
    assert capsys.readouterr().out == ""
    assert [e.text_a for e in read_examples(TASKS["MRPC"], tmp_path, "dev")] == ["e"]
    assert "no dev_ids.tsv: msr_paraphrase_test.txt serves as MRPC's dev set" in capsys.readouterr().out
    assert [e.label for e in read_examples(TASKS["MRPC"], tmp_path, "test")] == ["1"]

    write(tmp_path, "dev_ids.tsv", "3\t4\n9\t9\n")
    assert [e.guid for e in read_examples(TASKS["MRPC"], tmp_path, "train")] == ["train-0"]
    assert [e.text_a for e in read_examples(TASKS["MRPC"], tmp_path, "train")] == ["a"]
    assert [e.text_a for e in read_examples(TASKS["MRPC"], tmp_path, "dev")] == ["c"]
    assert capsys.readouterr().out == ""

    write(tmp_path, "dev_ids.tsv", "3 4\n")
    with pytest.raises(UserError, match=r"dev_ids\.tsv: every line should be two ids"):
        read_examples(TASKS["MRPC"], tmp_path, "dev")


def test_raw_cola_dev_is_both_domains_numbered_through(tmp_path):
    write(tmp_path, "in_domain_dev.tsv", "x\t1\t\ta\n")
    write(tmp_path, "out_of_domain_dev.tsv", "y\t0\t*\tb")  # no line end, like the real file
    examples = read_examples(TASKS["CoLA"], tmp_path, "dev")
    assert examples == [PairExample("dev-0", "a", None, "1"), PairExample("dev-1", "b", None, "0")]


def count(task: str, folder: Path, split: str) -> int:
    return len(read_examples(TASKS[task], folder, split))


def test_shared_corpora_have_the_rows_their_sources_name(shared):
    data = shared / "data"
    assert [count("CoLA", data / "glue_cola", split) for split in ("train", "dev")] == [8551, 527 + 516]
    assert [count("MRPC", data / "glue_mrpc", split) for split in ("train", "dev", "test")] == [4076, 1725, 1725]
    assert [count("MNLI", data / "glue_mnli_textfooler", s) for s in ("dev", "dev_mismatched")] == [1000, 1000]


def test_shared_mnli_rows_are_the_same_in_both_layouts(shared, tmp_path):
    folder = shared / "data" / "glue_mnli_textfooler"
    for split, name in (("dev", "matched"), ("dev_mismatched", "mismatched")):
        (tmp_path / f"dev_{name}.tsv").symlink_to(folder / f"derived_dev_{name}.tsv")
        assert read_examples(TASKS["MNLI"], tmp_path, split) == read_examples(TASKS["MNLI"], folder, split)


def test_shared_glue_layouts_load(shared):
    folder = shared / "data" / "glue_layout_mtdnn"
    rows = {task: [count(task, folder / task, s) for s in TASKS[task].splits] for task in ("CoLA", "MRPC", "MNLI")}
    assert rows == {"CoLA": [2, 2, 1], "MRPC": [1, 1, 1], "MNLI": [1, 1, 1, 1, 1]}
    (example,) = read_examples(TASKS["MNLI"], folder / "MNLI", "dev")
    assert example.text_a == "The new rights are nice enough" and example.label == "neutral"  # pairID 63735n
    (example,) = read_examples(TASKS["MNLI"], folder / "MNLI", "test")
    assert example.text_a.startswith("Hierbas") and example.label is None


# --------------------------------------------------------------------------------------- cases from the field
def test_case_g01_unpaired_quotes(shared):
    folder = shared / "cases" / "G01"
    expected = json.loads((folder / "expected.json").read_text())
    examples = read_examples(TASKS["MRPC"], folder, "train")
    assert len(examples) == expected["rows"]
    assert [e.label for e in examples] == expected["labels"]
    assert [examples[1].text_a, examples[1].text_b] == expected["row2"]


def test_case_g02_short_rows(shared):
    folder = shared / "cases" / "G02"
    expected = json.loads((folder / "expected.json").read_text())
    assert count("MRPC", folder / "trailing_newline", "train") == expected["trailing_newline"]
    with pytest.raises(UserError, match=r"train\.tsv:3: .*'#1 String', '#2 String'"):
        count("MRPC", folder / "missing_column", "train")
    with pytest.raises(UserError, match="no examples"):
        count("MRPC", folder / "header_only", "train")


def test_case_g04_header_rule(shared):
    folder = shared / "cases" / "G04"
    expected = json.loads((folder / "expected.json").read_text())
    assert count("CoLA", folder / "CoLA", "train") == expected["train"]
    assert count("CoLA", folder / "CoLA", "dev") == expected["dev"]
    test = read_examples(TASKS["CoLA"], folder / "CoLA", "test")
    assert len(test) == expected["test_predictions"]
    assert [e.text_a for e in test] == ["He sings.", "Sings he the.", "They run."]


# ------------------------------------------------------------------------------------------------- features
def test_encoding(tokenizer):
    cls, sep = tokenizer.vocab["[CLS]"], tokenizer.vocab["[SEP]"]
    a, b, c = (tokenizer.vocab[word] for word in "abc")
    examples = [PairExample("x-0", "a b", "c", "1"), PairExample("x-1", "a", None, None)]
    pair, single = convert_examples(examples, TASKS["MRPC"], tokenizer, 16)
    assert pair == ([cls, a, b, sep, c, sep], [0, 0, 0, 0, 1, 1], 1)
    assert single == ([cls, a, sep], [0, 0, 0], 0)


def test_single_text_is_cut_at_its_end_and_pair_at_the_longer(tokenizer):
    single = PairExample("x-0", " ".join(WORDS), None, "0")
    pair = PairExample("x-1", "a b c d e", "f g h", "0")
    one, two = convert_examples([single, pair], TASKS["CoLA"], tokenizer, 8)
    assert tokenizer.convert_ids_to_tokens(one.input_ids) == "[CLS] a b c d e f [SEP]".split()
    assert tokenizer.convert_ids_to_tokens(two.input_ids) == "[CLS] a b c [SEP] f g [SEP]".split()
    assert two.segment_ids == [0] * 5 + [1] * 3


def test_truncation_equals_popping_from_the_longer():
    choose = random.Random(1)
    for _ in range(2000):
        n_a, n_b, room = choose.randrange(60), choose.randrange(60), choose.randrange(2, 80)
        left = [n_a, n_b]
        while sum(left) > room:
            left[0 if left[0] > left[1] else 1] -= 1
        assert glue.truncated_lengths(n_a, n_b, room) == tuple(left)


def test_labels_of_classes_and_of_regression(tokenizer):
    (feature,) = convert_examples([PairExample("x-0", "a", "b", "neutral")], TASKS["MNLI"], tokenizer, 16)
    assert feature.label == 2
    (feature,) = convert_examples([PairExample("x-0", "a", "b", "3.80")], TASKS["STS-B"], tokenizer, 16)
    assert feature.label == 3.8


def test_too_short_a_sequence_is_refused(tokenizer):
    with pytest.raises(UserError, match="--max_seq_length=4: must be at least 5"):
        convert_examples([], TASKS["MRPC"], tokenizer, 4)


# -------------------------------------------------------------------------------------------------- metrics
PREDICTIONS = np.array([1, 1, 0, 0, 1, 0, 1, 1])
LABELS = np.array([1, 0, 0, 1, 1, 0, 1, 0])  # true positives 3, false positives 2, false negatives 1, negatives 2


def test_accuracy_and_f1():
    assert metrics(TASKS["MRPC"], PREDICTIONS, LABELS) == {
        "eval_accuracy": pytest.approx(5 / 8),
        "eval_f1": pytest.approx(2 * (3 / 5) * (3 / 4) / (3 / 5 + 3 / 4)),
    }
    assert list(metrics(TASKS["MNLI"], [0, 2], [0, 1]).items()) == [("eval_accuracy", 0.5)]


def test_matthews_is_the_correlation_of_the_indicators():
    assert metrics(TASKS["CoLA"], PREDICTIONS, LABELS) == {"mcc": pytest.approx(np.corrcoef(PREDICTIONS, LABELS)[0, 1])}
    assert glue.matthews_correlation(LABELS, LABELS) == 1.0
    assert glue.matthews_correlation(1 - LABELS, LABELS) == -1.0
    assert glue.matthews_correlation(np.ones(8), LABELS) == 0.0


def test_correlations():
    generator = np.random.default_rng(3)
    x, y = generator.normal(size=50), generator.normal(size=50)
    assert glue.pearson(x, y) == pytest.approx(np.corrcoef(x, y)[0, 1])
    # without ties: 1 - 6 sum d^2 / (n (n^2 - 1))
    d = np.argsort(np.argsort(x)) - np.argsort(np.argsort(y))
    assert glue.spearman(x, y) == pytest.approx(1 - 6 * np.sum(d**2) / (50 * (50**2 - 1)))
    # with ties, ranks by hand
    a, b = [3.0, 1.0, 3.0, 2.0, 3.0], [10.0, 20.0, 20.0, 5.0, 30.0]
    by_hand = np.corrcoef([4, 1, 4, 2, 4], [2, 3.5, 3.5, 1, 5])[0, 1]
    assert metrics(TASKS["STS-B"], a, b)["spearmanr"] == pytest.approx(by_hand)
    assert math.isnan(glue.pearson(np.ones(3), np.arange(3)))


def test_f1_without_positives_is_zero_and_sizes_must_agree():
    assert glue.f1_score(np.zeros(3), np.zeros(3)) == 0.0
    for predictions, labels in (([], []), ([1, 0], [1])):
        with pytest.raises(ValueError, match="must be"):
            metrics(TASKS["MRPC"], predictions, labels)


# --------------------------------------------------------------------------------------------- output files
def test_submissions(tmp_path):
    def lines(task: str, split: str, predictions) -> tuple[str, list[str]]:
        path = glue.write_submission(tmp_path, TASKS[task], split, predictions)
        return path.name, path.read_text().splitlines()

    assert lines("CoLA", "test", np.array([1, 0])) == ("CoLA.tsv", ["index\tprediction", "0\t1", "1\t0"])
    assert lines("MNLI", "test", [2]) == ("MNLI-m.tsv", ["index\tprediction", "0\tneutral"])
    assert lines("MNLI", "test_mismatched", [0]) == ("MNLI-mm.tsv", ["index\tprediction", "0\tcontradiction"])
    assert lines("RTE", "test", [1]) == ("RTE.tsv", ["index\tprediction", "0\tnot_entailment"])
    assert lines("QNLI", "test", [0])[1][1] == "0\tentailment"
    assert lines("WNLI", "test", [1])[1][1] == "0\t1"
    values = np.array([-0.2, 3.14159, 5.2], np.float32)
    assert lines("STS-B", "test", values) == ("STS-B.tsv", ["index\tprediction", "0\t0.000", "1\t3.142", "2\t5.000"])
    assert glue.write_submission(tmp_path, TASKS["XNLI"], "dev", [0]) is None


def test_test_results_are_a_line_an_example_and_come_back_exactly(tmp_path):
    path = tmp_path / "test_results.tsv"
    outputs = np.random.default_rng(0).dirichlet(np.ones(3), 5).astype(np.float32)
    glue.write_test_results(path, outputs)
    assert [len(line.split("\t")) for line in path.read_text().splitlines()] == [3] * 5
    np.testing.assert_array_equal(glue.read_test_results(path).astype(np.float32), outputs)
    for text, message in (
        ("0.5\tx\n", "r.tsv:1: not probab"),
        ("0.5\t0.5\n1\n", "r.tsv:2: 1 columns"),
        ("\n", "no prob"),
    ):
        with pytest.raises(UserError, match=message):
            glue.read_test_results(write(tmp_path, "r.tsv", text))
