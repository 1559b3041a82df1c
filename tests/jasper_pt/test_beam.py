"""beam.py against sums over all paths, and the C++ against the same search in Python."""

import functools
import itertools
import math
import pickle
import random

import numpy as np
import pytest
import torch

from jasper_pt import build_lm, ngram
from jasper_pt.beam import EXACT, BeamDecoder, BeamOptions
from jasper_pt.decode import greedy, greedy_tokens
from jasper_pt.search import native
from runkit.errors import UserError

LABELS = (" ", "a", "b")
SENTENCES = "a ab\nb a ab\nab ab a\nba\na b a\nab ba\nb b ab a\n"


@pytest.fixture(scope="module")
def arpa(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lm")
    (folder / "text.txt").write_text(SENTENCES)
    path = folder / "3gram.arpa"
    assert build_lm.main(["--text", str(folder / "text.txt"), "--order", "3", "--output", str(path)]) == 0
    return path


@pytest.fixture(params=["C++", "Python"])
def in_both(request, monkeypatch):
    """Runs a test with C++ and with the stand-in."""
    if request.param == "Python":
        monkeypatch.setattr(native, "library", lambda: None)
    elif native.library() is None:
        pytest.skip("no g++, or JASPER_KERNELS=reference")
    return request.param


def random_log_probs(generator, frames, classes, peak=2.0):
    return torch.from_numpy(generator.normal(0, peak, (frames, classes)).astype(np.float32)).log_softmax(-1)


@functools.cache
def all_paths(frames, classes):
    """Every path [N,T], and the numbers of those that collapse to each label sequence."""
    paths = list(itertools.product(range(classes), repeat=frames))
    numbers = {}
    for number, path in enumerate(paths):
        ids = tuple(c for c, before in zip(path, (None, *path), strict=False) if c not in (classes - 1, before))
        numbers.setdefault(ids, []).append(number)
    return np.array(paths), numbers


def sums_over_paths(log_probs):
    """ln p of every label sequence: all paths, collapsed."""
    paths, numbers = all_paths(*log_probs.shape)
    p = log_probs.double().numpy()[np.arange(len(log_probs)), paths].sum(1)
    return {ids: float(np.logaddexp.reduce(p[which])) for ids, which in numbers.items()}


reference_model = functools.cache(ngram.ArpaReference)


def by_brute_force(log_probs, labels, options, arpa=None, lexicon=None, hot=None):
    """{text ids: score}, from the formula of docs/decoding.md."""
    model = reference_model(arpa) if arpa else None
    hot = hot or {}
    scores = {}
    for ids, ctc in sums_over_paths(log_probs).items():
        words = "".join(labels[i] for i in ids).split()
        hot_parts = {part for phrase in hot for part in phrase.split()}
        if lexicon is not None and not set(words) <= {*lexicon, *hot_parts}:
            continue
        score = ctc + options.beta * len(words)
        if model:
            score += options.alpha * math.log(10) * sum(model.scores(words, end=options.sentence_ends))
            score += options.unknown * sum(not model.knows(word) and word not in hot_parts for word in words)
        for phrase, weight in hot.items():
            n = len(phrase.split())
            score += weight * sum(words[i : i + n] == phrase.split() for i in range(len(words)))
        scores[ids] = score
    return scores


def cases(n, arpa):
    source, generator = random.Random(0), np.random.default_rng(0)
    for _ in range(n):
        frames = source.choice([1, 2, 3, 4, 4, 5, 5])
        options = BeamOptions(
            alpha=source.choice([0.0, 0.5, 1.3]),
            beta=source.choice([0.0, 1.0, -0.7]),
            unknown=source.choice([0.0, -3.0]),
            sentence_ends=source.random() < 0.7,
            width=100_000,
            **EXACT,
        )
        log_probs = random_log_probs(generator, frames, 4, source.choice([0.5, 2.0, 5.0]))
        given = {"arpa": arpa if source.random() < 0.7 else None}
        if source.random() < 0.3:
            given["lexicon"] = source.choice([["a", "ab"], ["b", "bb", "ba"], ["abab"]])
        if source.random() < 0.3:
            given["hot"] = source.choice([{"bb": 2.0}, {"a b": 1.5, "a": 0.5}, {"ab a": -1.0}])
        yield log_probs, options, given


def decoder_for(options, given, labels=LABELS):
    lm = ngram.read(given["arpa"]) if given.get("arpa") else None
    return BeamDecoder(labels, options, lm, given.get("lexicon"), given.get("hot"))


def test_equals_brute_force(arpa, in_both):
    for log_probs, options, given in cases(500 if in_both == "C++" else 60, arpa):
        expected = by_brute_force(log_probs, LABELS, options, **given)
        expected = sorted(expected.items(), key=lambda entry: -entry[1])[:5]
        (found,) = decoder_for(options, given).decode(log_probs[None], torch.tensor([len(log_probs)]), n_best=5)
        assert [h.score for h in found] == pytest.approx([score for _, score in expected], abs=1e-4)
        if len(expected) < 2 or expected[0][1] - expected[1][1] > 1e-3:
            assert tuple(found[0].tokens.ids) == expected[0][0]


def test_ctc_scores_are_those_of_torch():
    generator = np.random.default_rng(1)
    for frames in (1, 7, 40):
        log_probs = random_log_probs(generator, frames, 5, 3.0)
        decoder = BeamDecoder([" ", "a", "b", "c"], BeamOptions(width=20))
        for hypothesis in decoder.decode(log_probs[None], torch.tensor([frames]), n_best=3)[0]:
            ids = torch.tensor(hypothesis.tokens.ids)
            loss = torch.nn.functional.ctc_loss(
                *(log_probs[:, None].double(), ids[None], torch.tensor([frames]), torch.tensor([len(ids)])),
                blank=4,
                reduction="sum",
            )
            assert hypothesis.ctc == pytest.approx(-float(loss), abs=1e-5)


@pytest.mark.skipif(native.library() is None, reason="no g++, or JASPER_KERNELS=reference")
def test_pruned_searches_are_the_same_in_both(arpa, monkeypatch):
    source, generator = random.Random(2), np.random.default_rng(2)
    labels = (" ", "a", "b", "c")
    for _ in range(60):
        options = BeamOptions(
            alpha=0.8,
            beta=source.choice([0.0, 0.5]),
            width=source.choice([1, 2, 5, 20]),
            top_k=source.choice([None, 1, 3]),
            token_threshold=source.choice([-math.inf, -3.0, -1.0]),
            beam_threshold=source.choice([math.inf, 6.0, 2.0]),
        )
        given = {"arpa": source.choice([None, arpa])}
        if source.random() < 0.3:
            given["lexicon"] = ["a", "ab", "cab"]
        if source.random() < 0.5:
            given["hot"] = {"cab": 3.0, "ab ba": 2.0, "abc": -1.0}
        frames = source.choice([0, 1, 10, 25])
        log_probs, lengths = random_log_probs(generator, frames, 5, 3.0)[None], torch.tensor([frames])
        found = decoder_for(options, given, labels).decode(log_probs, lengths, 3)[0]
        with monkeypatch.context() as patch:
            patch.setattr(native, "library", lambda: None)
            expected = decoder_for(options, given, labels).decode(log_probs, lengths, 3)[0]
        assert [h.tokens.ids for h in found] == [h.tokens.ids for h in expected]
        for h, e in zip(found, expected, strict=True):
            assert h.tokens.frames == e.tokens.frames
            assert h.tokens.ends == e.tokens.ends
            assert h.tokens.confidences == pytest.approx(e.tokens.confidences)
            assert h[2:] == pytest.approx(e[2:], abs=1e-4)


@pytest.mark.parametrize("width", [1, 2, 10])
def test_never_below_greedy(width, in_both):
    generator = np.random.default_rng(3)
    labels = (" ", "a", "b", "c")
    decoder = BeamDecoder(labels, BeamOptions(width=width, beam_threshold=3.0, token_threshold=-2.0))
    for _ in range(40):
        frames = int(generator.integers(1, 30))
        log_probs = random_log_probs(generator, frames, 5, 2.0)[None]
        (ids,) = [tokens.ids for tokens in greedy_tokens(log_probs, torch.tensor([frames]))]
        loss = torch.nn.functional.ctc_loss(
            *(log_probs[0][:, None].double(), torch.tensor([ids]), torch.tensor([frames]), torch.tensor([len(ids)])),
            blank=4,
            reduction="sum",
        )
        ((hypothesis,),) = decoder.decode(log_probs, torch.tensor([frames]))
        assert hypothesis.score >= -float(loss) - 1e-5


def test_tokens_of_the_greedy_text_are_the_greedy_ones(in_both):
    generator = np.random.default_rng(4)
    log_probs = torch.stack([random_log_probs(generator, 30, 4, 6.0) for _ in range(6)])
    lengths = torch.tensor([30, 0, 12, 30, 1, 25])
    decoder = BeamDecoder(LABELS, BeamOptions(width=1, token_threshold=0.0))  # only the best label of each frame
    for tokens, expected in zip(decoder.tokens(log_probs, lengths), greedy_tokens(log_probs, lengths), strict=True):
        assert tokens.ids == expected.ids
        assert tokens.frames == expected.frames
        assert tokens.ends == expected.ends
        assert tokens.confidences == pytest.approx(expected.confidences)


@pytest.mark.parametrize("sizes", [[1] * 40, [40], [7, 0, 13, 20]])
def test_piece_by_piece_is_the_same_as_at_once(arpa, sizes, in_both):
    log_probs = random_log_probs(np.random.default_rng(5), 40, 4, 3.0)
    decoder = decoder_for(BeamOptions(width=8, beta=0.5), {"arpa": arpa, "hot": {"ba b": 1.0}})
    state = decoder.start()
    for piece in log_probs.split(sizes):
        decoder.feed(state, piece)
        assert decoder.best(state).text is not None
    assert decoder.finish(state, 3) == decoder.decode(log_probs[None], torch.tensor([40]), 3)[0]


def test_batches_and_threads_do_not_matter(arpa):
    generator = np.random.default_rng(6)
    log_probs = torch.stack([random_log_probs(generator, 25, 4, 3.0) for _ in range(9)])
    lengths = torch.tensor([25, 3, 0, 25, 17, 9, 25, 1, 20])
    lm = ngram.read(arpa)
    options = BeamOptions(width=10, beta=0.3)
    alone = [
        BeamDecoder(LABELS, options, lm, threads=1).decode(row[None, :n], torch.tensor([n]), 2)[0]
        for row, n in zip(log_probs, lengths.tolist(), strict=True)
    ]
    decoder = BeamDecoder(LABELS, options, lm, threads=4)
    assert decoder.decode(log_probs, lengths, 2) == alone
    assert pickle.loads(pickle.dumps(decoder)).decode(log_probs, lengths, 2) == alone


@pytest.mark.skipif(native.library() is None, reason="no g++, or JASPER_KERNELS=reference")
def test_long_utterances_are_aligned_within_a_band():
    """10,000 frames of 5,000 labels: beyond 2^25 states times frames."""
    source = random.Random(8)
    ids = [source.randrange(3) for _ in range(5000)]
    path = torch.tensor([index for label in ids for index in (label, 3)])
    log_probs = torch.nn.functional.one_hot(path, 4).float().mul(8).log_softmax(-1)
    ((hypothesis,),) = BeamDecoder(LABELS, BeamOptions(width=4)).decode(log_probs[None], torch.tensor([len(path)]))
    assert hypothesis.tokens.ids == ids
    assert hypothesis.tokens.frames == list(range(0, 10_000, 2))
    best_path = float(log_probs.double().max(-1).values.sum())
    assert best_path < hypothesis.ctc < best_path / 2


def test_a_language_model_corrects(arpa, in_both):
    # Greedy hears "bb"; "ab" is a little less probable, and a word of the model.
    log_probs = torch.tensor([[-9.0, -1.0, -0.6, -4.0], [-9.0, -5.0, -5.0, -0.1], [-9.0, -4.0, -0.1, -4.0]])
    log_probs = log_probs.log_softmax(-1)[None]
    lengths = torch.tensor([3])
    assert greedy(log_probs, lengths, LABELS) == ["bb"]
    assert BeamDecoder(LABELS).decode(log_probs, lengths)[0][0].text == "bb"
    with_lm = BeamDecoder(LABELS, BeamOptions(alpha=1.0), ngram.read(arpa))
    ((hypothesis,),) = with_lm.decode(log_probs, lengths)
    assert (hypothesis.text, hypothesis.words, hypothesis.unknown_words) == ("ab", 1, 0)
    model = ngram.ArpaReference(arpa)
    assert hypothesis.lm == pytest.approx(sum(model.scores(["ab"])), abs=1e-5)
    assert hypothesis.score == pytest.approx(hypothesis.ctc + math.log(10) * hypothesis.lm)
    hot = BeamDecoder(LABELS, BeamOptions(alpha=1.0), ngram.read(arpa), hot_words={"bb": 5.0})
    assert hot.decode(log_probs, lengths)[0][0].text == "bb"
    listed = BeamDecoder(LABELS, lexicon=["a", "b", "ba"])
    assert listed.decode(log_probs, lengths)[0][0].text in ("a", "b", "ba")


def test_an_unfinished_word_of_the_list_is_left_out(in_both):
    # "a b" is certain, and "b" begins a word of the list, but is none.
    ids = torch.tensor([1, 0, 2])
    log_probs = torch.nn.functional.one_hot(ids, 4).float().mul(20).log_softmax(-1)[None]
    decoder = BeamDecoder(LABELS, BeamOptions(width=1), lexicon=["a", "bab"])
    assert decoder.decode(log_probs, torch.tensor([3]))[0][0].text.strip() == "a"


def test_a_word_list_outlives_token_pruning(in_both):
    ids = torch.tensor([2, 2, 2])  # only "b" passes the threshold, and no word has one
    log_probs = torch.nn.functional.one_hot(ids, 4).float().mul(20).log_softmax(-1)[None]
    decoder = BeamDecoder(LABELS, BeamOptions(token_threshold=-1.0), lexicon=["a"])
    assert decoder.decode(log_probs, torch.tensor([3]))[0][0].text in ("", "a", " ")


def test_minus_infinity_is_a_probability(arpa, in_both):
    log_probs = torch.full((1, 3, 4), -math.inf)
    log_probs[0, 0, 1] = log_probs[0, 1, 3] = log_probs[0, 2, 1] = 0.0
    ((hypothesis,),) = decoder_for(BeamOptions(), {"arpa": arpa}).decode(log_probs, torch.tensor([3]))
    assert hypothesis.text == "aa"
    assert hypothesis.ctc == 0.0
    assert math.isfinite(hypothesis.score)


@pytest.mark.parametrize("value", [math.nan, 0.5, math.inf])
def test_no_log_probabilities_are_refused(value, in_both):
    log_probs = torch.zeros(1, 2, 4).log_softmax(-1)
    log_probs[0, 1, 2] = value
    with pytest.raises(ValueError, match="no log-probabilities"):
        BeamDecoder(LABELS).decode(log_probs, torch.tensor([2]))
    with pytest.raises(ValueError, match="do not fit"):
        BeamDecoder(LABELS[:2]).decode(log_probs, torch.tensor([2]))


def test_labels_of_several_characters(arpa, in_both):
    labels = (" ", "a", "b", " a", "ab", " ab")
    options = BeamOptions(alpha=0.7, beta=0.4, unknown=-2.0, width=100_000, **EXACT)
    for seed in range(8 if in_both == "C++" else 3):
        log_probs = random_log_probs(np.random.default_rng(seed), 3, 7, 2.0)
        given = {"arpa": arpa, "lexicon": [["a", "ab", "aba"], None][seed % 2]}
        expected = max(by_brute_force(log_probs, labels, options, **given).items(), key=lambda entry: entry[1])
        ((hypothesis,),) = decoder_for(options, given, labels).decode(log_probs[None], torch.tensor([3]))
        assert hypothesis.score == pytest.approx(expected[1], abs=1e-4)
        assert tuple(hypothesis.tokens.ids) == expected[0]


def test_labels_without_a_blank_are_words(tmp_path, in_both):
    (tmp_path / "text.txt").write_text("你 好\n你 们 好\n好\n")
    build_lm.main(["--text", str(tmp_path / "text.txt"), "--order", "2", "--output", str(tmp_path / "2gram.arpa")])
    model = ngram.ArpaReference(tmp_path / "2gram.arpa")
    labels = ("你", "好", "们")
    options = BeamOptions(alpha=0.9, beta=0.2, width=100_000, **EXACT)
    decoder = BeamDecoder(labels, options, ngram.read(tmp_path / "2gram.arpa"), hot_words={"你好": 1.5})
    for seed in range(8):
        log_probs = random_log_probs(np.random.default_rng(seed), 4, 4, 2.0)
        scores = {}
        for ids, ctc in sums_over_paths(log_probs).items():
            words = [labels[i] for i in ids]
            scores[ids] = ctc + 0.9 * math.log(10) * sum(model.scores(words)) + 0.2 * len(words)
            scores[ids] += 1.5 * sum(pair == ("你", "好") for pair in itertools.pairwise(words))
        ids, score = max(scores.items(), key=lambda entry: entry[1])
        ((hypothesis,),) = decoder.decode(log_probs[None], torch.tensor([4]))
        assert (tuple(hypothesis.tokens.ids), hypothesis.score) == (ids, pytest.approx(score, abs=1e-4))


def test_capitals_of_the_model_are_small_letters_here(tmp_path, arpa, in_both):
    text = arpa.read_text()
    path = tmp_path / "capital.arpa"
    path.write_text("\n".join(_upper_words(line) for line in text.split("\n")))
    log_probs = random_log_probs(np.random.default_rng(7), 20, 4, 3.0)[None]
    small = decoder_for(BeamOptions(), {"arpa": arpa}).decode(log_probs, torch.tensor([20]), 3)
    assert decoder_for(BeamOptions(), {"arpa": path}).decode(log_probs, torch.tensor([20]), 3) == small


def _upper_words(line):
    fields = line.split("\t")
    if len(fields) > 1:
        fields[1] = " ".join(word if word.startswith("<") else word.upper() for word in fields[1].split(" "))
    return "\t".join(fields)


def test_what_does_not_fit_is_refused(arpa):
    with pytest.raises(UserError, match="none of its"):
        BeamDecoder(("x", "y", " "), lm=ngram.read(arpa))
    with pytest.raises(UserError, match="'c' cannot be spelled"):
        BeamDecoder(LABELS, hot_words={"c": 1.0})
    with pytest.raises(UserError, match="word list has 'dog'"):
        BeamDecoder(LABELS, lexicon=["dog"])
    with pytest.raises(UserError, match="the word list is empty"):
        BeamDecoder(LABELS, lexicon=[])
    with pytest.raises(UserError, match="width of the beam search is 0"):
        BeamOptions(width=0)
    with pytest.raises(UserError, match="alpha of the beam search is nan"):
        BeamOptions(alpha=math.nan)
