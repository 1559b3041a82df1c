"""Fine-tunes BERT on SQuAD 1.1 or 2.0, answers questions, and scores the answers.

    python -m bert_tf.run_squad --bert_config_file=base/bert_config.json --vocab_file=base/vocab.txt \
        --init_checkpoint=base/bert_model.ckpt --output_dir=OUT --do_train --train_file=train-v1.1.json \
        --do_predict --predict_file=dev-v1.1.json --num_train_epochs=2 --learning_rate=3e-5

output_dir gets checkpoints, predictions.json, nbest_predictions.json, null_odds.json (2.0), summary.json, and what
the model needs to be used elsewhere. The launchers are scripts/run_squad.sh and run_squad_inference.sh; flags: --help.
"""

import contextlib
import json
import subprocess
import sys
from pathlib import Path

if __package__ in (None, ""):  # started by path: python bert_tf/run_squad.py
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import bert_tf.quiet_tensorflow  # noqa: F401, I001 (first: it silences the import of TensorFlow)
from absl import app, flags

from bert_tf import finetuning, plan, run_export, runs
from bert_tf.answering import Settings
from bert_tf.distributed import Distributed
from bert_tf.features import SPAN, FeatureSet
from bert_tf.losses import QuestionAnswering
from bert_tf.model import BertForQuestionAnswering
from bert_tf.serving import repository
from bert_tf.squad import SquadExample, convert_examples, read_examples
from bert_tf.squad_answers import select_answers, write_answers
from bert_tf.squad_evaluate import evaluate
from runkit.errors import UserError, run_main
from runkit.files import read_json, sha256_file
from runkit.log import RunLog

FLAGS = flags.FLAGS


def define_flags() -> None:
    """The published flags with their defaults; those added here say so."""
    finetuning.define_flags(
        do_lower_case=True,
        max_seq_length=384,
        train_batch_size=8,
        learning_rate=5e-6,
        num_train_epochs=3.0,
        save_checkpoints_steps=5000,
    )
    flags.adopt_module_key_flags(finetuning)
    string, integer, real, boolean = flags.DEFINE_string, flags.DEFINE_integer, flags.DEFINE_float, flags.DEFINE_bool
    string("train_file", None, "SQuAD JSON to train on; required by --do_train")
    string("predict_file", None, "SQuAD JSON with the questions to answer; required by --do_predict")
    string("eval_script", None, "an evaluator to run on (predict_file, predictions.json) beside our own scores")
    boolean("do_predict", False, "answer the questions of --predict_file, and score them where it has answers")
    integer("doc_stride", 128, "tokens between the starts of a long context's windows", lower_bound=1)
    integer("max_query_length", 64, "tokens of a question at most; the rest is cut", lower_bound=1)
    integer("predict_batch_size", 8, "windows a batch in prediction", lower_bound=1)
    integer("n_best_size", 20, "candidates of an answer that are written", lower_bound=1)
    integer("max_answer_length", 30, "tokens of an answer at most", lower_bound=1)
    boolean("version_2_with_negative", False, "SQuAD 2.0: some questions have no answer")
    real("null_score_diff_threshold", 0.0, "no answer is given where its score is better by more than this")
    boolean("export_triton", False, "put the model into a Triton repository: output_dir/triton_models")
    string("triton_model_name", "bert", "with --export_triton: of the model of logits; NAME-squad answers questions")
    integer("triton_model_version", 1, "with --export_triton", lower_bound=1)
    string("triton_server_url", "localhost:8001", "taken for the published command lines, and without effect")
    boolean("triton_model_overwrite", False, "with --export_triton: replaces models of these names")
    integer("triton_max_batch_size", 8, "with --export_triton", lower_bound=1)
    real("triton_dyn_batching_delay", 0.0, "with --export_triton: ms a request may wait for others; 0: no batching")
    integer("triton_engine_count", 1, "with --export_triton: copies of each model", lower_bound=1)
    integer("num_eval_iterations", None, "answer only the questions of this many batches", lower_bound=1)


def main(argv: list[str]) -> None:
    """From files to scores; raises UserError for anything a user can fix."""
    runs.refuse_words(argv)
    if FLAGS.plan:
        return plan.questions([check_flags, *finetuning.flag_checks()])
    check_flags()
    runs.launch(run)


def run(group: Distributed, stack: contextlib.ExitStack) -> None:
    """main's body on one of the processes; what has to be given back in the end goes on the stack."""
    task = "squad v2.0" if FLAGS.version_2_with_negative else "squad v1.1"
    session = finetuning.open_session(group, stack, sys.modules[__name__], task, labels=[])
    log, output_dir = session.log, session.output_dir
    questions = read_questions(log) if FLAGS.do_predict else []  # a broken file is found before the training
    model, objective = BertForQuestionAnswering(session.config, finetuning.initial_seed()), QuestionAnswering()
    weights = finetuning.build_weights(session, model)

    # ---------------------------------------------------------------------------------- train
    if FLAGS.do_train:
        examples = read_examples(FLAGS.train_file, True, FLAGS.version_2_with_negative, log.warning)

        def build():
            windows = convert_examples(examples, session.tokenizer, **window_sizes(), is_training=True)
            return (window.feature for window in windows)

        settings = window_sizes() | {"version_2_with_negative": FLAGS.version_2_with_negative}
        features = finetuning.features_once(session, SPAN, sha256_file(FLAGS.train_file), settings, build)
        summary = finetuning.train(session, model, weights, objective, features, len(examples))
    else:
        summary = finetuning.load_trained(session, model, weights)

    # ---------------------------------------------------------------------------------- predict and score
    if FLAGS.do_predict:
        function = finetuning.build_prediction(session, model, weights, objective, SPAN)
        summary |= predict_and_score(session, function, questions)
    if session.group.is_root:
        runs.close(output_dir, summary, session.log)
        if FLAGS.export_triton:
            export_triton(output_dir)


