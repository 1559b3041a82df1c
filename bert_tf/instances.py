"""Training instances: sentence pairs and masked words (Devlin et al. 2018, https://arxiv.org/abs/1810.04805).

Everything is pure: results depend on arguments alone, and the random choices for a document on (seed, file,
duplicate, document). So any number of workers, in any order, makes the same instances.

S max_seq_length, P max_predictions_per_seq.
"""

import hashlib
import os
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from bert_tf.records import PretrainingExample
from bert_tf.tokenization import CLS, CONTINUATION, MASK, SEP
from runkit.files import read_lines

N_ADDED_TOKENS = 3  # [CLS] A [SEP] B [SEP]
MIN_SEQ_LENGTH = N_ADDED_TOKENS + 2  # one token each for A and B
KEEP_PROB, MASK_PROB = 0.1, 0.8  # of the chosen positions; the remaining tenth gets a random token
RANDOM_NEXT_PROB = 0.5

# [PAD], [CLS], [unused7] and their like: text never yields them, as brackets are split off.
_NOT_TEXT = re.compile(r"\[\S+\]")


class Document(NamedTuple):
    """A document, or a part of a very long one."""

    number: int  # of the document in its file, from 0
    part: int  # 0 unless the document had to be divided
    sentences: Sequence[Sequence[int]]  # token ids; no sentence is empty, and there is at least one


@dataclass(frozen=True)
class InstanceSettings:
    """How instances are made; the defaults are those of the published recipe."""

    max_seq_length: int = 128
    max_predictions_per_seq: int = 20
    masked_lm_prob: float = 0.15
    short_seq_prob: float = 0.1
    do_whole_word_mask: bool = False


class MaskingVocabulary(NamedTuple):
    """What pairing and masking need of a vocabulary."""

    cls_id: int
    sep_id: int
    mask_id: int
    replacements: Sequence[int]  # ids that can stand in text: no special and no [unused] tokens
    continuations: frozenset[int]  # ids of "##" tokens

    @classmethod
    def of(cls, vocab: Mapping[str, int]) -> "MaskingVocabulary":
        """vocab: token -> id, with the special tokens."""
        return cls(
            vocab[CLS],
            vocab[SEP],
            vocab[MASK],
            [index for token, index in vocab.items() if not _NOT_TEXT.fullmatch(token)],
            frozenset(index for token, index in vocab.items() if token.startswith(CONTINUATION)),
        )


class Instance(NamedTuple):
    """A masked sentence pair of n <= S tokens."""

    tokens: list[int]  # [n] [CLS] A [SEP] B [SEP], masked
    segment_a_length: int  # tokens of [CLS] A [SEP]
    masked_positions: list[int]  # ascending, at most P
    masked_ids: list[int]  # what stood there
    is_random_next: bool


def read_documents(
    path: str | os.PathLike, encode: Callable[[str], list[int]], max_chars: int
) -> Iterator[tuple[Document, int]]:
    """Yields the documents of a file with their length in characters; beyond max_chars, in parts."""
    number = part = chars = 0
    sentences: list[list[int]] = []
    for line in read_lines(path):
        line = line.strip()
        if line:
            chars += len(line)
            if ids := encode(line):
                sentences.append(ids)
        ended = not line
        if sentences and (ended or chars >= max_chars):
            yield Document(number, part, sentences), chars
            sentences, chars, part = [], 0, part + 1
        if ended and part:
            number, part = number + 1, 0
    if sentences:
        yield Document(number, part, sentences), chars


def blocks(documents: Iterable[tuple[Document, int]], block_chars: int) -> Iterator[tuple[list[Document], int]]:
    """Groups documents into blocks of at least block_chars, so that memory does not grow with the file.

    A block holds at least two documents, for random next segments (unless one document alone fills two
    blocks); a small rest joins the block before it.
    """
    previous: list[Document] = []
    current: list[Document] = []
    previous_chars = chars = 0
    for document, length in documents:
        current.append(document)
        chars += length
        alone = current[0].number == document.number
        if chars >= (2 * block_chars if alone else block_chars):
            if previous:
                yield previous, previous_chars
            previous, previous_chars = current, chars
            current, chars = [], 0
    if previous and current and (2 * chars < block_chars or current[0].number == current[-1].number):
        yield previous + current, previous_chars + chars
        return
    if previous:
        yield previous, previous_chars
    if current:
        yield current, chars


