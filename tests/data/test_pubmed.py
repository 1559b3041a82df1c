import gzip

import pytest

from data.pubmed import format_pubmed
from runkit.errors import UserError

HEAD = (
    '<?xml version="1.0" encoding="utf-8"?>\n<!DOCTYPE PubmedArticleSet PUBLIC "-//NLM//DTD PubMedArticle" '
    '"https://dtd.nlm.nih.gov/ncbi/pubmed/out/pubmed_190101.dtd">\n<PubmedArticleSet>\n'
)


def article(abstract, other=""):
    return (
        "<PubmedArticle><MedlineCitation><PMID>1</PMID><Article><ArticleTitle>T</ArticleTitle>"
        f"{abstract}</Article>{other}</MedlineCitation><PubmedData/></PubmedArticle>\n"
    )


PLAIN = (
    "<Abstract><AbstractText>Levels of H<sub>2</sub>O &lt; 5 in\n <i>E. coli</i> were measured."
    "</AbstractText></Abstract>"
)
STRUCTURED = (
    '<Abstract><AbstractText Label="BACKGROUND" NlmCategory="BACKGROUND">Cells grow fast.</AbstractText>'
    '<AbstractText Label="METHODS:">We counted them.</AbstractText>'
    '<AbstractText Label="UNASSIGNED">Done.</AbstractText>'
    "<CopyrightInformation>Copyright X.</CopyrightInformation></Abstract>"
)
OTHER = "<OtherAbstract><AbstractText>Une autre langue, assez longue pour compter.</AbstractText></OtherAbstract>"
ARTICLES = [
    article(PLAIN),
    article(""),
    article("<Abstract><AbstractText>Too short.</AbstractText></Abstract>"),
    article(STRUCTURED, OTHER),
    article("<Abstract><AbstractText/></Abstract>", OTHER),
]
EXPECTED = [
    "Levels of H2O < 5 in E. coli were measured.",
    "BACKGROUND: Cells grow fast. METHODS: We counted them. Done.",
]


def write(path, articles=ARTICLES, head=HEAD):
    data = (head + "".join(articles) + "</PubmedArticleSet>").encode()
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def abstracts(paths, tmp_path, **options):
    output = tmp_path / "out" / "x_one_article_per_line.txt"
    record = format_pubmed(paths, output, **options)
    lines = output.read_text(encoding="utf-8").split("\n")
    assert lines.pop() == "" and not any(lines[1::2])
    return lines[::2], record


def test_abstracts(tmp_path):
    found, record = abstracts([write(tmp_path / "a.xml")], tmp_path)
    assert found == EXPECTED
    assert record["counts"] == {"abstracts": 2, "short": 1, "without_abstract": 2}
    assert abstracts([tmp_path / "a.xml"], tmp_path)[1] is None
    assert "Too short." in abstracts([tmp_path / "a.xml"], tmp_path, min_characters=0)[0]


def test_folder_takes_each_file_once_whatever_the_workers(tmp_path):
    for name in ("b.xml.gz", "a.xml.gz", "a.xml"):
        write(tmp_path / "in" / name)
    (tmp_path / "in" / "a.xml.gz.md5").write_text("x")
    one, record = abstracts([tmp_path / "in"], tmp_path / "1")
    assert one == EXPECTED * 2 and [entry["name"] for entry in record["inputs"]] == ["a.xml", "b.xml.gz"]
    assert abstracts([tmp_path / "in"], tmp_path / "2", workers=2)[0] == one


def test_entities_are_refused(tmp_path):
    laughs = '<!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;">]>\n<PubmedArticleSet>'
    outside = '<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/hostname">]>\n<PubmedArticleSet>'
    for head in (laughs, outside):
        with pytest.raises(UserError, match=r"a\.xml: declares the XML entity 'a'"):
            abstracts([write(tmp_path / "a.xml", head=head)], tmp_path)


def test_broken_files_are_errors(tmp_path):
    path = write(tmp_path / "a.xml")
    path.write_bytes(path.read_bytes()[:700])
    with pytest.raises(UserError, match=r"a\.xml:\d+: broken XML"):
        abstracts([path], tmp_path)
    path = write(tmp_path / "b.xml.gz")
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(UserError, match="broken or incomplete gzip"):
        abstracts([path], tmp_path)
    with pytest.raises(UserError, match="no abstract"):
        abstracts([write(tmp_path / "c.xml", ARTICLES[1:3])], tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"no \.xml or \.xml\.gz"):
        abstracts([tmp_path / "empty"], tmp_path)