def read_questions(log: RunLog) -> list[SquadExample]:
    """The questions of --predict_file, or those of the first num_eval_iterations batches."""
    examples = read_examples(FLAGS.predict_file, False, FLAGS.version_2_with_negative, log.warning)
    return examples[: FLAGS.num_eval_iterations * FLAGS.predict_batch_size] if FLAGS.num_eval_iterations else examples


def predict_and_score(session, function, examples) -> dict:
    """Writes the answers to the examples; returns latency, throughput, and the scores where there are answers.

    Called by all processes; only the root writes and has something to return.
    """
    log, output_dir = session.log, session.output_dir
    windows = list(convert_examples(examples, session.tokenizer, **window_sizes(), is_training=False))
    log.info(f"{len(examples)} questions, {len(windows)} windows of {FLAGS.predict_file}")
    features = FeatureSet((window.feature for window in windows), SPAN)
    predicted = finetuning.predict(session, function, features, FLAGS.predict_batch_size)
    if predicted is None:
        return {}
    answers = select_answers(
        examples,
        windows,
        [logits[:, 0] for logits in predicted.outputs],
        [logits[:, 1] for logits in predicted.outputs],
        n_best_size=FLAGS.n_best_size,
        max_answer_length=FLAGS.max_answer_length,
        do_lower_case=FLAGS.do_lower_case,
        version_2_with_negative=FLAGS.version_2_with_negative,
        null_score_diff_threshold=FLAGS.null_score_diff_threshold,
    )
    write_answers(output_dir, answers)
    log.info(f"answers: {output_dir / 'predictions.json'}")

    scores = score(session, examples, answers)
    log.log((), {"throughput_val": predicted.figures.get("sequences_per_second", 0.0)} | scores, echo=False)
    if scores:
        log.console(json.dumps(scores))
    if FLAGS.eval_script:
        run_eval_script(session)
    return {"inference": predicted.figures} | scores


def score(session, examples, answers) -> dict:
    """EM and F1 in percent by the official rules, of 2.0 also by kind of question and at the best threshold."""
    if FLAGS.num_eval_iterations or not any(example.answers or example.is_impossible for example in examples):
        return {}
    version = "2.0" if FLAGS.version_2_with_negative else "1.1"
    dataset = read_json(FLAGS.predict_file)["data"]
    scores = evaluate(dataset, answers.predictions, answers.null_odds if version == "2.0" else None, version)
    if version == "2.0":
        scores = {"exact_match": scores["exact"], "f1": scores["f1"]} | scores
    return scores


def run_eval_script(session) -> None:
    """Runs the user's evaluator and records the JSON that it prints."""
    command = [sys.executable, FLAGS.eval_script, FLAGS.predict_file, str(session.output_dir / "predictions.json")]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"{FLAGS.eval_script} failed with exit code {done.returncode}: {done.stderr.strip()[-500:]}")
    try:
        scores = json.loads(done.stdout[done.stdout.index("{") :])
    except ValueError as error:
        raise UserError(f"{FLAGS.eval_script} printed no JSON: {done.stdout[:200]!r}") from error
    session.log.info(f"{FLAGS.eval_script}: {json.dumps(scores)}")


def export_triton(output_dir: Path) -> None:
    """Exports the model that was trained, or --init_checkpoint, into output_dir/triton_models."""
    export, weights = (
        output_dir / "triton_export",
        output_dir if FLAGS.do_train or not FLAGS.init_checkpoint else FLAGS.init_checkpoint,
    )
    settings = [f"--{'' if value else 'no-'}{name}" if isinstance(value, bool) else f"--{name}={value}"
                for name in Settings._fields for value in [getattr(FLAGS, name)]]  # fmt: skip
    words = [f"--init_checkpoint={weights}", f"--vocab_file={FLAGS.vocab_file}", "--task=squad", *settings]
    words += [f"--bert_config_file={FLAGS.bert_config_file}", f"--output_dir={export}"]
    run_export.main([*words, *([f"--predict_file={FLAGS.predict_file}"] if FLAGS.predict_file else [])])
    names = ("model_name", "model_version", "max_batch_size", "dyn_batching_delay", "engine_count")
    words = [f"--triton_{name}={getattr(FLAGS, f'triton_{name}')}" for name in names]
    words += ["--triton_model_overwrite"] if FLAGS.triton_model_overwrite else []
    repository.main([str(export), str(output_dir / "triton_models"), *words])


def window_sizes() -> dict[str, int]:
    return {
        "max_seq_length": FLAGS.max_seq_length,
        "doc_stride": FLAGS.doc_stride,
        "max_query_length": FLAGS.max_query_length,
    }


def check_flags() -> None:
    """What can be refused before anything is opened."""
    if not (FLAGS.do_train or FLAGS.do_predict or FLAGS.export_triton):
        raise UserError("nothing to do: give --do_train, --do_predict or --export_triton, or several of them")
    if FLAGS.do_train and not FLAGS.train_file:
        raise UserError("--do_train needs --train_file")
    if FLAGS.do_predict and not FLAGS.predict_file:
        raise UserError("--do_predict needs --predict_file")
    if FLAGS.max_seq_length <= FLAGS.max_query_length + 3:
        raise UserError(
            f"max_seq_length {FLAGS.max_seq_length} must be above max_query_length {FLAGS.max_query_length} + 3, or no "
            "token of the context fits beside a question"
        )


if __name__ == "__main__":
    define_flags()
    run_main(app.run, main)