def generator(*key: int | str) -> random.Random:
    """A random generator of its own for each key (Python's own hash() would differ from run to run)."""
    text = "\0".join(map(str, key))
    digest = hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()  # file names are bytes, in any locale
    return random.Random(int.from_bytes(digest, "little"))


def document_instances(
    documents: Sequence[Document],
    document_index: int,
    duplicate: int,
    seed: int,
    file_name: str,
    settings: InstanceSettings,
    vocabulary: MaskingVocabulary,
) -> list[Instance]:
    """The instances of documents[document_index] in pass `duplicate` over the data.

    The other documents are the pool that random next segments come from. Without any other document only true
    pairs are made, and none from a document of a single sentence.
    """
    document = documents[document_index]
    rng = generator(seed, file_name, duplicate, document.number, document.part)
    max_tokens = settings.max_seq_length - N_ADDED_TOKENS
    instances = []
    for tokens_a, tokens_b, is_random_next in _sentence_pairs(documents, document_index, max_tokens, settings, rng):
        tokens_a, tokens_b = _truncate_pair(tokens_a, tokens_b, max_tokens, rng)
        instances.append(_mask(tokens_a, tokens_b, is_random_next, settings, vocabulary, rng))
    return instances


def _sentence_pairs(
    documents: Sequence[Document],
    document_index: int,
    max_tokens: int,
    settings: InstanceSettings,
    rng: random.Random,
):
    """Yields (tokens_a, tokens_b, is_random_next), neither side empty, before truncation.

    Sentences are collected until they reach the target length, which most often is all there is room for, and
    cut into A and B at a random sentence; or B comes from another document and the rest of the sentences is
    used again.
    """
    number, _, sentences = documents[document_index]
    has_others = any(document.number != number for document in documents)
    min_sentences = 1 if has_others else 2
    target = max_tokens
    if rng.random() < settings.short_seq_prob:
        target = rng.randint(2, max_tokens)
    start = 0
    while start < len(sentences):
        stop, length = start, 0
        while stop < len(sentences) and (length < target or stop - start < min_sentences):
            length += len(sentences[stop])
            stop += 1
        if stop - start < min_sentences:  # the last sentence, and nothing but its predecessor to pair it with
            start -= 1
            if start < 0:
                return
        chunk = sentences[start:stop]
        end_a = rng.randint(1, len(chunk) - 1) if len(chunk) > 1 else 1
        tokens_a = _flatten(chunk[:end_a])
        is_random_next = has_others and (len(chunk) == 1 or rng.random() < RANDOM_NEXT_PROB)
        if is_random_next:
            yield tokens_a, _random_segment(documents, number, target - len(tokens_a), rng), True
            start += end_a
        else:
            yield tokens_a, _flatten(chunk[end_a:]), False
            start = stop


def _random_segment(documents: Sequence[Document], not_from: int, length: int, rng: random.Random) -> list[int]:
    """Sentences of a random other document, from a random one on, until there are `length` tokens."""
    other = rng.choice(documents)
    while other.number == not_from:
        other = rng.choice(documents)
    sentences = other.sentences
    tokens: list[int] = []
    for index in range(rng.randrange(len(sentences)), len(sentences)):
        tokens.extend(sentences[index])
        if len(tokens) >= length:
            break
    return tokens


def _flatten(sentences: Sequence[Sequence[int]]) -> list[int]:
    return list(chain.from_iterable(sentences))


def _truncate_pair(
    tokens_a: list[int], tokens_b: list[int], max_tokens: int, rng: random.Random
) -> tuple[list[int], list[int]]:
    """Drops tokens of the longer side (B when equal) one by one, at the front or the back by a fair coin."""
    excess = max(0, len(tokens_a) + len(tokens_b) - max_tokens)
    lead = len(tokens_a) - len(tokens_b)
    from_longer = min(excess, abs(lead))
    shared = excess - from_longer  # once equal, B and A take turns
    from_a = shared // 2 + (from_longer if lead > 0 else 0)
    from_b = excess - from_a
    return _drop(tokens_a, from_a, rng), _drop(tokens_b, from_b, rng)


