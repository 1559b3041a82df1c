"""Losses as sums, so that any split of a global batch adds up to the same mean; one objective for each kind of task.

B batch, S sequence, N classes.
"""

from typing import NamedTuple, Protocol, Self

import tensorflow as tf

from bert_tf.model import PretrainingLogits
from bert_tf.ops import MASKED_SCORE


class Sums(Protocol):
    """A NamedTuple of float32 scalars, summed over a batch."""

    def __add__(self, other: Self) -> Self: ...

    def means(self) -> dict[str, float]:
        """Losses and accuracies, "loss" among them."""


class Objective(Protocol):
    """What a task gives to the training step."""

    def counts(self, batch) -> tf.Tensor:
        """What the batch contributes to the denominators of the loss, [K] float32."""

    def sums(self, outputs, batch) -> Sums:
        """Sums over a batch, given what the model made of it."""

    def loss(self, sums: Sums, factors: tf.Tensor) -> tf.Tensor:
        """The loss to differentiate, a scalar; factors [K] are inverse counts of the global batch."""


class PretrainingSums(NamedTuple):
    """Float32 scalars summed over a batch; every mean is a ratio of two of them.

    masked_lm_loss, masked_lm_correct, masked_lm_weight: over the masked positions (padding of P counts 0).
    next_sentence_loss, next_sentence_correct, examples: over the examples.
    Losses are negative log likelihoods in nats.
    """

    masked_lm_loss: tf.Tensor
    masked_lm_correct: tf.Tensor
    masked_lm_weight: tf.Tensor
    next_sentence_loss: tf.Tensor
    next_sentence_correct: tf.Tensor
    examples: tf.Tensor

    def __add__(self, other: "PretrainingSums") -> "PretrainingSums":
        return PretrainingSums(*(a + b for a, b in zip(self, other, strict=True)))

    def means(self) -> dict[str, float]:
        """Loss and accuracy of both tasks; loss = masked-LM loss + next-sentence loss, as published."""
        lm_weight, examples = max(float(self.masked_lm_weight), 1e-5), max(float(self.examples), 1e-5)
        masked_lm_loss = float(self.masked_lm_loss) / lm_weight
        next_sentence_loss = float(self.next_sentence_loss) / examples
        return {
            "loss": masked_lm_loss + next_sentence_loss,
            "masked_lm_loss": masked_lm_loss,
            "masked_lm_accuracy": float(self.masked_lm_correct) / lm_weight,
            "next_sentence_loss": next_sentence_loss,
            "next_sentence_accuracy": float(self.next_sentence_correct) / examples,
        }


NO_SUMS = PretrainingSums(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


class Pretraining:
    """Masked words and next sentences, each its own mean, added up."""

    def counts(self, batch) -> tf.Tensor:
        return tf.stack([tf.reduce_sum(batch.masked_lm_weights), tf.cast(batch.examples, tf.float32)])

    def sums(self, outputs: PretrainingLogits, batch) -> PretrainingSums:
        return pretraining_sums(outputs, batch)

    def loss(self, sums: PretrainingSums, factors: tf.Tensor) -> tf.Tensor:
        return sums.masked_lm_loss * factors[0] + sums.next_sentence_loss * factors[1]


def pretraining_sums(logits: PretrainingLogits, batch) -> PretrainingSums:
    """Sums over one input_pipeline.Batch; a next-sentence label of -1 marks a row that is no example (pad_batch)."""
    ids, weight = tf.reshape(batch.masked_lm_ids, [-1]), tf.reshape(batch.masked_lm_weights, [-1])  # [B*P], packed [M]
    lm_loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=ids, logits=logits.masked_lm)
    lm_correct = tf.cast(tf.argmax(logits.masked_lm, -1, tf.int32) == ids, tf.float32)
    labels = batch.next_sentence_labels
    real = tf.cast(labels >= 0, tf.float32)
    ns_loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tf.maximum(labels, 0), logits=logits.next_sentence)
    ns_correct = tf.cast(tf.argmax(logits.next_sentence, -1, tf.int32) == labels, tf.float32)
    return PretrainingSums(
        masked_lm_loss=tf.reduce_sum(lm_loss * weight),
        masked_lm_correct=tf.reduce_sum(lm_correct * weight),
        masked_lm_weight=tf.reduce_sum(weight),
        next_sentence_loss=tf.reduce_sum(ns_loss * real),
        next_sentence_correct=tf.reduce_sum(ns_correct),
        examples=tf.reduce_sum(real),
    )


