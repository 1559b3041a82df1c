"""decode.py against a loop over frames."""

import pytest
import torch

from jasper_pt.decode import greedy, greedy_tokens

LABELS = [" ", "a", "b", "'"]


def by_loop(log_probs, length):
    """Label indices, first frames, peaks and ends of the collapsed best path."""
    found, previous = [], None
    for frame in range(length):
        symbol = int(log_probs[frame].argmax())
        probability = float(log_probs[frame, symbol].exp())
        if symbol != previous:
            found.append([symbol, frame, probability, frame + 1])
        else:
            found[-1][2] = max(found[-1][2], probability)
            found[-1][3] = frame + 1
        previous = symbol
    return [entry for entry in found if entry[0] != len(LABELS)]


def test_tokens_are_those_of_a_loop():
    generator = torch.manual_seed(0)
    for frames in (1, 2, 17, 60):
        log_probs = (3 * torch.randn(6, frames, 5, generator=generator)).log_softmax(-1)
        lengths = torch.randint(0, frames + 1, (6,), generator=generator)
        lengths[0] = frames
        for tokens, row, length in zip(greedy_tokens(log_probs, lengths), log_probs, lengths.tolist(), strict=True):
            expected = by_loop(row, length)
            assert tokens.ids == [entry[0] for entry in expected]
            assert tokens.frames == [entry[1] for entry in expected]
            assert tokens.confidences == pytest.approx([entry[2] for entry in expected])
            assert tokens.ends == [entry[3] for entry in expected]


def path(text):
    """Log-probabilities whose best path is `text`, with - for the blank."""
    ids = torch.tensor([len(LABELS) if c == "-" else LABELS.index(c) for c in text])
    return torch.nn.functional.one_hot(ids, len(LABELS) + 1).mul(20.0).log_softmax(-1)[None]


@pytest.mark.parametrize(
    "frames, text",
    [("aa-a", "aa"), ("aab b", "ab b"), ("---", ""), ("-a--b-", "ab"), ("a  b''", "a b'"), ("-", ""), ("abab", "abab")],
)
def test_collapse(frames, text):
    assert greedy(path(frames), torch.tensor([len(frames)]), LABELS) == [text]


def test_frames_beyond_the_length_are_not_read():
    assert greedy(path("ab-aaaa"), torch.tensor([3]), LABELS) == ["ab"]
    assert greedy(path("aaaa"), torch.tensor([0]), LABELS) == [""]
    (tokens,) = greedy_tokens(path("aabb"), torch.tensor([3]))
    assert (tokens.ids, tokens.frames, tokens.ends) == ([1, 2], [0, 2], [2, 3])


def test_no_frames_and_no_utterances():
    assert greedy(torch.zeros(2, 0, 5), torch.tensor([0, 0]), LABELS) == ["", ""]
    assert greedy(torch.zeros(0, 3, 5), torch.zeros(0, dtype=torch.int64), LABELS) == []


def test_labels_of_several_characters_and_a_wrong_number_of_them():
    assert greedy(path("ab"), torch.tensor([2]), [" ", "ch", "e", "'"]) == ["che"]
    with pytest.raises(ValueError, match="3 labels and a blank do not fit log_probs with 5 classes"):
        greedy(path("ab"), torch.tensor([2]), LABELS[:3])
