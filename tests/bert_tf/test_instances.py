"""Sentence pairs and masking, on tokens that tell which document, sentence and place they come from."""

import random
from collections import Counter

import pytest

from bert_tf.instances import (
    Document,
    InstanceSettings,
    MaskingVocabulary,
    _sample,
    _truncate_pair,
    blocks,
    document_instances,
    generator,
    read_documents,
    to_example,
)
from bert_tf.records import PretrainingEncoder, encode_example

CLS, SEP, MASK, FIRST = 1, 2, 3, 100


def made_up_documents(n_documents: int, seed: int = 0, most_sentences: int = 12) -> list[Document]:
    """Documents in which every token occurs once and ids grow along the text: token - FIRST is its place."""
    rng, token, documents = random.Random(seed), FIRST, []
    for number in range(n_documents):
        sentences = []
        for _ in range(rng.randint(1, most_sentences)):
            length = rng.randint(1, 30)
            sentences.append(list(range(token, token + length)))
            token += length
        documents.append(Document(number, 0, sentences))
    return documents


def document_of(documents: list[Document], token: int) -> int:
    return next(d.number for d in documents if d.sentences[0][0] <= token <= d.sentences[-1][-1])


VOCABULARY = MaskingVocabulary(CLS, SEP, MASK, list(range(50_000, 60_000)), frozenset())


def all_instances(documents, settings, vocabulary=VOCABULARY, duplicates=1, seed=1, name="a.txt"):
    return [
        instance
        for duplicate in range(duplicates)
        for index in range(len(documents))
        for instance in document_instances(documents, index, duplicate, seed, name, settings, vocabulary)
    ]


def unmasked(instance) -> list[int]:
    tokens = list(instance.tokens)
    for position, token in zip(instance.masked_positions, instance.masked_ids, strict=True):
        tokens[position] = token
    return tokens


def segments(instance) -> tuple[list[int], list[int]]:
    """A and B as they were before masking; checks the frame around them."""
    tokens, a = unmasked(instance), instance.segment_a_length
    assert (tokens[0], tokens[a - 1], tokens[-1]) == (CLS, SEP, SEP)
    return tokens[1 : a - 1], tokens[a:-1]


def is_run(tokens: list[int]) -> bool:
    return tokens == list(range(tokens[0], tokens[0] + len(tokens)))


# --- pairs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("whole_words", [False, True])
@pytest.mark.parametrize(("s", "p"), [(5, 1), (16, 3), (128, 20), (512, 80)])
def test_pairs_are_true(s, p, whole_words):
    documents = made_up_documents(20)
    settings = InstanceSettings(max_seq_length=s, max_predictions_per_seq=p, do_whole_word_mask=whole_words)
    instances = all_instances(documents, settings, duplicates=3)
    assert {instance.is_random_next for instance in instances} == {True, False}
    for instance in instances:
        a, b = segments(instance)
        assert a and b
        assert len(instance.tokens) <= s
        assert is_run(a) and is_run(b)
        same = document_of(documents, a[0]) == document_of(documents, b[0])
        assert same != instance.is_random_next
        if same:
            assert b[0] > a[-1]


def test_true_next_follows_directly_when_nothing_is_cut():
    documents = made_up_documents(20)
    settings = InstanceSettings(max_seq_length=4000, max_predictions_per_seq=20, short_seq_prob=0.0)
    true = [i for i in all_instances(documents, settings, duplicates=5) if not i.is_random_next]
    assert true
    for instance in true:
        a, b = segments(instance)
        assert b[0] == a[-1] + 1


def test_unused_sentences_are_put_back():
    """Whatever is drawn, every sentence is at some time the beginning, or part, of an A or of a true B."""
    documents = made_up_documents(10)
    settings = InstanceSettings(max_seq_length=4000, max_predictions_per_seq=20, short_seq_prob=0.0)
    for duplicate in range(5):
        for index, document in enumerate(documents):
            seen: list[int] = []
            for instance in document_instances(documents, index, duplicate, 1, "a", settings, VOCABULARY):
                a, b = segments(instance)
                seen += a if instance.is_random_next else a + b
            assert seen == [token for sentence in document.sentences for token in sentence]


def test_half_of_the_pairs_are_random():
    documents = [Document(d, 0, [[FIRST + 100 * d + s] * 10 for s in range(40)]) for d in range(50)]
    settings = InstanceSettings(max_seq_length=43, max_predictions_per_seq=7, short_seq_prob=0.0)
    counts = Counter()
    for instance in all_instances(documents, settings, duplicates=8):
        a, _ = segments(instance)
        if (a[-1] - FIRST) % 100 != 39:  # after the last sentence of a document nothing follows: always random
            counts[instance.is_random_next] += 1
    assert counts.total() > 5000
    assert abs(counts[True] / counts.total() - 0.5) < 0.03


