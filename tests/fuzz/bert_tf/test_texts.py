"""Hostile vocabularies, configs, and files of SQuAD, GLUE, entities and relations."""

import dataclasses
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_tf import glue, huggingface, ner, relations, squad, squad_evaluate
from bert_tf.model import BertConfig
from bert_tf.tokenization import SPECIAL_TOKENS, FullTokenizer, load_vocab
from tests.fuzz.mutations import answer, fuzz, hostile_json, joined, json_bytes, mutated

VOCABULARY = "\n".join([*SPECIAL_TOKENS, *"abcdefgh", "##b", "##c", "é", "一", "the"]).encode()


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_bytes(VOCABULARY)
    return FullTokenizer(path)


@fuzz
@given(data=mutated([VOCABULARY, VOCABULARY.replace(b"\n", b"\r\n"), b"\xef\xbb\xbf" + VOCABULARY]))
def test_vocabulary(place, data):
    path = place / "vocab.txt"
    path.write_bytes(data)
    vocab = answer(lambda: load_vocab(path), path)
    if vocab is not None:  # an id for each line
        assert list(vocab.values()) == list(range(len(vocab)))
        assert set(SPECIAL_TOKENS) <= vocab.keys()
        assert len(vocab) == len(data.decode("utf-8-sig").rstrip().split("\n"))


@fuzz
@given(text=st.text(max_size=400) | st.text("a# \x00\x1c\u2028\u0300\u3000一", max_size=400))
def test_tokenizer(tokenizer, text):
    ids = tokenizer.encode(text)
    assert all(0 <= index < len(tokenizer.vocab) for index in ids)


CONFIG = {"vocab_size": 30522, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "hidden_act": "gelu"}
CONFIG |= {"hidden_dropout_prob": 0.1, "initializer_range": 0.02}
TRANSFORMERS = CONFIG | {
    "model_type": "bert",
    "architectures": ["BertModel"],
    "layer_norm_eps": 1e-12,
    "pruned_heads": {},
}


@fuzz
@given(data=hostile_json(CONFIG, TRANSFORMERS))
def test_bert_config(place, data):
    path = place / "config.json"
    path.write_bytes(data)
    config = answer(lambda: huggingface.load_config(path), path)
    if config is not None:
        assert isinstance(config, BertConfig)
        for field in dataclasses.fields(config):
            value = getattr(config, field.name)
            assert isinstance(value, str) or np.isfinite(float(value))


SQUAD = {
    "version": "2.0",
    "data": [
        {
            "title": "t",
            "paragraphs": [
                {
                    "context": "the a b c é d, the e f g h a b",
                    "qas": [
                        {"id": "1", "question": "a b?", "answers": [{"text": "a b", "answer_start": 4}]},
                        {
                            "id": "2",
                            "question": "c",
                            "answers": [{"text": "e  f", "answer_start": 3}, {"text": "", "answer_start": 0}],
                        },
                        {"id": 3, "question": "x", "answers": [], "is_impossible": True},
                    ],
                }
            ],
        }
    ],
}


@fuzz
@given(data=hostile_json(SQUAD), training=st.booleans(), version_2=st.booleans())
def test_squad(place, tokenizer, data, training, version_2):
    path = place / "squad.json"
    path.write_bytes(data)
    warnings = []

    def read():
        examples = squad.read_examples(path, training, version_2, warnings.append)
        return examples, list(squad.convert_examples(examples, tokenizer, 16, 4, 8, training))

    result = answer(read, path)
    if result is None:
        return
    examples, features = result
    for example in examples:
        if example.answer_text is not None:
            assert example.answer_text in example.context
            assert 0 <= example.start_word <= example.end_word < len(example.doc_tokens)
    for feature in features:
        assert len(feature.feature.input_ids) <= 16
        start, end = feature.feature.label
        assert 0 <= start <= end < len(feature.feature.input_ids)
    dataset = answer(lambda: squad_evaluate.read_dataset(path), path)
    n_questions = sum(1 for _ in squad.iter_questions({"data": dataset}, "x"))
    lost = sum(int(w.split(": ")[1].split()[0]) for w in warnings if "left out" in w)
    assert len(examples) + lost == n_questions  # none is skipped in silence


def test_long_contexts_take_memory_in_proportion(place):
    """A context of 200,000 tokens in 20,000 windows: a table of both would be 32 GB."""
    spans = squad.window_spans(200_000, 30, 10)
    best = answer(lambda: squad.max_context(spans), "")
    assert sum(map(np.count_nonzero, best)) == 200_000  # each token is at its best once


PREDICTIONS = {"1": "a b", "2": "", "3": "x"}


@fuzz
@given(data=hostile_json(SQUAD), predictions=hostile_json(PREDICTIONS), na=hostile_json({"1": 0.5, "2": 1, "3": 0}))
def test_squad_evaluation(place, data, predictions, na):
    files = [place / name for name in ("gold.json", "predictions.json", "na.json")]
    for path, content in zip(files, (data, predictions, na), strict=True):
        path.write_bytes(content)
    dataset = answer(lambda: squad_evaluate.read_dataset(files[0]), files[0])
    given_answers = answer(lambda: squad_evaluate._read_values(files[1], str, "text"), files[1])
    probs = answer(lambda: squad_evaluate._read_values(files[2], (int, float), "a number"), files[2])
    if dataset is None or given_answers is None:
        return
    for version in squad_evaluate.VERSIONS:
        score = partial(squad_evaluate.evaluate, dataset, given_answers, probs, version, 0.5)
        scores = answer(score, "")
        if scores is not None:
            assert all(0 <= value <= 100 for key, value in scores.items() if key in ("exact", "f1", "exact_match"))


