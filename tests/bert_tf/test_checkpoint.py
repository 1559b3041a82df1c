"""Checkpoints by name: genuine TF1 files, refusals, exact resume, and weights in the Hugging Face form."""

import json
import shutil

import numpy as np
import pytest
import tensorflow as tf

from bert_tf import checkpoint, huggingface
from bert_tf.model import (
    BertConfig,
    BertForClassification,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForTagging,
    variable_name,
)
from bert_tf.optimization import create_optimizer
from bert_tf.precision import LossScale
from runkit.background import BackgroundWriter
from runkit.errors import UserError
from runkit.store import CheckpointStore
from tests.runkit.small_disk import read_only, small_disk


def make_model(layers=1, seed=0, vocab_size=15, hidden_size=4):
    config = BertConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
        type_vocab_size=2,
    )
    return BertForPreTraining(config, seed=seed)


def named(variables):
    return {variable_name(v): v for v in variables}


def values(variables):
    return {name: v.numpy() for name, v in named(variables).items()}


def assert_same(a, b):
    assert set(a) == set(b)
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


# ---------------------------------------------------------------------------------------------- files by name
def test_write_read_list(tmp_path):
    tensors = {
        "b/kernel": tf.Variable([[1.0, 2.0], [3.0, 4.0]]),
        "global_step": tf.constant(7, tf.int64),
        "a": tf.constant([1.5], tf.float16),
    }
    checkpoint.write_tensors(tmp_path / "model.ckpt-7", tensors)
    files = sorted(p.name for p in tmp_path.iterdir())
    assert files == ["model.ckpt-7.data-00000-of-00001", "model.ckpt-7.index"]
    prefix = tmp_path / "model.ckpt-7"
    assert checkpoint.list_variables(prefix) == {"a": (1,), "b/kernel": (2, 2), "global_step": ()}
    read = checkpoint.read_tensors(prefix)
    np.testing.assert_array_equal(read["b/kernel"], [[1, 2], [3, 4]])
    assert read["global_step"] == 7 and read["global_step"].dtype == np.int64
    assert read["a"].dtype == np.float16
    assert list(checkpoint.read_tensors(prefix, ["a"])) == ["a"]
    with pytest.raises(UserError, match="does not hold c; it holds a, b/kernel, global_step"):
        checkpoint.read_tensors(prefix, ["a", "c"])


def test_a_checkpoint_may_be_named_in_many_ways(tmp_path):
    prefix = str(tmp_path / "bert_model.ckpt")
    checkpoint.write_tensors(prefix, {"a": tf.zeros(1)})
    for name in ("", ".index", ".meta", ".data-00000-of-00001"):
        assert checkpoint.resolve_prefix(prefix + name) == prefix
    assert checkpoint.resolve_prefix(tmp_path) == prefix


def test_a_folder_means_its_newest_checkpoint(tmp_path):
    for step in (9, 10, 100):
        checkpoint.write_tensors(tmp_path / f"model.ckpt-{step}", {"a": tf.zeros(1)})
    assert checkpoint.resolve_prefix(tmp_path) == str(tmp_path / "model.ckpt-100")
    # TensorFlow's own index of the folder has the last word
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-10"\n')
    assert checkpoint.resolve_prefix(tmp_path) == str(tmp_path / "model.ckpt-10")


def test_a_folder_of_a_run_means_its_newest_whole_checkpoint(tmp_path):
    store = CheckpointStore(tmp_path, keep=2)
    for step in (1, 2):
        store.save(step, lambda prefix: checkpoint.write_tensors(prefix, {"a": tf.zeros(1)}), {})
    assert checkpoint.resolve_prefix(tmp_path) == str(tmp_path / "model.ckpt-2")
    (tmp_path / "model.ckpt-2.data-00000-of-00001").write_bytes(b"")
    with pytest.warns(UserWarning, match="model.ckpt-2"):
        assert checkpoint.resolve_prefix(tmp_path) == str(tmp_path / "model.ckpt-1")


