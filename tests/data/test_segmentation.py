import nltk
import pytest
from nltk.tokenize.punkt import PunktSentenceTokenizer, PunktTrainer

from data import segmentation
from runkit.errors import UserError

CORPUS = (
    "Mr. Hyde met Dr. Jekyll at 4 a.m. in the fog. They spoke of the U.S. economy, e.g. of prices. "
    "“Mr. Hyde,” he said, “it is late.” She left (at last!). Nobody cared... It rained. Did it? Yes! "
)


def write(path, content):
    path.write_text(content, encoding="utf-8")
    return path


def from_corpus(path):
    return segmentation.Segmenter(*segmentation.corpus_parameters([path]))


def test_common_abbreviations_do_not_end_sentences(tmp_path):
    # The last words of sentences, shown without a period, so that they are not learnt as abbreviations.
    elsewhere = "In fog the economy rained late prices on Hyde, whom nobody cared for. "
    segmenter = from_corpus(write(tmp_path / "a.txt", CORPUS + elsewhere * 20))
    assert segmenter.sentences(CORPUS) == [
        "Mr. Hyde met Dr. Jekyll at 4 a.m. in the fog.",
        "They spoke of the U.S. economy, e.g. of prices.",
        "“Mr. Hyde,” he said, “it is late.”",
        "She left (at last!).",
        "Nobody cared...",
        "It rained.",
        "Did it?",
        "Yes!",
    ]
    assert "trained on" in segmenter.origin and "this corpus" in segmenter.origin


def test_abbreviations_of_the_corpus_are_learnt(tmp_path):
    text = (
        "The low zorg. value is low. A zorg. value was high. Some zorg. values, once. "
        "He had a zorg. and left. Left of it, he left it. "
    )
    parameters, _ = segmentation.corpus_parameters([write(tmp_path / "a.txt", text * 20)])
    assert "zorg" in parameters.abbrev_types
    assert not {"left", "low", "it"} & parameters.abbrev_types


def test_the_same_as_plain_nltk_on_text_without_typographic_quotes(shared):
    path = shared / "data" / "text_corpora" / "lee_background.cor"
    text = path.read_text(encoding="utf-8")
    trainer = PunktTrainer()
    trainer.train(text, finalize=True)
    parameters = trainer.get_params()
    parameters.abbrev_types |= segmentation.ABBREVIATIONS
    plain = PunktSentenceTokenizer(parameters)
    segmenter = from_corpus(path)
    documents = text.splitlines()
    assert [segmenter.sentences(document) for document in documents] == [plain.tokenize(d) for d in documents]


def install_punkt(tmp_path, monkeypatch, abbreviations):
    folder = tmp_path / "nltk_data" / "tokenizers" / "punkt_tab" / "english"
    folder.mkdir(parents=True)
    for name in ("collocations.tab", "sent_starters.txt", "ortho_context.tab"):
        write(folder / name, "")
    write(folder / "abbrev_types.txt", abbreviations)
    monkeypatch.setattr(nltk.data, "path", [str(tmp_path / "nltk_data")])
    return folder


def test_trained_parameters_are_used_where_installed(tmp_path, monkeypatch):
    install_punkt(tmp_path, monkeypatch, "zzq\n")
    segmenter = segmentation.Segmenter(*segmentation.trained_parameters())
    assert "punkt_tab" in segmenter.origin
    assert segmenter.sentences("The zzq. value is low. It is.") == ["The zzq. value is low.", "It is."]


def test_absent_and_broken_trained_parameters(tmp_path, monkeypatch):
    monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])
    assert segmentation.trained_parameters() is None
    folder = install_punkt(tmp_path, monkeypatch, "zzq\n")
    (folder / "ortho_context.tab").unlink()
    with pytest.raises(UserError, match="punkt_tab"):
        segmentation.trained_parameters()


def test_small_text_is_sampled_whole(tmp_path):
    files = [write(tmp_path / "a.txt", "\ufeffÉin a.\r\n"), write(tmp_path / "b.txt", "b.\n")]
    assert list(segmentation.sample_text(files)) == ["Éin a.\n", "b.\n"]


def test_large_text_is_sampled_evenly_in_whole_lines(tmp_path):
    files = [write(tmp_path / f"{i}.txt", "".join(f"{i} line {n}\n" for n in range(20_000))) for i in range(2)]
    windows = list(segmentation.sample_text(files, characters=64_000))
    assert len(windows) == segmentation.TRAINING_WINDOWS
    assert 50_000 < sum(map(len, windows)) <= 64_000
    assert all(window.startswith(("0 line", "1 line")) for window in windows)
    assert sum(window.startswith("0") for window in windows) == segmentation.TRAINING_WINDOWS / 2


def test_a_whole_book_on_one_line_is_no_time_limit(tmp_path):
    segmenter = from_corpus(write(tmp_path / "a.txt", CORPUS))
    assert segmentation.redos.DEFAULT_TIMEOUT is None
    assert len(segmenter.sentences(CORPUS * 1000)) == 8 * 1000
