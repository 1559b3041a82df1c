"""Pre-training losses as sums, so that any split of a global batch adds up to the same mean."""

from typing import NamedTuple

import tensorflow as tf

from bert_tf.model import PretrainingLogits


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


def pretraining_sums(logits: PretrainingLogits, batch) -> PretrainingSums:
    """Sums over one input_pipeline.Batch; a next-sentence label of -1 marks a row that is no example (pad_batch)."""
    ids, weight = tf.reshape(batch.masked_lm_ids, [-1]), tf.reshape(batch.masked_lm_weights, [-1])  # [B*P]
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
    """A smaller last batch filled up to batch_size with rows that count for nothing, so that one shape is compiled."""
    missing = batch_size - int(batch.input_ids.shape[0])
    if missing == 0:
        return batch
    padded = {name: tf.pad(value, [[0, missing]] + [[0, 0]] * (len(value.shape) - 1))
              for name, value in batch._asdict().items()}  # fmt: skip
    labels = tf.pad(batch.next_sentence_labels, [[0, missing]], constant_values=-1)
    return type(batch)(**padded | {"next_sentence_labels": labels})