TABLES = {
    "CoLA": b"g\t1\t*\tthe a\ng\t0\t\tb c\n",
    "MRPC": '\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t1\t2\tthe "a\tb\n0\t3\t4\tc\td\n'.encode(),
    "STS-B": b"sentence1\tsentence2\tscore\nthe\ta\t1.5\nb\tc\t5.000\n",
    "MNLI": b"sentence1\tsentence2\tgold_label\na\tb\tneutral\n\nc\td\tentailment\n",
}


@fuzz
@pytest.mark.parametrize("name", TABLES)
@given(data=st.data())
def test_glue(place, tokenizer, name, data):
    task = glue.TASKS[name]
    path = place / "train.tsv"
    header = TABLES[name].decode().split("\n")[0] if name != "CoLA" else "g\t1\t*\tx"
    rows = joined(header + "\n", "\n", "\t", "a", "1", "0.5", "1e300", "nan", "neutral", "\u2028", " ", most=20)
    content = data.draw(
        mutated([TABLES[name], TABLES["CoLA"], TABLES["STS-B"]]) | rows.map(f"{header}\n".encode().__add__)
    )
    path.write_bytes(content)

    def read():
        examples = glue.read_examples(task, place, "train")
        return examples, glue.convert_examples(examples, task, tokenizer, 8)

    result = answer(read, path)
    if result is not None:
        rows = [line for line in content.decode("utf-8-sig").split("\n") if line.strip()]
        assert len(result[0]) == len(rows) - (name != "CoLA")
        assert all(len(feature.input_ids) <= 8 and np.isfinite(np.float32(feature.label)) for feature in result[1])


@fuzz
@given(
    data=mutated([b"0.1\t0.9\n0.5\t0.5\n", b"1e-3\t0.5\t.2\n"])
    | joined("0.5", "1", "\t", "\n", "nan", "inf", "1e999", "-", " ", "x")
)
def test_test_results(place, data):
    path = place / "test_results.tsv"
    path.write_bytes(data)
    values = answer(lambda: glue.read_test_results(path), path)
    if values is not None:
        assert values.ndim == 2 and np.isfinite(values).all()


JSON_LINES = b"".join(
    b'{"gold_label": "%s", "sentence1": "a b", "sentence2": "c"}\n' % label for label in (b"neutral", b"entailment")
)
CHEMPROT = b"1\ta b c\tTrue\tCPR:3\n2\tthe a\tFalse\tx\n"


@fuzz
@given(
    lines=mutated([JSON_LINES]) | hostile_json({"gold_label": "neutral", "sentence1": "a", "sentence2": "b"}),
    table=mutated([CHEMPROT, JSON_LINES]),
)
def test_relations(place, tokenizer, lines, table):
    for task, name, content in (("MedNLI", "train.jsonl", lines), ("ChemProt", "testPosit_chem", table)):
        task = relations.TASKS[task]
        path = place / name
        path.write_bytes(content)
        examples = answer(partial(glue.read_examples, task, place, "train" if name == "train.jsonl" else "test"), path)
        if examples is not None:
            rows = [line for line in content.decode("utf-8-sig").split("\n") if line.strip()]
            assert len(examples) == len(rows)
            glue.convert_examples(examples, task, tokenizer, 8)
        labels = answer(partial(relations.read_answers, task, path), path)
        assert labels is None or all(0 <= label < task.num_labels for label in labels)


ENTITIES = b"a\tB\nb\tI\nthe\tO\n\nc\tO\n\nd  B-x\n"


@fuzz
@given(data=mutated([ENTITIES, "###x\né\tO\n \na\u00a0b\tB\n".encode()]), name=st.sampled_from(sorted(ner.TASKS)))
def test_ner(place, tokenizer, data, name):
    path = place / "train.tsv"
    path.write_bytes(data)
    task = ner.TASKS[name]
    sentences = answer(lambda: ner.read_file(task, path), path)
    if sentences is not None:
        lines = [line for line in data.decode("utf-8-sig").split("\n") if line.strip()]
        words = [line for line in lines if not (task.comment and line.startswith(task.comment))]
        assert sum(len(sentence.words) for sentence in sentences) == len(words)
        features, places = ner.convert_sentences(sentences, task, tokenizer, 6)
        assert [len(sentence) for sentence in places] == [len(sentence.words) for sentence in sentences]
        assert all(0 < label < task.num_labels for feature in features for label in feature.label)


# ------------------------------------------------------------------------------------- minimal inputs of faults found
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 10**400], ids=["nan", "inf", "huge"])
@pytest.mark.parametrize("key", ["initializer_range", "hidden_dropout_prob", "hidden_size"])
def test_extreme_numbers_in_a_config_are_refused(place, key, value):
    path = place / "config.json"
    path.write_bytes(json_bytes(CONFIG | {key: value}))
    assert answer(lambda: huggingface.load_config(path), path) is None


@pytest.mark.parametrize("score", ["1e300", "nan", "inf"])
def test_extreme_scores_are_refused(place, score):
    path = place / "train.tsv"
    path.write_text(f"sentence1\tsentence2\tscore\na\tb\t{score}\n")
    assert answer(lambda: glue.read_examples(glue.TASKS["STS-B"], place, "train"), path) is None


@pytest.mark.parametrize("text", ["nan\t1\n", "1\tinf\n"])
def test_extreme_probabilities_are_refused(place, text):
    path = place / "test_results.tsv"
    path.write_text(text)
    assert answer(lambda: glue.read_test_results(path), path) is None