def test_several_unnumbered_checkpoints_are_ambiguous(tmp_path):
    for name in ("a", "b"):
        checkpoint.write_tensors(tmp_path / name, {"a": tf.zeros(1)})
    with pytest.raises(UserError, match="several checkpoints"):
        checkpoint.resolve_prefix(tmp_path)


def test_what_is_no_checkpoint_is_named(tmp_path):
    with pytest.raises(UserError, match="no checkpoint in the folder"):
        checkpoint.list_variables(tmp_path)
    with pytest.raises(UserError, match="nor a folder"):
        checkpoint.list_variables(tmp_path / "nowhere" / "model.ckpt-1")
    checkpoint.write_tensors(tmp_path / "model.ckpt-10", {"a": tf.zeros(1)})
    with pytest.raises(UserError, match=r"model\.ckpt-11\.index; the folder holds .*model\.ckpt-10"):
        checkpoint.list_variables(tmp_path / "model.ckpt-11")
    (tmp_path / "model.h5").write_bytes(b"x")
    with pytest.raises(UserError, match="is not a TensorFlow checkpoint"):
        checkpoint.list_variables(tmp_path / "model.h5")
    (tmp_path / "junk.index").write_bytes(b"not an index at all" * 10)
    (tmp_path / "junk.data-00000-of-00001").write_bytes(b"")
    with pytest.raises(UserError, match=r"cannot read the checkpoint .*junk"):
        checkpoint.list_variables(tmp_path / "junk")


