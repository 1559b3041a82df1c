"""Fine-tunes BERT to tag named entities, as BioBERT does, scores the development set, and tags the test set.

    python -m bert_tf.run_ner --task_name=bc5cdr --data_dir=BC5CDR-chem --bert_config_file=base/bert_config.json \
        --vocab_file=base/vocab.txt --init_checkpoint=base/bert_model.ckpt --output_dir=OUT \
        --do_train --do_eval --do_predict

output_dir gets checkpoints, eval_results.txt, the files of ner.write_predictions, summary.json, and what the model
needs to be used elsewhere. The tasks are the rows of ner.TASKS; flags: --help.
"""

import contextlib
import sys
from pathlib import Path

if __package__ in (None, ""):  # started by path: python bert_tf/run_ner.py
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import bert_tf.quiet_tensorflow  # noqa: F401, I001 (first: it silences the import of TensorFlow)
from absl import app, flags

from bert_tf import finetuning, ner, plan, runs
from bert_tf.distributed import Distributed
from bert_tf.features import TAGS, FeatureSet
from bert_tf.losses import Tagging
from bert_tf.model import BertForTagging
from runkit.errors import run_main

FLAGS = flags.FLAGS


def define_flags() -> None:
    """The published flags with their defaults; those added here say so."""
    finetuning.define_flags(
        do_lower_case=False, max_seq_length=128, train_batch_size=64, learning_rate=5e-6, num_train_epochs=10.0
    )
    finetuning.define_set_flags(16)
    flags.adopt_module_key_flags(finetuning)
    flags.DEFINE_string("task_name", "NER", f"one of {', '.join(ner.TASKS)}, in any case; NER is bc5cdr")


def main(argv: list[str]) -> None:
    """From files to scores; raises UserError for anything a user can fix."""
    runs.refuse_words(argv)
    if FLAGS.plan:
        checks = [finetuning.check_work, *finetuning.flag_checks()]
        return plan.tagging(ner.find_task(FLAGS.task_name), checks)
    finetuning.check_work()
    runs.launch(run)


def run(group: Distributed, stack: contextlib.ExitStack) -> None:
    """main's body on one of the processes; what has to be given back in the end goes on the stack."""
    task = ner.find_task(FLAGS.task_name)
    session = finetuning.open_session(group, stack, sys.modules[__name__], task.name, task.labels)
    log, output_dir = session.log, session.output_dir
    model, objective = BertForTagging(session.config, task.num_labels, finetuning.initial_seed()), Tagging()
    weights = finetuning.build_weights(session, model)

    def convert(sentences):
        return ner.convert_sentences(sentences, task, session.tokenizer, FLAGS.max_seq_length)

    # ---------------------------------------------------------------------------------- train
    summary = {}
    if FLAGS.do_train:
        sentences = ner.read_sentences(task, FLAGS.data_dir, "train")
        source = finetuning.digest(sentences)
        features = finetuning.features_once(session, TAGS, source, {}, lambda: convert(sentences)[0])
        summary = finetuning.train(session, model, weights, objective, features, len(sentences))
    else:
        summary = finetuning.load_trained(session, model, weights)
    function = finetuning.build_prediction(session, model, weights, objective, TAGS)

    # ---------------------------------------------------------------------------------- evaluate
    if FLAGS.do_eval:
        sentences = ner.read_sentences(task, FLAGS.data_dir, "dev")
        features, bookkeeping = convert(sentences)
        predicted = finetuning.predict(
            session, function, FeatureSet(features, TAGS), FLAGS.eval_batch_size, "on EVAL set"
        )
        if predicted is not None:
            results = scores(task, sentences, ner.words_labels(task, bookkeeping, predicted.outputs))
            results |= {"loss": predicted.sums.means()["loss"]}
            finetuning.write_eval_results(output_dir / "eval_results.txt", results | {"global_step": summary["steps"]})
            log.log((), results | {"throughput_val": predicted.figures.get("sequences_per_second", 0.0)}, echo=False)
            for key in sorted(results):
                log.console(f"  {key} = {results[key]:.6g}")
            summary |= results | {"inference": predicted.figures}

    # ---------------------------------------------------------------------------------- predict
    if FLAGS.do_predict:
        sentences = ner.read_sentences(task, FLAGS.data_dir, "test")
        features, bookkeeping = convert(sentences)
        predicted = finetuning.predict(
            session, function, FeatureSet(features, TAGS), FLAGS.predict_batch_size, "on TEST SET"
        )
        if predicted is not None:
            test_scores = ner.write_predictions(output_dir, task, sentences, features, bookkeeping, predicted.outputs)
            log.console(ner.conlleval_report(test_scores).rstrip("\n"))
            log.info(f"{test_scores['words']} words of {len(sentences)} sentences: {output_dir / ner.WORDS_FILE}")
            log.log((), {f"test_{key}": test_scores[key] for key in ("precision", "recall", "f1")}, echo=False)
            summary |= {"test": test_scores, "prediction": predicted.figures}
    if group.is_root:
        runs.close(output_dir, summary, session.log)


def scores(task: ner.NerTask, sentences: list[ner.Sentence], predicted: list[list[str]]) -> dict[str, float]:
    """precision, recall and f1 of phrases, accuracy of tags, and the published means over single words' tags."""
    gold = [sentence.tags for sentence in sentences]
    phrases = ner.conlleval(gold, predicted)
    macro = ner.macro_tag_scores(gold, predicted, task.tags)
    return {key: phrases[key] for key in ("precision", "recall", "f1", "accuracy")} | {
        f"word_macro_{key}": value for key, value in zip(("precision", "recall", "f1"), macro, strict=True)
    }


if __name__ == "__main__":
    define_flags()
    run_main(app.run, main)
