"""Fine-tunes BERT on relations (ChemProt) or clinical inference (MedNLI), as BioBERT and BLUE do, and scores it.

    python -m bert_tf.run_re --task_name=chemprot --data_dir=chemprot --bert_config_file=base/bert_config.json \
        --vocab_file=base/vocab.txt --init_checkpoint=base/bert_model.ckpt --output_dir=OUT \
        --do_train --do_eval --do_predict

output_dir gets checkpoints, eval_results.txt, test_results.tsv (which python -m bert_tf.relations scores again),
summary.json, and what the model needs to be used elsewhere. The tasks are the rows of relations.TASKS; flags: --help.
"""

import contextlib
import sys
from pathlib import Path

if __package__ in (None, ""):  # started by path: python bert_tf/run_re.py
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import bert_tf.quiet_tensorflow  # noqa: F401, I001 (first: it silences the import of TensorFlow)
import numpy as np
from absl import app, flags

from bert_tf import finetuning, glue, plan, relations, runs
from bert_tf.distributed import Distributed
from bert_tf.features import CLASS, FeatureSet
from bert_tf.losses import Classification
from bert_tf.model import BertForClassification
from runkit.errors import run_main

FLAGS = flags.FLAGS


def define_flags() -> None:
    """The published flags with their defaults; those added here say so."""
    finetuning.define_flags(
        do_lower_case=True, max_seq_length=128, train_batch_size=16, learning_rate=5e-6, num_train_epochs=3.0
    )
    finetuning.define_set_flags(8)
    flags.adopt_module_key_flags(finetuning)
    flags.DEFINE_string("task_name", "chemprot", f"one of {', '.join(relations.TASKS)}, in any case")


def main(argv: list[str]) -> None:
    """From files to scores; raises UserError for anything a user can fix."""
    runs.refuse_words(argv)
    if FLAGS.plan:
        checks = [finetuning.check_work, *finetuning.flag_checks()]
        return plan.pairs(glue.find_task(FLAGS.task_name, relations.TASKS), checks)
    finetuning.check_work()
    runs.launch(run)


def run(group: Distributed, stack: contextlib.ExitStack) -> None:
    """main's body on one of the processes; what has to be given back in the end goes on the stack."""
    task = glue.find_task(FLAGS.task_name, relations.TASKS)
    session = finetuning.open_session(group, stack, sys.modules[__name__], task.name, task.labels)
    log, output_dir = session.log, session.output_dir
    model, objective = (
        BertForClassification(session.config, task.num_labels, finetuning.initial_seed()),
        Classification(),
    )
    weights = finetuning.build_weights(session, model)

    def convert(examples):
        return glue.convert_examples(examples, task, session.tokenizer, FLAGS.max_seq_length)

    # ---------------------------------------------------------------------------------- train
    summary = {}
    if FLAGS.do_train:
        examples = glue.read_examples(task, FLAGS.data_dir, "train")
        features = finetuning.features_once(session, CLASS, finetuning.digest(examples), {}, lambda: convert(examples))
        summary = finetuning.train(session, model, weights, objective, features, len(examples))
    else:
        summary = finetuning.load_trained(session, model, weights)
    function = finetuning.build_prediction(session, model, weights, objective, CLASS)

    # ---------------------------------------------------------------------------------- evaluate
    if FLAGS.do_eval:
        features = FeatureSet(convert(glue.read_examples(task, FLAGS.data_dir, "dev")), CLASS)
        predicted = finetuning.predict(session, function, features, FLAGS.eval_batch_size, "on EVAL set")
        if predicted is not None:
            scores = score(task, features, np.stack(predicted.outputs))
            loss = predicted.sums.means()["loss"]
            results = {"eval_loss": loss, "loss": loss} | scores
            finetuning.write_eval_results(output_dir / "eval_results.txt", results | {"global_step": summary["steps"]})
            log.log((), results | {"throughput_val": predicted.figures.get("sequences_per_second", 0.0)}, echo=False)
            log.console(relations.report(task, scores))
            summary |= results | {"inference": predicted.figures}

    # ---------------------------------------------------------------------------------- predict
    if FLAGS.do_predict:
        examples = glue.read_examples(task, FLAGS.data_dir, "test")
        features = FeatureSet(convert(examples), CLASS)
        predicted = finetuning.predict(session, function, features, FLAGS.predict_batch_size, "on TEST SET")
        if predicted is not None:
            outputs = np.stack(predicted.outputs)
            glue.write_test_results(output_dir / "test_results.tsv", glue.softmax(outputs))
            log.info(f"{len(features)} predictions: {output_dir / 'test_results.tsv'}")
            summary |= {"prediction": predicted.figures}
            if all(example.label is not None for example in examples):
                scores = score(task, features, outputs)
                log.console(relations.report(task, scores))
                summary |= {"test": scores}
    if group.is_root:
        runs.close(output_dir, summary, session.log)


def score(task: glue.Task, features: FeatureSet, outputs: np.ndarray) -> dict[str, float | str]:
    """relation_metrics of outputs [F, N] against the features' labels."""
    return relations.relation_metrics(task, outputs.argmax(-1), [features[i].label for i in range(len(features))])


if __name__ == "__main__":
    define_flags()
    run_main(app.run, main)