def test_short_sequences():
    documents = [Document(d, 0, [[FIRST + d]] * 400) for d in range(60)]

    def share_of_full(short_seq_prob: float) -> float:
        """Of the first instance of each document: 97 one-token sentences fill it."""
        settings = InstanceSettings(max_seq_length=100, max_predictions_per_seq=15, short_seq_prob=short_seq_prob)
        firsts = [
            document_instances(documents, index, duplicate, 1, "a", settings, VOCABULARY)[0]
            for duplicate in range(10)
            for index in range(len(documents))
        ]
        return sum(len(instance.tokens) == 100 for instance in firsts if not instance.is_random_next) / sum(
            not instance.is_random_next for instance in firsts
        )

    assert share_of_full(0.0) == 1.0
    assert abs(share_of_full(0.3) - 0.7) < 0.08


@pytest.mark.parametrize("n_sentences", range(1, 8))
def test_single_document_makes_only_true_pairs(n_sentences):
    sentences = [list(range(FIRST + 20 * i, FIRST + 20 * i + 20)) for i in range(n_sentences)]
    documents = [Document(0, 0, sentences)]
    for s in (10, 40, 100):
        instances = all_instances(documents, InstanceSettings(max_seq_length=s), duplicates=20)
        assert bool(instances) == (n_sentences > 1)
        seen = set()
        for instance in instances:
            a, b = segments(instance)
            assert a and b
            assert not instance.is_random_next
            assert b[0] > a[-1]
            seen |= {(token - FIRST) // 20 for token in a + b}
        assert seen == (set(range(n_sentences)) if n_sentences > 1 else set())


def test_parts_of_one_document_are_not_random_for_each_other():
    parts = [Document(0, part, [[FIRST + 10 * part + s] * 5 for s in range(6)]) for part in range(3)]
    settings = InstanceSettings(max_seq_length=20, max_predictions_per_seq=3)
    assert not any(instance.is_random_next for instance in all_instances(parts, settings, duplicates=10))
    documents = [*parts, Document(1, 0, [[900], [901]])]
    for instance in all_instances(documents, settings, duplicates=10):
        a, b = segments(instance)
        assert instance.is_random_next == ((a[0] >= 900) != (b[0] >= 900))


def test_case_p02(shared, tmp_path):
    words: dict[str, int] = {}

    def encode(line: str) -> list[int]:
        return [words.setdefault(word, FIRST + len(words)) for word in line.split()]

    for name, random_allowed in (("one_document.txt", False), ("two_documents.txt", True)):
        documents = [document for document, _ in read_documents(shared / "cases/P02" / name, encode, 8_000_000)]
        instances = all_instances(documents, InstanceSettings(), duplicates=200)
        assert instances
        assert any(instance.is_random_next for instance in instances) == random_allowed
        texts = [{word for sentence in document.sentences for word in sentence} for document in documents]
        for instance in instances:
            a, b = segments(instance)
            home = [set(a) <= text for text in texts]
            assert any(
                set(b) <= text and inside != instance.is_random_next for text, inside in zip(texts, home, strict=True)
            )


def test_truncation_takes_what_dropping_one_by_one_takes():
    for length_a in range(1, 9):
        for length_b in range(1, 9):
            for room in range(2, 12):
                a, b = length_a, length_b
                while a + b > room:  # the definition: one token of the longer side, of B when equal
                    if a > b:
                        a -= 1
                    else:
                        b -= 1
                cut_a, cut_b = _truncate_pair(list(range(length_a)), list(range(length_b)), room, random.Random(room))
                assert (len(cut_a), len(cut_b)) == (a, b)
                assert is_run(cut_a) and is_run(cut_b)


def test_truncation_drops_front_and_back_evenly():
    rng = random.Random(1)
    fronts = Counter(_truncate_pair(list(range(6)), [0] * 2, 4, rng)[0][0] for _ in range(8000))
    # 4 fair coins: binomial 1 4 6 4 1 of 16
    assert sorted(fronts) == [0, 1, 2, 3, 4]
    for front, weight in enumerate((1, 4, 6, 4, 1)):
        assert abs(fronts[front] / 8000 - weight / 16) < 0.02


# --- masking ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("s", "p", "most"), [(128, 20, 19), (512, 80, 77), (128, 5, 5)])
def test_number_of_predictions(s, p, most):
    settings = InstanceSettings(max_seq_length=s, max_predictions_per_seq=p)
    instances = all_instances(made_up_documents(60, most_sentences=80), settings)
    assert max(len(instance.masked_positions) for instance in instances) == most
    for instance in instances:
        assert len(instance.masked_positions) == min(p, max(1, round(len(instance.tokens) * 0.15)))
        assert instance.masked_positions == sorted(set(instance.masked_positions))
        middle = instance.segment_a_length - 1
        assert not {0, middle, len(instance.tokens) - 1} & set(instance.masked_positions)


def test_positions_are_uniform_and_80_10_10():
    documents = [Document(d, 0, [[FIRST + d] * 20] * 4) for d in range(40)]
    settings = InstanceSettings(max_seq_length=43, max_predictions_per_seq=8, short_seq_prob=0.0)
    instances = all_instances(documents, settings, duplicates=60)
    where, what = Counter(), Counter()
    full = [instance for instance in instances if instance.segment_a_length == 22 and len(instance.tokens) == 43]
    assert len(full) > 3000
    for instance in full:
        for position, token in zip(instance.masked_positions, instance.masked_ids, strict=True):
            where[position] += 1
            now = instance.tokens[position]
            what["mask" if now == MASK else "kept" if now == token else "random"] += 1
            assert now in (MASK, token) or now in range(50_000, 60_000)
    assert set(where) == set(range(1, 42)) - {21}
    expected = len(full) * 6 / 40
    assert all(abs(count - expected) < 6 * expected**0.5 for count in where.values())
    total = sum(what.values())
    assert abs(what["mask"] / total - 0.8) < 0.01
    assert abs(what["kept"] / total - 0.1) < 0.01
    assert abs(what["random"] / total - 0.1) < 0.01


def test_replacements_are_text():
    vocab = {
        token: index
        for index, token in enumerate(
            [
                "[PAD]",
                "[unused0]",
                "[unused99]",
                "[UNK]",
                "[CLS]",
                "[SEP]",
                "[MASK]",
                "[SLOT]",
                "[",
                "]",
                "the",
                "##s",
            ]
        )
    }
    assert MaskingVocabulary.of(vocab) == (4, 5, 6, [8, 9, 10, 11], {11})


def test_whole_words():
    """Even ids begin a word, odd ids continue it: words of 1 to 5 pieces."""
    rng = random.Random(3)
    vocabulary = VOCABULARY._replace(continuations=frozenset(range(FIRST + 1, 10_000, 2)))
    documents = []
    for number in range(30):
        sentences = []
        for _ in range(10):
            sentence = []
            for _ in range(rng.randint(1, 8)):
                sentence += [FIRST + 2 * rng.randrange(100)] + [FIRST + 1 + 2 * rng.randrange(100)] * rng.randrange(5)
            sentences.append(sentence)
        documents.append(Document(number, 0, sentences))
    counts = Counter()
    for s, p in ((10, 2), (64, 6), (128, 20)):
        settings = InstanceSettings(s, p, do_whole_word_mask=True)
        for instance in all_instances(documents, settings, vocabulary, duplicates=3):
            tokens, masked = unmasked(instance), set(instance.masked_positions)
            budget = min(p, max(1, round(len(tokens) * 0.15)))
            assert 1 <= len(masked) <= budget
            middle = instance.segment_a_length - 1
            assert not {0, middle, len(tokens) - 1} & masked
            begins = [
                i for i in range(1, len(tokens) - 1)
                if i != middle and (tokens[i] % 2 == 0 or i in (1, middle + 1))
            ]  # fmt: skip
            words = [
                {i for i in range(begin, end) if i != middle}
                for begin, end in zip(begins, [*begins[1:], len(tokens) - 1], strict=True)
            ]
            if min(map(len, words)) > budget:
                counts["no word fits"] += 1
            else:
                counts["whole"] += 1
                assert all(word <= masked or not word & masked for word in words)
                left = budget - len(masked)
                assert all(word <= masked or len(word) > left for word in words)
    assert counts["whole"] > 500 and counts["no word fits"] > 0


# --- purity -------------------------------------------------------------------------------------------------


def test_instances_depend_on_their_key_alone():
    documents = made_up_documents(12)
    settings = InstanceSettings()

    def of(index, duplicate=0, seed=1, name="a.txt"):
        return document_instances(documents, index, duplicate, seed, name, settings, VOCABULARY)

    alone = of(5)
    all_instances(documents, settings)
    assert of(5) == alone
    assert of(5, duplicate=1) != alone
    assert of(5, seed=2) != alone
    assert of(5, name="b.txt") != alone  # files of equal text do not repeat each other's decisions


def test_generator_is_the_same_everywhere():
    """SHA-256 and the Mersenne Twister are fixed for ever; nothing of Python's salted hash() may come in."""
    assert generator(1, "a").getrandbits(64) == generator("1", "a").getrandbits(64)
    import hashlib

    key = int.from_bytes(hashlib.sha256(b"12345\x00shard_0.txt\x002").digest(), "little")
    assert generator(12345, "shard_0.txt", 2).random() == random.Random(key).random()


# --- text ---------------------------------------------------------------------------------------------------


def encode(line: str) -> list[int]:
    return [ord(char) for char in line if char != "~"]


def write(path, text: str):
    path.write_bytes(text.encode())
    return path


def test_documents_are_separated_by_blank_lines(tmp_path):
    path = write(tmp_path / "a.txt", "\ufeff\r\n\r\nab\r\n c \r\n\r\n \t\r\n~\r\n\r\nd\n~\ne")
    assert [document for document, _ in read_documents(path, encode, 8_000_000)] == [
        Document(0, 0, [encode("ab"), encode("c")]),
        Document(1, 0, [encode("d"), encode("e")]),
    ]


def test_long_documents_come_in_parts_of_one_number(tmp_path):
    path = write(tmp_path / "a.txt", "aaaa\nbbbb\ncccc\n\n\ndddd\neeee\n\nf\n")
    found = [(d.number, d.part, len(d.sentences), chars) for d, chars in read_documents(path, encode, max_chars=8)]
    assert found == [(0, 0, 2, 8), (0, 1, 1, 4), (1, 0, 2, 8), (2, 0, 1, 1)]


def grouped(lengths_and_numbers, block_chars):
    documents = [(Document(number, i, [[1]]), length) for i, (length, number) in enumerate(lengths_and_numbers)]
    result = list(blocks(iter(documents), block_chars))
    assert [d for block, _ in result for d in block] == [d for d, _ in documents]
    return [(len(block), chars) for block, chars in result]


def test_blocks():
    assert grouped([], 10) == []
    assert grouped([(3, 0)], 10) == [(1, 3)]
    assert grouped([(5, i) for i in range(8)], 10) == [(2, 10)] * 4
    assert grouped([(5, i) for i in range(9)], 10) == [(2, 10)] * 3 + [(3, 15)]  # one alone joins the last
    assert grouped([(2, i) for i in range(12)], 10) == [(5, 10), (7, 14)]  # so does a small rest
    assert grouped([(10, 0), (10, 1), (1, 2), (9, 3)], 10) == [(2, 20), (2, 10)]
    assert grouped([(10, 0), (10, 0), (10, 0), (10, 0), (1, 1)], 10) == [(2, 20), (3, 21)]


def test_blocks_are_made_as_documents_come():
    """At most three blocks are held at a time, however long the file."""
    taken = 0

    def endless():
        nonlocal taken
        while True:
            taken += 1
            yield Document(taken, 0, [[1]]), 1

    stream = blocks(endless(), 10)
    for n in range(1, 50):
        next(stream)
        assert taken <= 10 * (n + 1)


# --- records ------------------------------------------------------------------------------------------------


def test_example_is_padded():
    documents = made_up_documents(3)
    for instance in all_instances(documents, InstanceSettings(64, 12)):
        example = to_example(instance, 64, 12)
        n, k = len(instance.tokens), len(instance.masked_positions)
        assert [len(values) for values in example] == [64, 64, 64, 12, 12, 12, 1]
        assert example.input_ids[:n] == instance.tokens and set(example.input_ids[n:]) <= {0}
        assert example.input_mask == [1] * n + [0] * (64 - n)
        first_sep = example.input_ids.index(SEP)
        assert example.segment_ids == [0] * (first_sep + 1) + [1] * (n - first_sep - 1) + [0] * (64 - n)
        assert example.masked_lm_weights == [1.0] * k + [0.0] * (12 - k)
        assert example.masked_lm_positions == instance.masked_positions + [0] * (12 - k)
        assert example.masked_lm_ids == instance.masked_ids + [0] * (12 - k)
        assert example.next_sentence_labels == [int(instance.is_random_next)]


@pytest.mark.parametrize(("s", "p"), [(16, 3), (128, 20), (512, 80)])
def test_the_fast_encoder_equals_the_plain_one(s, p):
    """Positions of two bytes, ids of one to three, empty and full padding."""
    rng = random.Random(1)
    encoder = PretrainingEncoder(s, p)
    for instance in all_instances(made_up_documents(6), InstanceSettings(s, p)):
        tokens = [rng.choice((1, 127, 128, 30_000)) for _ in instance.tokens]
        instance = instance._replace(tokens=tokens)
        assert encoder.encode(*instance) == encode_example(to_example(instance, s, p))


@pytest.mark.parametrize("n", [1, 2, 5, 40])
def test_samples_are_uniform(n):
    rng = random.Random(1)
    draws = 4000
    for count in {1, n // 2 or 1, n, n + 1}:
        samples = [_sample(n, count, rng) for _ in range(draws)]
        assert {len(sample) for sample in samples} == {min(count, n)}
        seen = Counter(i for sample in samples for i in sample)
        expected = draws * min(count, n) / n
        assert set(seen) == set(range(n))
        assert all(abs(times - expected) <= 6 * (expected * (1 - min(count, n) / n)) ** 0.5 for times in seen.values())
