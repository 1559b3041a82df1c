"""transcript.py: times and confidence by hand; each written form read back by a reader made after its definition."""

import io
import itertools
import json
import random
import re

import pytest

from jasper_pt.decode import Tokens
from jasper_pt.text import encode, normalize
from jasper_pt.transcript import (
    CUE_LINES,
    CUE_PAUSE,
    EDGE,
    LINE_CHARACTERS,
    MAX_CUE_SECONDS,
    WRITERS,
    Transcript,
    Word,
    cues,
    output_names,
    respelled,
    save_transcript,
    transcript_of,
    write_transcript,
)

LABELS = [" ", "a", "b", "c"]
FRAME = 0.02


def tokens_of(frames, confidence=0.5):
    """Tokens of best labels a frame, "-" the blank: "aa-b"."""
    found = [[], [], [], []]
    position = 0
    for symbol, group in itertools.groupby(frames):
        size = len(list(group))
        if symbol != "-":
            for values, value in zip(found, (LABELS.index(symbol), position, confidence, position + size), strict=True):
                values.append(value)
        position += size
    return Tokens(*found)


def times(units):
    return [(unit.text, pytest.approx(unit.start), pytest.approx(unit.end)) for unit in units]


# ------------------------------------------------------------------------------------------------- times, confidence
def test_neighbouring_words_and_characters_meet_halfway():
    #                                  0123456789
    transcript = transcript_of(tokens_of("-aa--b-  c"), LABELS, FRAME, 1.0)
    assert transcript.text == "ab c"
    #  "a" ends at frame 3 and "b" begins at 5; "b" ends at 6 and "c" begins at 9
    assert times(transcript.characters) == [("a", 0.02, 0.08), ("b", 0.08, 0.15), ("c", 0.15, 0.2 + EDGE)]
    assert times(transcript.words) == [("ab", 0.02, 0.15), ("c", 0.15, 0.2 + EDGE)]


def test_a_pause_between_words_stays():
    transcript = transcript_of(tokens_of("a" + "-" * 20 + " " + "-" * 20 + "b"), LABELS, FRAME, 1.0)
    assert times(transcript.words) == [("a", 0.0, FRAME + EDGE), ("b", 42 * FRAME - EDGE, 43 * FRAME + EDGE)]


def test_times_stay_within_the_audio():
    transcript = transcript_of(tokens_of("ab"), LABELS, FRAME, 0.03, first_frame=-0.01)
    assert times(transcript.words) == [("ab", 0.0, 0.03)]
    shifted = transcript_of(tokens_of("ab"), LABELS, FRAME, 9.0, first_frame=5.0)
    assert times(shifted.words) == [("ab", 5.0, 5.04 + EDGE)]


def test_confidences():
    tokens = Tokens([1, 2, 0, 3], [0, 1, 2, 3], [0.5, 0.8, 0.1, 0.9], [1, 2, 3, 4])
    transcript = transcript_of(tokens, LABELS, FRAME, 1.0)
    assert [word.confidence for word in transcript.words] == pytest.approx(
        [0.4, 0.9]
    )  # products; the blank has no part
    assert transcript.confidence == pytest.approx(0.65)  # their mean
    assert [character.confidence for character in transcript.characters] == [0.5, 0.8, 0.9]


def test_tokens_without_ends_span_a_frame():
    tokens = Tokens([1, 2], [0, 4], [1.0, 1.0])
    assert times(transcript_of(tokens, LABELS, FRAME, 1.0).characters) == [("a", 0, 0.05), ("b", 0.05, 0.1 + EDGE)]


def test_no_words():
    for frames in ("---", " - "):
        transcript = transcript_of(tokens_of(frames), LABELS, FRAME, 1.0)
        assert transcript == Transcript("", (), (), 1.0, 1.0, "")
        for form in WRITERS:
            write_transcript(transcript, io.StringIO(), form)


def test_labels_of_several_characters():
    tokens = Tokens([0, 1, 2, 0], [0, 2, 4, 6], [1.0] * 4, [1, 3, 5, 7])
    transcript = transcript_of(tokens, [" the", "re", " "], FRAME, 1.0)
    assert transcript.text == "there the"
    assert [character.text for character in transcript.characters] == ["the", "re", "the"]