def test_damaged_data_is_named(tmp_path):
    model = make_model()
    data = tmp_path / "m.data-00000-of-00001"
    checkpoint.write_tensors(tmp_path / "m", named(model.variables))
    whole = data.read_bytes()
    before = values(model.variables)
    for broken in (whole[: len(whole) // 2], whole[:100] + bytes([whole[100] ^ 1]) + whole[101:]):
        data.write_bytes(broken)
        with pytest.raises(UserError, match=r"cannot read the checkpoint .*/m:"):
            checkpoint.load_weights(model.variables, tmp_path / "m")
        assert_same(before, values(model.variables))
    data.unlink()
    with pytest.raises(UserError, match=r"incomplete: .*data-00000-of-00001 is missing"):
        checkpoint.load_weights(model.variables, tmp_path / "m")


def test_unwritable_place_is_named(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UserError, match="cannot write the checkpoint"):
        checkpoint.write_tensors(tmp_path / "file" / "m", {"a": tf.zeros(1)})


def test_reads_after_a_move(tmp_path):
    checkpoint.write_tensors(tmp_path / "a", {"x": tf.constant([1.0])})
    for suffix in (".index", ".data-00000-of-00001"):
        shutil.move(tmp_path / f"a{suffix}", tmp_path / f"b{suffix}")
    np.testing.assert_array_equal(checkpoint.read_tensors(tmp_path / "b")["x"], [1.0])


# ----------------------------------------------------------------------------------------------- weights only
@pytest.fixture(params=["cases/C01/checkpoint", "data/truth_tiny_bert_tf1"])
def google(request, shared):
    """A genuine TF1 checkpoint with optimizer slots, and a model of its config."""
    folder = shared / request.param
    config = BertConfig.from_json_file(folder / "bert_config.json")
    return folder, BertForPreTraining(config, seed=1)


def test_genuine_checkpoint_loads_by_name(google):
    folder, model = google
    report = checkpoint.load_weights(model.variables, folder / "bert_model.ckpt")
    assert len(report.matched) == 46 and not report.missing and not report.unused
    assert len([name for name in report.matched if name.startswith("bert/")]) == 39
    assert len(report.slots_ignored) == 93 and "global_step" in report.slots_ignored
    slots = [name for name in report.slots_ignored if name.endswith(("/adam_m", "/adam_v"))]
    assert len(slots) == 92
    text = str(report)
    assert text.startswith("initialised 46 of 46 variables from ") and "ignored 93 optimizer slots" in text
    assert "\n" not in text
    reader = tf.train.load_checkpoint(str(folder / "bert_model.ckpt"))
    for name, variable in named(model.variables).items():
        np.testing.assert_array_equal(variable, reader.get_tensor(name))


def test_encoder_alone_leaves_heads_unused(google):
    folder, model = google
    report = checkpoint.load_weights(model.bert.variables, folder)
    assert len(report.matched) == 39
    assert len(report.unused) == 7 and all(name.startswith("cls/") for name in report.unused)
    assert "not in the model: cls/predictions/output_bias" in str(report)


def test_new_head_may_be_missing_only_where_allowed(google):
    folder, model = google
    head = tf.Variable(tf.ones([2, 4]), name="cls/squad/output_weights")
    variables = [*model.bert.variables, head]
    with pytest.raises(UserError, match=r"lacks 1 of 40 variables of the model \(cls/squad/output_weights\)"):
        checkpoint.load_weights(variables, folder)
    report = checkpoint.load_weights(variables, folder, allow_missing=["cls/squad/"])
    assert report.missing == ["cls/squad/output_weights"] and len(report.matched) == 39
    assert "39 of 40" in str(report) and "initial values: cls/squad/output_weights" in str(report)
    np.testing.assert_array_equal(head, np.ones([2, 4]))


def test_slots_are_recognised_by_name(shared):
    names = json.loads((shared / "cases/C01/variable_names_biobert_style.json").read_text())
    weights = [name for name in names if not checkpoint.is_training_state(name)]
    assert weights == ["bert/embeddings/LayerNorm/beta", "bert/pooler/dense/kernel",
                       "cls/predictions/output_bias", "cls/seq_relationship/output_weights"]  # fmt: skip


@pytest.mark.parametrize(
    "name",
    ["x/kernel/adam_m", "x/kernel/adam_v", "x/kernel/accum", "x/kernel/Adam", "x/kernel/Adam_1", "x/BERTAdam",
     "x/kernel/AdamWeightDecayOptimizer_1", "global_step", "local_step", "batch_finite", "beta1_power",
     "beta2_power_1", "loss_scale/current_loss_scale", "current_loss_scale", "loss_scale", "good_steps",
     "_CHECKPOINTABLE_OBJECT_GRAPH"],
)  # fmt: skip
def test_training_state_of_known_programs(name):
    assert checkpoint.is_training_state(name)


def test_no_weight_is_taken_for_training_state():
    assert not any(map(checkpoint.is_training_state, named(make_model().variables)))


def test_wrong_checkpoints_are_refused_and_change_nothing(tmp_path):
    model = make_model(layers=2)
    before = values(model.variables)

    def refused(other, match):
        checkpoint.write_tensors(tmp_path / "other", other)
        with pytest.raises(UserError, match=match):
            checkpoint.load_weights(model.variables, tmp_path / "other")
        assert_same(before, values(model.variables))

    refused({"resnet/conv": tf.zeros(1)}, "no BERT checkpoint with Google's names, it holds resnet/conv")
    refused({"global_step": tf.zeros([], tf.int64)}, "no weights at all")
    refused(named(make_model(layers=1).variables), "the model has 2 layers and the checkpoint 1")
    refused(named(make_model(layers=3).variables), "the model has 2 layers and the checkpoint 3")
    refused(named(make_model(layers=2).bert.variables), "an encoder without this head")
    wide = make_model(layers=2, hidden_size=8)
    refused(named(wide.variables), r"embeddings is \[15, 4\] in the model and \[15, 8\] in the checkpoint")
    lacking = named(make_model(layers=2).variables)
    del lacking["bert/encoder/layer_0/output/dense/bias"]
    refused(lacking, r"lacks 1 of 46 variables of the model \(bert/encoder/layer_0/output/dense/bias\)")


def test_half_precision_checkpoint_is_converted(tmp_path):
    model, other = make_model(), make_model(seed=5)
    halves = {name: tf.cast(v, tf.bfloat16) for name, v in named(other.variables).items()}
    checkpoint.write_tensors(tmp_path / "half", halves)
    checkpoint.load_weights(model.variables, tmp_path / "half")
    assert_same(values(model.variables), {name: tf.cast(v, tf.float32).numpy() for name, v in halves.items()})


# ---------------------------------------------------------------------------------------------- heads of tasks
def tiny_config():
    return make_model().config


def test_pretrained_checkpoint_starts_any_task(tmp_path):
    pretrained = make_model(seed=3)
    checkpoint.write_tensors(tmp_path / "m", named(pretrained.variables))
    for model, head, unused in (
        (BertForQuestionAnswering(tiny_config(), 1), "cls/squad/", 2 + 7),
        (BertForClassification(tiny_config(), 3, 1), "output_", 7),
        (BertForTagging(tiny_config(), 3, 1), "output_", 2 + 7),
    ):
        assert head == model.HEAD
        before = values(model.variables)
        report = checkpoint.load_weights(model.variables, tmp_path / "m", allow_missing=[head])
        after = values(model.variables)
        assert sorted(report.missing) == [
            f"{head.removesuffix('output_')}output_{part}" for part in ("bias", "weights")
        ]
        assert len(report.unused) == unused and "left at their initial values" in str(report)
        assert_same({n: after[n] for n in report.missing}, {n: before[n] for n in report.missing})
        assert_same({n: after[n] for n in report.matched}, {n: values(pretrained.variables)[n] for n in report.matched})


def test_head_of_another_number_of_labels(tmp_path):
    checkpoint.write_tensors(tmp_path / "m", named(BertForClassification(tiny_config(), 3, 5).variables))
    model = BertForClassification(tiny_config(), 2, 1)
    before = values(model.variables)
    with pytest.raises(UserError, match="was fine-tuned for 3 labels, and this task has 2"):
        checkpoint.load_weights(model.variables, tmp_path / "m", allow_missing=["output_"])
    assert_same(values(model.variables), before)
    report = checkpoint.load_weights(model.variables, tmp_path / "m", allow_other_shape=["output_"])
    assert sorted(report.other_shape) == ["output_bias", "output_weights"] and not report.missing
    assert len(report.matched) == len(before) - 2 and f"{len(before) - 2} of {len(before)}" in str(report)
    assert "of another shape in it, left at their initial values: output_bias, output_weights" in str(report)
    np.testing.assert_array_equal(model.output.output_weights, before["output_weights"])
    # a config that does not fit stays an error
    wide = BertForClassification(make_model(hidden_size=8).config, 2)
    with pytest.raises(UserError, match="does not fit the model's config"):
        checkpoint.load_weights(wide.variables, tmp_path / "m")


def test_task_without_pooler_starts_no_classifier(tmp_path):
    checkpoint.write_tensors(tmp_path / "m", named(BertForTagging(tiny_config(), 2).variables))
    with pytest.raises(UserError, match="saved by a task without a pooler"):
        checkpoint.load_weights(BertForClassification(tiny_config(), 2).variables, tmp_path / "m")


# ------------------------------------------------------------------------------------- files that belong together
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def write_vocab(path, size):
    path.write_text("".join(f"{token}\n" for token in [*SPECIAL, *"abcdefghijklmnopqrst"][:size]))
    return path


@pytest.mark.parametrize("form", ["tensorflow", "huggingface"])
def test_files_are_compared_before_anything_is_built(tmp_path, form):
    model = make_model()
    folder = tmp_path / "weights"
    if form == "tensorflow":
        checkpoint.write_tensors(tmp_path / "weights", named(model.variables))
    else:
        huggingface.export(folder, "pretraining", model.config, values(model.variables))
    assert checkpoint.word_embedding_rows(folder) == 15
    vocab = {size: write_vocab(tmp_path / f"vocab{size}.txt", size) for size in (14, 15, 16)}
    assert checkpoint.check_files(vocab[15], model.config, folder) is None
    assert "1 rows of word embeddings will not be used" in checkpoint.check_files(vocab[14], model.config, folder)
    numbers = r"vocab16.txt has 16 lines, c.json has vocab_size 15, .*weights has 15 rows"
    with pytest.raises(UserError, match=numbers):
        checkpoint.check_files(vocab[16], model.config, folder, "c.json")
    with pytest.raises(UserError, match=r"has 15 lines, the config has vocab_size 20, .*weights has 15 rows"):
        checkpoint.check_files(vocab[15], make_model(vocab_size=20).config, folder)
    with pytest.raises(UserError, match="has 16 lines, the config has vocab_size 15: the last tokens"):
        checkpoint.check_files(vocab[16], model.config)


def test_config_beside_huggingface_weights_is_compared(tmp_path):
    model = make_model()
    huggingface.export(tmp_path / "hf", "pretraining", model.config, values(model.variables))
    vocab = write_vocab(tmp_path / "vocab.txt", 15)
    other = BertConfig(**(model.config.to_dict() | {"num_attention_heads": 4}))
    with pytest.raises(UserError, match=r"the config has num_attention_heads 4, .*config\.json has 2"):
        checkpoint.check_files(vocab, other, tmp_path / "hf")
    other = BertConfig(**(model.config.to_dict() | {"hidden_act": "gelu_exact"}))
    warning = checkpoint.check_files(vocab, other, tmp_path / "hf" / "model.safetensors")
    assert "the config has hidden_act 'gelu_exact'" in warning and "means 'gelu'" in warning


def test_no_embeddings_no_bert(tmp_path):
    checkpoint.write_tensors(tmp_path / "m", {"resnet/conv": tf.zeros(1)})
    with pytest.raises(
        UserError, match="is no BERT checkpoint: it has no bert/embeddings/word_embeddings, it holds res"
    ):
        checkpoint.word_embedding_rows(tmp_path / "m")


def test_case_c02(shared):
    case, weights = shared / "cases/C02", shared / "cases/C01/checkpoint"
    fitting = BertConfig.from_json_file(weights / "bert_config.json")
    wide = BertConfig.from_json_file(case / "bert_config_vocab20.json")
    vocab = {n: case / f"vocab_{n}_lines.txt" for n in (14, 16)}
    assert checkpoint.word_embedding_rows(weights) == 15
    with pytest.raises(UserError, match=r"has 14 lines, the config has vocab_size 20, .* has 15 rows"):
        checkpoint.check_files(vocab[14], wide, weights)
    with pytest.raises(
        UserError, match=r"vocab_16_lines\.txt has 16 lines, the config has vocab_size 15, .* has 15 rows"
    ):
        checkpoint.check_files(vocab[16], fitting, weights)
    assert "1 rows of word embeddings will not be used" in checkpoint.check_files(vocab[14], fitting, weights)
    assert checkpoint.check_files(weights / "vocab.txt", fitting, weights) is None


def test_sizes_of_case_c02(shared):
    case = shared / "cases/C02"
    rows = checkpoint.list_variables(shared / "cases/C01/checkpoint")[checkpoint.WORD_EMBEDDINGS][0]
    config = json.loads((case / "bert_config_vocab20.json").read_text())["vocab_size"]
    lines = {n: len((case / f"vocab_{n}_lines.txt").read_text().splitlines()) for n in (14, 16)}
    assert (rows, config, lines) == (15, 20, {14: 14, 16: 16})
    with pytest.raises(UserError, match="14 lines, the config has vocab_size 20, the checkpoint has 15 rows"):
        checkpoint.check_sizes(14, config, rows)
    with pytest.raises(UserError, match=r"vocab\.txt has 16 lines.* 15"):
        checkpoint.check_sizes(lines[16], rows, rows, vocab_file="vocab.txt")
    assert "1 rows of word embeddings will not be used" in checkpoint.check_sizes(lines[14], rows, rows)
    assert checkpoint.check_sizes(15, rows, rows) is None
    assert checkpoint.check_sizes(15, 15) is None
    assert "will not be used" in checkpoint.check_sizes(15, 16)
    with pytest.raises(UserError):
        checkpoint.check_sizes(16, 15)


# ----------------------------------------------------------------------------------- the whole training state
class Run:
    """A model in training on made-up gradients that depend on the step only."""

    def __init__(self, seed=0, optimizer="lamb", scaling=True, layers=1):
        self.model = make_model(layers=layers, seed=seed)
        self.optimizer = create_optimizer(optimizer, self.model.trainable_variables)
        self.loss_scale = LossScale(scaling, growth_interval=3)

    def train(self, updates):
        for _ in range(updates):
            random = np.random.default_rng(int(self.optimizer.step))
            gradients = [random.normal(size=v.shape).astype(np.float32) for v in self.optimizer.parameters]
            self.optimizer.apply(gradients, tf.constant(0.01))
            self.loss_scale.update(tf.constant(True))
        return self

    def everything(self):
        variables = [*self.model.variables, *self.optimizer.slots.values(), self.optimizer.step]
        return values(variables) | {n: v.numpy() for n, v in self.loss_scale.state.items()}

    def save(self, store, **state):
        return checkpoint.write_snapshot(store, self.snapshot(**state))

    def snapshot(self, **state):
        step = int(self.optimizer.step)
        return checkpoint.take_snapshot(step, self.model.variables, self.optimizer, self.loss_scale, state)

    def restore(self, store):
        return checkpoint.restore_training_state(store, self.model.variables, self.optimizer, self.loss_scale)


@pytest.mark.parametrize("kind", ["lamb", "adam"])
def test_resume_equals_straight_through(tmp_path, kind):
    straight = Run(optimizer=kind).train(7)
    store = CheckpointStore(tmp_path)
    prefix = Run(optimizer=kind).train(4).save(store, position=[3, 5], seed=11)
    assert prefix == tmp_path / "model.ckpt-4"

    resumed = Run(seed=99, optimizer=kind)
    assert resumed.restore(store) == {"position": [3, 5], "seed": 11}
    assert int(resumed.optimizer.step) == 4 and int(resumed.loss_scale.good_steps) == 1
    assert float(resumed.loss_scale.scale) == 2.0**16
    assert_same(resumed.train(3).everything(), straight.everything())


def test_saved_files_and_names(tmp_path):
    run = Run().train(2)
    run.save(CheckpointStore(tmp_path))
    names = checkpoint.list_variables(tmp_path / "model.ckpt-2")
    weights = set(named(run.model.variables))
    slots = {f"{name}/{slot}" for name in weights for slot in ("adam_m", "adam_v")}
    assert set(names) == weights | slots | {"global_step"} | set(run.loss_scale.state)
    step = checkpoint.read_tensors(tmp_path / "model.ckpt-2", ["global_step"])["global_step"]
    assert step == 2 and step.dtype == np.int64


def test_next_phase_takes_weights_only(tmp_path):
    first = Run().train(3)
    first.save(CheckpointStore(tmp_path))
    second = Run(seed=1)
    report = checkpoint.load_weights(second.model.variables, tmp_path)
    assert_same(values(second.model.variables), values(first.model.variables))
    assert len(report.matched) == 30 and not report.unused and len(report.slots_ignored) == 60 + 1 + 5
    assert int(second.optimizer.step) == 0
    assert not any(np.any(slot) for slot in second.optimizer.slots.values())
    assert float(second.loss_scale.scale) == 2.0**15


def test_nothing_saved_is_nothing_restored(tmp_path):
    assert Run().restore(CheckpointStore(tmp_path)) is None


@pytest.mark.parametrize("where", ["weight", "slot"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_is_never_saved_over_a_good_checkpoint(tmp_path, where, bad):
    store = CheckpointStore(tmp_path)
    run = Run().train(2)
    run.save(store)
    good = run.everything()
    run.train(1)
    broken = run.model.variables[3] if where == "weight" else run.optimizer.v[5]
    broken.assign(tf.fill(broken.shape, np.float32(bad)))
    with pytest.raises(UserError, match=rf"step 3: 1 of .*{variable_name(broken)}"):
        run.save(store)
    assert store.steps() == [2]
    run.restore(store)
    assert_same(run.everything(), good)


def test_another_model_does_not_resume(tmp_path):
    store = CheckpointStore(tmp_path)
    Run(layers=2).train(1).save(store)
    with pytest.raises(UserError, match=r"another model: 48 names .*layer_1"):
        Run(layers=1).restore(store)


@pytest.mark.parametrize("scaling", [True, False])
def test_resume_in_another_precision_starts_the_loss_scale_anew(tmp_path, scaling):
    store = CheckpointStore(tmp_path)
    saved = Run(scaling=scaling).train(3)
    saved.save(store)
    resumed = Run(scaling=not scaling, seed=4)
    resumed.restore(store)
    assert float(resumed.loss_scale.scale) == (1.0 if scaling else 2.0**15)
    assert_same(values(resumed.optimizer.slots.values()), values(saved.optimizer.slots.values()))


def test_step_must_agree():
    run = Run().train(1)
    with pytest.raises(ValueError, match="step 2"):
        checkpoint.take_snapshot(2, run.model.variables, run.optimizer, run.loss_scale, {})


@pytest.mark.parametrize("kind", ["lamb", "adam"])
def test_a_snapshot_written_while_training_goes_on_is_of_its_moment(tmp_path, kind):
    run = Run(optimizer=kind).train(2)
    then, state = run.everything(), {"records": [64]}
    then = {name: value.copy() for name, value in then.items()}
    store = CheckpointStore(tmp_path)
    snapshot = run.snapshot(**state)

    def write():  # the worst case: all changes come before the first byte is written
        run.train(3)
        for variable in [*run.model.variables, *run.optimizer.slots.values()]:
            variable.assign_add(tf.ones_like(variable))
        state["records"].append(128)
        return checkpoint.write_snapshot(store, snapshot)

    paths = []
    with BackgroundWriter() as writer:
        writer.submit(write, paths.append)
    assert paths == [tmp_path / "model.ckpt-2"] and int(run.optimizer.step) == 5
    resumed = Run(seed=9, optimizer=kind)
    assert resumed.restore(store) == {"records": [64]}
    assert_same(resumed.everything(), then)


def test_the_best_step_stays(tmp_path):
    store = CheckpointStore(tmp_path)
    run = Run()
    for best in (1, 1, 3, 3):
        checkpoint.write_snapshot(store, run.train(1).snapshot(), best)
    assert store.steps() == [3, 4]


def test_a_disk_that_refuses_keeps_the_old_checkpoint_and_says_so(tmp_path):
    with small_disk(tmp_path / "disk", 200) as folder:
        store = CheckpointStore(folder / "run")
        run = Run().train(1)
        run.save(store)
        old = run.everything()
        (folder / "other").write_bytes(bytes(shutil.disk_usage(folder).free - 3 * 4096))
        run.train(1)
        said = r"run/model\.ckpt-2: No space left on device; free some space, then run again.*as they were"
        with pytest.raises(UserError, match=said):
            run.save(store)
        with read_only(folder), pytest.raises(UserError, match=r"cannot write .*ckpt-2: Read-only file system; have"):
            run.save(store)
        with pytest.raises(UserError, match=r"cannot write the checkpoint .*other2.*No space left"):
            checkpoint.write_tensors(folder / "other2", {"x": tf.zeros(100_000)})
        resumed = Run(seed=1)
        resumed.restore(store)
        assert_same(resumed.everything(), old)
        (folder / "other").unlink()
        run.save(store)
        assert store.steps() == [2]