def _drop(tokens: list[int], count: int, rng: random.Random) -> list[int]:
    """Without `count` tokens, each taken from the front or the back: the coins are random bits."""
    if not count:
        return tokens
    front = rng.getrandbits(count).bit_count()
    return tokens[front : len(tokens) - (count - front)]


def _mask(
    tokens_a: list[int],
    tokens_b: list[int],
    is_random_next: bool,
    settings: InstanceSettings,
    vocabulary: MaskingVocabulary,
    rng: random.Random,
) -> Instance:
    """Joins the pair and masks min(P, max(1, 15% of all tokens)) of its words, never [CLS] or [SEP]."""
    cls_id, sep_id, mask_id, replacements, continuations = vocabulary
    tokens = [cls_id, *tokens_a, sep_id, *tokens_b, sep_id]
    count = min(settings.max_predictions_per_seq, max(1, round(len(tokens) * settings.masked_lm_prob)))
    if settings.do_whole_word_mask:
        positions = _whole_word_positions(tokens_a, tokens_b, count, continuations, rng)
    else:
        middle = len(tokens_a)  # numbers from here on lie in B, one [SEP] further
        positions = [i + 1 if i < middle else i + 2 for i in _sample(len(tokens) - N_ADDED_TOKENS, count, rng)]
    positions.sort()
    masked_ids = [tokens[position] for position in positions]
    random_float = rng.random
    for position in positions:
        draw = random_float()
        if draw < MASK_PROB:
            tokens[position] = mask_id
        elif draw >= MASK_PROB + KEEP_PROB:
            tokens[position] = replacements[int(random_float() * len(replacements))]
    return Instance(tokens, len(tokens_a) + 2, positions, masked_ids, is_random_next)


def _sample(n: int, count: int, rng: random.Random) -> set[int]:
    """`count` different numbers below n, all if it is n or more; every choice is as likely as any other.

    Drawn with repetition until there are enough: where a seventh is chosen, as here, several times as fast as
    rng.sample.
    """
    if count >= n:
        return set(range(n))
    random_float = rng.random
    chosen: set[int] = set()
    while len(chosen) < count:
        chosen.add(int(random_float() * n))
    return chosen


def _whole_word_positions(
    tokens_a: list[int], tokens_b: list[int], count: int, continuations: frozenset[int], rng: random.Random
) -> list[int]:
    """Positions of whole words in random order, at most `count`; words that would overshoot are passed over.

    When no word fits, part of the shortest is taken: an instance without any masked position teaches nothing.
    """
    words: list[list[int]] = []
    for first, tokens in ((1, tokens_a), (len(tokens_a) + 2, tokens_b)):
        for offset, token in enumerate(tokens):
            if offset and token in continuations:
                words[-1].append(first + offset)
            else:
                words.append([first + offset])
    rng.shuffle(words)
    positions: list[int] = []
    for word in words:
        if len(positions) + len(word) <= count:
            positions += word
    return positions or min(words, key=len)[:count]


def to_example(instance: Instance, max_seq_length: int, max_predictions_per_seq: int) -> PretrainingExample:
    """Pads an instance to the shapes of the record schema: the plain twin of records.PretrainingEncoder."""
    tokens, a, positions, masked_ids, is_random_next = instance
    n, k = len(tokens), len(positions)
    padding, mask_padding = [0] * (max_seq_length - n), [0] * (max_predictions_per_seq - k)
    return PretrainingExample(
        input_ids=tokens + padding,
        input_mask=[1] * n + padding,
        segment_ids=[0] * a + [1] * (n - a) + padding,
        masked_lm_positions=positions + mask_padding,
        masked_lm_ids=masked_ids + mask_padding,
        masked_lm_weights=[1.0] * k + [0.0] * (max_predictions_per_seq - k),
        next_sentence_labels=[int(is_random_next)],
    )