def test_words_as_the_text_spells_them():
    labels = [" ", *"abcdefghijklmnopqrstuvwxyz"]
    spoken = "three dollars ok"
    ids = [labels.index(character) for character in spoken]
    tokens = Tokens(ids, [2 * i for i in range(len(ids))], [0.9] * len(ids), [2 * i + 1 for i in range(len(ids))])
    transcript = transcript_of(tokens, labels, FRAME, 9.0)
    given = respelled(transcript, ["-", "$3", "--", "OK!"], ["", "three dollars", "", "ok"])
    assert given.text == "- $3 -- OK!" and given.characters == transcript.characters
    three, dollars, ok = transcript.words
    assert [word.text for word in given.words] == ["- $3 --", "OK!"]
    assert (given.words[0].start, given.words[0].end) == (three.start, dollars.end)
    assert given.words[0].confidence == pytest.approx(three.confidence * dollars.confidence)
    assert (given.words[1].start, given.words[1].end) == (ok.start, ok.end)
    assert given.confidence == pytest.approx((0.9**12 + 0.9**2) / 2)


def test_any_text_comes_back_as_it_was():
    labels = tuple(" abcdefghijklmnopqrstuvwxyz'")
    source = random.Random(0)
    characters = "abc XYZ'’-—.,!?$%&+# 0123456789éßÆœ½²ﬁ\u0301\u200b\u00a0\t\n“”…€日"
    done = 0
    for _ in range(1000):
        text = "".join(source.choice(characters) for _ in range(source.randint(1, 25)))
        words = text.split()
        pieces = [normalize(word, labels) for word in words]
        ids = encode(" ".join(filter(None, pieces)), labels)
        if ids:
            tokens = Tokens(ids, [2 * i for i in range(len(ids))], [0.9] * len(ids))
            given = respelled(transcript_of(tokens, labels, FRAME, 99.0), words, pieces)
            assert given.text.split() == " ".join(word.text for word in given.words).split() == words
            assert all(a.start < a.end <= b.start for a, b in itertools.pairwise(given.words))
            done += 1
    assert done > 700


# ----------------------------------------------------------------------------------------------------------- the forms
def spoken(*rows, source=""):
    words = tuple(Word(*row) for row in rows)
    return Transcript(" ".join(word.text for word in words), words, (), 0.75, 9.0, source)


EXAMPLE = spoken(
    ("don't", 0.5, 0.8, 0.95), ("<stop>", 0.8, 1.2345, 0.5), ("&", 3725.5, 3726.0, 1.0), source="a/my file.wav"
)


def written(transcript, form):
    stream = io.StringIO()
    write_transcript(transcript, stream, form)
    return stream.getvalue()


def seconds(clock, point):
    hours, minutes, rest = re.fullmatch(rf"(\d\d):(\d\d):(\d\d{re.escape(point)}\d\d\d)", clock).groups()
    assert int(minutes) < 60 and float(rest.replace(point, ".")) < 60
    return 3600 * int(hours) + 60 * int(minutes) + float(rest.replace(point, "."))


def test_txt():
    assert written(EXAMPLE, "txt") == "don't <stop> &\n"


def test_json():
    assert written(EXAMPLE, "json").count("\n") == 1  # files may be joined to JSON lines
    read = json.loads(written(EXAMPLE, "json"))
    assert set(read) == {"text", "words", "characters", "confidence", "duration", "source"}
    assert read["words"][1] == {"text": "<stop>", "start": 0.8, "end": 1.234, "confidence": 0.5}
    assert (read["source"], read["duration"], read["confidence"]) == ("a/my file.wav", 9.0, 0.75)