def pad_batch(batch, batch_size: int):
    """A smaller last batch filled up to batch_size with rows that count for nothing, so that one shape is compiled.

    Not for packed batches.
    """
    missing = batch_size - int(batch.input_ids.shape[0])
    if missing == 0:
        return batch
    padded = {name: tf.pad(value, [[0, missing]] + [[0, 0]] * (len(value.shape) - 1))
              for name, value in batch._asdict().items() if name != "packing"}  # fmt: skip
    labels = tf.pad(batch.next_sentence_labels, [[0, missing]], constant_values=-1)
    return type(batch)(**padded | {"next_sentence_labels": labels})


# ----------------------------------------------------------------------------------------------- fine-tuning
class TaskSums(NamedTuple):
    """Float32 scalars summed over a batch of a fine-tuning task.

    loss: negative log likelihoods in nats, or squared errors. correct: how many were right (0 for numbers). count: of
    examples, of tokens in tagging.
    """

    loss: tf.Tensor
    correct: tf.Tensor
    count: tf.Tensor

    def __add__(self, other: "TaskSums") -> "TaskSums":
        return TaskSums(*(a + b for a, b in zip(self, other, strict=True)))

    def means(self) -> dict[str, float]:
        count = max(float(self.count), 1e-5)
        return {"loss": float(self.loss) / count, "accuracy": float(self.correct) / count}


NO_TASK_SUMS = TaskSums(0.0, 0.0, 0.0)


class _TaskObjective:
    """The mean over the examples of the global batch."""

    def counts(self, batch) -> tf.Tensor:
        return tf.reduce_sum(batch.weights)[None]

    def loss(self, sums: TaskSums, factors: tf.Tensor) -> tf.Tensor:
        return sums.loss * factors[0]


class Classification(_TaskObjective):
    """Cross entropy of one class an example; logits [B, N], labels [B]."""

    def sums(self, outputs: tf.Tensor, batch) -> TaskSums:
        nll = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=batch.labels, logits=outputs)
        correct = tf.cast(tf.argmax(outputs, -1, tf.int32) == batch.labels, tf.float32)
        weights = batch.weights
        return TaskSums(tf.reduce_sum(nll * weights), tf.reduce_sum(correct * weights), tf.reduce_sum(weights))


class Regression(_TaskObjective):
    """Squared error of one number an example; outputs [B, 1], labels [B]."""

    def sums(self, outputs: tf.Tensor, batch) -> TaskSums:
        error = tf.square(outputs[:, 0] - batch.labels) * batch.weights
        return TaskSums(tf.reduce_sum(error), tf.constant(0.0), tf.reduce_sum(batch.weights))


class QuestionAnswering(_TaskObjective):
    """Mean of the cross entropies of the answer's first and last token; labels [B, 2], logits [B, S, 2], packed or not.

    Padding takes no part in the softmax (in the published code it does), so how far a batch is padded changes nothing.
    """

    def sums(self, outputs: tf.Tensor, batch) -> TaskSums:
        mask = batch.input_mask
        if batch.packing:
            mask = tf.sequence_mask(batch.packing.lengths, tf.shape(outputs)[1])
        padding = (1.0 - tf.cast(mask, tf.float32)) * MASKED_SCORE  # [B, S]
        logits = tf.transpose(outputs, [0, 2, 1]) + padding[:, None, :]  # [B, 2, S]
        nll = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=batch.labels, logits=logits)  # [B, 2]
        hits = tf.reduce_all(tf.argmax(logits, -1, tf.int32) == batch.labels, -1)
        weights = batch.weights
        return TaskSums(
            tf.reduce_sum(tf.reduce_mean(nll, -1) * weights),
            tf.reduce_sum(tf.cast(hits, tf.float32) * weights),
            tf.reduce_sum(weights),
        )


class Tagging(_TaskObjective):
    """Cross entropy of a label for each token; logits [R, S, N], labels [R, S], of which 0 is not counted."""

    def counts(self, batch) -> tf.Tensor:
        return tf.reduce_sum(tf.cast(batch.labels > 0, tf.float32))[None]

    def sums(self, outputs: tf.Tensor, batch) -> TaskSums:
        real = tf.cast(batch.labels > 0, tf.float32)
        nll = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=batch.labels, logits=outputs)
        correct = tf.cast(tf.argmax(outputs, -1, tf.int32) == batch.labels, tf.float32)
        return TaskSums(tf.reduce_sum(nll * real), tf.reduce_sum(correct * real), tf.reduce_sum(real))
