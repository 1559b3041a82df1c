"""Fine-tunes BERT on a GLUE task, scores its development sets, and writes predictions for its test sets.

    python -m bert_tf.run_classifier --task_name=MRPC --data_dir=glue/MRPC --bert_config_file=base/bert_config.json \
        --vocab_file=base/vocab.txt --init_checkpoint=base/bert_model.ckpt --output_dir=OUT --do_train --do_eval

output_dir gets checkpoints, eval_results.txt, test_results.tsv, GLUE's submission files, summary.json, and what the
model needs to be used elsewhere. The tasks are the rows of glue.TASKS; flags: --help.
"""

import contextlib
import sys
from pathlib import Path

if __package__ in (None, ""):  # started by path: python bert_tf/run_classifier.py
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import bert_tf.quiet_tensorflow  # noqa: F401, I001 (first: it silences the import of TensorFlow)
import numpy as np
from absl import app, flags

from bert_tf import finetuning, glue, plan, runs
from bert_tf.distributed import Distributed
from bert_tf.features import CLASS, VALUE, FeatureSet
from bert_tf.losses import Classification, Regression
from bert_tf.model import BertForClassification
from runkit.errors import UserError, run_main

FLAGS = flags.FLAGS


def define_flags() -> None:
    """The published flags with their defaults; those added here say so."""
    finetuning.define_flags(
        do_lower_case=True, max_seq_length=128, train_batch_size=32, learning_rate=5e-5, num_train_epochs=3.0
    )
    finetuning.define_set_flags(8)
    flags.adopt_module_key_flags(finetuning)
    flags.DEFINE_string("task_name", None, f"one of {', '.join(glue.TASKS)}, in any case", required=True)
    flags.DEFINE_string("optimizer_type", "lamb", "lamb (NVLAMB) or adam, in any case")


def main(argv: list[str]) -> None:
    """From files to scores; raises UserError for anything a user can fix."""
    runs.refuse_words(argv)
    if FLAGS.plan:
        checks = [finetuning.check_work, *finetuning.flag_checks()]
        return plan.pairs(glue.find_task(FLAGS.task_name), checks, FLAGS.optimizer_type)
    finetuning.check_work()
    runs.launch(run)


def run(group: Distributed, stack: contextlib.ExitStack) -> None:
    """main's body on one of the processes; what has to be given back in the end goes on the stack."""
    task = glue.find_task(FLAGS.task_name)
    labels = [] if task.labels is None else task.labels
    session = finetuning.open_session(group, stack, sys.modules[__name__], task.name, labels, FLAGS.optimizer_type)
    dev_splits = available(session, task, task.dev_splits) if FLAGS.do_eval else []
    test_splits = available(session, task, task.test_splits) if FLAGS.do_predict else []
    # All are read before the training: a broken file is found at once.
    sets = {split: glue.read_examples(task, FLAGS.data_dir, split) for split in (*dev_splits, *test_splits)}
    model = BertForClassification(session.config, task.num_labels, finetuning.initial_seed())
    objective, kind = (Regression(), VALUE) if task.labels is None else (Classification(), CLASS)
    weights = finetuning.build_weights(session, model)

    def convert(examples):
        return glue.convert_examples(examples, task, session.tokenizer, FLAGS.max_seq_length)

    # ---------------------------------------------------------------------------------- train
    summary = {}
    if FLAGS.do_train:
        examples = glue.read_examples(task, FLAGS.data_dir, "train")
        features = finetuning.features_once(session, kind, finetuning.digest(examples), {}, lambda: convert(examples))
        summary = finetuning.train(session, model, weights, objective, features, len(examples), FLAGS.optimizer_type)
    else:
        summary = finetuning.load_trained(session, model, weights)
    function = finetuning.build_prediction(session, model, weights, objective, kind)

    # ---------------------------------------------------------------------------------- evaluate
    if FLAGS.do_eval:
        results = {"global_step": summary["steps"]}
        for split in dev_splits:
            features = FeatureSet(convert(sets[split]), kind)
            predicted = finetuning.predict(session, function, features, FLAGS.eval_batch_size, "on EVAL set")
            if predicted is None:
                continue
            scores = glue.metrics(task, glue.decide(task, np.stack(predicted.outputs)), labels_of(features))
            loss = predicted.sums.means()["loss"]
            suffix = split.removeprefix("dev")  # "" or "_mismatched"
            results |= {f"{key}{suffix}": value for key, value in ({"eval_loss": loss, "loss": loss} | scores).items()}
            summary |= {f"inference{suffix}": predicted.figures}
        if group.is_root:
            finetuning.write_eval_results(session.output_dir / "eval_results.txt", results)
        session.log.log((), {key: value for key, value in results.items() if key != "global_step"}, echo=False)
        for key in sorted(results):
            session.log.console(f"  {key} = {results[key]:.6g}")
        summary |= {key: value for key, value in results.items() if key != "global_step"}

    # ---------------------------------------------------------------------------------- predict
    if FLAGS.do_predict:
        for split in test_splits:
            features = FeatureSet(convert(sets[split]), kind)
            predicted = finetuning.predict(session, function, features, FLAGS.predict_batch_size, "on TEST SET")
            if predicted is None:
                continue
            outputs = np.stack(predicted.outputs)
            target = session.output_dir / f"test_results{split.removeprefix('test')}.tsv"
            glue.write_test_results(target, outputs if task.labels is None else glue.softmax(outputs))
            submission = glue.write_submission(session.output_dir, task, split, glue.decide(task, outputs))
            session.log.info(f"{len(features)} predictions: {target}" + (f", {submission}" if submission else ""))
            figures = dict(predicted.figures)
            if all(example.label is not None for example in sets[split]):
                figures |= glue.metrics(task, glue.decide(task, outputs), labels_of(features))
                session.log.console("  ".join(f"{key} = {figures[key]:.6g}" for key in task.metrics))
            summary |= {f"prediction{split.removeprefix('test')}": figures}
    if group.is_root:
        runs.close(session.output_dir, summary, session.log)


def available(session, task: glue.Task, splits: tuple[str, ...]) -> list[str]:
    """The first of the splits, and those of the others whose files are there; says which are not."""
    if not splits:
        raise UserError(f"{task.name} has no such set; it has {', '.join(task.splits)}")
    missing = [split for split in splits[1:] if glue.find_files(task, FLAGS.data_dir, split) is None]
    if missing:
        session.log.info(f"not in {FLAGS.data_dir}, left out: {', '.join(missing)}")
    return [split for split in splits if split not in missing]


def labels_of(features: FeatureSet) -> list:
    return [features[index].label for index in range(len(features))]


if __name__ == "__main__":
    define_flags()
    run_main(app.run, main)