def test_ctm():
    lines = [line.split() for line in written(EXAMPLE, "ctm").splitlines()]
    assert [line[:2] for line in lines] == [["my_file", "1"]] * 3  # of five or six fields, by NIST
    assert [(float(start), float(duration), word, float(sure)) for _, _, start, duration, word, sure in lines] == [
        (0.5, 0.3, "don't", 0.95),
        (0.8, 0.434, "<stop>", 0.5),
        (3725.5, 0.5, "&", 1.0),
    ]
    assert written(spoken(("yes -", 0.0, 1.0, 1.0)), "ctm") == "audio 1 0.000 1.000 yes_- 1.0000\n"


def test_srt():
    blocks = written(EXAMPLE, "srt").split("\n\n")
    assert blocks.pop() == ""
    for number, (block, start, end, text) in enumerate(
        zip(blocks, (0.5, 3725.5), (1.5, 3726.5), ("don't <stop>", "&"), strict=True), 1
    ):
        index, span, *lines = block.split("\n")
        assert index == str(number) and lines == [text]
        assert [seconds(clock, ",") for clock in span.split(" --> ")] == [start, end]


def test_vtt():
    head, *blocks = written(EXAMPLE, "vtt").rstrip("\n").split("\n\n")
    assert head == "WEBVTT"
    spans, texts = zip(*(block.split("\n") for block in blocks), strict=True)
    assert texts == ("don't &lt;stop&gt;", "&amp;")
    assert [[seconds(clock, ".") for clock in span.split(" --> ")] for span in spans] == [[0.5, 1.5], [3725.5, 3726.5]]


# ------------------------------------------------------------------------------------------------------------ cutting
def speech(sizes, gaps, seconds_a_character=0.06):
    words, clock = [], 0.0
    for size, gap in zip(sizes, gaps, strict=True):
        words.append(Word("x" * size, clock, clock + size * seconds_a_character, 1.0))
        clock = words[-1].end + gap
    return words


def test_subtitles_keep_the_words_and_the_limits():
    source = random.Random(0)
    for _ in range(50):
        n = source.randint(1, 80)
        gaps = [source.choice([0, 0, 0, 0.1, 0.4, 1.5]) for _ in range(n)]
        words = speech([source.randint(1, 12) for _ in range(n)], gaps)
        made = list(cues(words))
        assert " ".join(line for _, _, lines in made for line in lines) == " ".join(word.text for word in words)
        place = 0
        for start, end, lines in made:
            part = words[place : place + len(" ".join(lines).split())]
            place += len(part)
            assert start == part[0].start and end >= part[-1].end
            assert part[-1].end - start <= MAX_CUE_SECONDS
            assert len(lines) <= CUE_LINES and max(map(len, lines)) <= LINE_CHARACTERS
            assert all(b.start - a.end < CUE_PAUSE for a, b in itertools.pairwise(part))
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(made))


def test_subtitles_are_cut_at_pauses():
    words = speech([5] * 20, [0.0] * 11 + [0.6] + [0.0] * 8)
    assert [len(" ".join(lines).split()) for _, _, lines in cues(words)] == [12, 8]


def test_a_word_longer_than_a_line_stays_whole():
    assert [lines for _, _, lines in cues(speech([60, 3], [0, 0]))] == [["x" * 60, "xxx"]]
    assert [lines for _, _, lines in cues(speech([100], [0]))] == [["x" * 100]]


# -------------------------------------------------------------------------------------------------------------- files
def test_names_of_outputs():
    assert output_names(["/a/x.wav", "/b/y.mp3"]) == ["x", "y"]
    assert output_names(["/a/1/x.wav", "/a/2/x.wav"]) == ["1/x", "2/x"]
    assert output_names(["/a/x.wav", "/a/x.mp3"]) == ["x.wav", "x.mp3"]
    assert output_names(["/a/x.wav", "/a/x.wav"]) == ["x.wav", "x.wav.2"]
    assert output_names([]) == []


def test_files(tmp_path):
    save_transcript(EXAMPLE, tmp_path / "out", "1/x", ["txt", "ctm"])
    assert sorted(p.name for p in (tmp_path / "out/1").iterdir()) == ["x.ctm", "x.txt"]
    assert (tmp_path / "out/1/x.txt").read_text() == "don't <stop> &\n"
