"""The data sets and weights that the recipes know, and where each comes from: rows.

data/datasets.py fetches them. Checked are: the SHA-256 of every file where one is public, the publisher's own lists
where there are such (SHA-1 or MD5 of Wikimedia's dumps, MD5 beside PubMed's archives), and otherwise the length that
the server tells.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from runkit.errors import UserError

# ------------------------------------------------------------------------------------------------ what a data set is


class Item(NamedTuple):
    """A file to download, or an archive of which one folder is wanted."""

    url: str
    path: str  # below the data folder: of the file, or of what the archive's folder becomes
    n_bytes: int | None = None  # of what is downloaded; None: unknown, the server's word counts
    sha256: str | None = None
    sha1: str | None = None
    md5: str | None = None
    md5_beside: bool = False  # the server has <url>.md5
    contents: Mapping[str, str | None] = {}  # of an archive: files that must be in it, with SHA-256 where public
    inside: str = ""  # end of the folder's path in the archive, where several folders have such files

    @property
    def archive(self) -> str:
        """The archive's own place, below the data folder."""
        name = self.url.rsplit("/", 1)[-1]
        return f"download/archives/{name if '.' in name else Path(self.path).name + '.zip'}"


class Files(NamedTuple):
    """Items known beforehand."""

    items: tuple[Item, ...]


class Dump(NamedTuple):
    """A wiki of dumps.wikimedia.org; which files, and their digests, is asked of the server."""

    project: str
    path: str  # of the XML file


class Listing(NamedTuple):
    """The files of a server's folder whose whole name matches a pattern."""

    url: str
    pattern: str
    path: str  # of the folder
    md5_beside: bool = False


class ByHand(NamedTuple):
    """What cannot be downloaded: where it belongs, and how to come by it."""

    path: str
    remedy: str


class Dataset(NamedTuple):
    what: str
    source: Files | Dump | Listing | ByHand
    about_bytes: int | None = None  # of the download, for plans only; None: unknown, or the sum of the items


# ------------------------------------------------------------------------------------------------------- the registry

SQUAD = "https://rajpurkar.github.io/SQuAD-explorer/dataset"
GLUE = "https://dl.fbaipublicfiles.com/glue/data"
SENTEVAL = "https://dl.fbaipublicfiles.com/senteval/senteval_data"
GOOGLE = "https://storage.googleapis.com/bert_models"
NGC = "https://api.ngc.nvidia.com/v2/models/nvidia"
NCBI = "https://ftp.ncbi.nlm.nih.gov"
WIKIMEDIA = "https://dumps.wikimedia.org"
BLUE = "https://github.com/ncbi-nlp/BLUE_Benchmark/releases/download/0.1/bert_data.zip"


def _squad(version: str, split: str, n_bytes: int, sha256: str) -> Item:
    name = f"{split}-v{version}.json"
    return Item(f"{SQUAD}/{name}", f"download/squad/v{version}/{name}", n_bytes, sha256)


def _glue(task: str, file: str, n_bytes: int, sha256: str, contents: Sequence[str] = ("train", "dev", "test")) -> Files:
    names = dict.fromkeys((f"{name}.tsv" for name in contents), None)
    return Files((Item(f"{GLUE}/{file}", f"download/glue/{task}", n_bytes, sha256, contents=names),))


def _google(date: str, name: str, *digests: str) -> Files:
    """digests: SHA-256 of the files in the order of GOOGLE_FILES."""
    path = f"download/google_pretrained_weights/{name}"
    contents = dict(zip(GOOGLE_FILES, digests, strict=True))
    return Files((Item(f"{GOOGLE}/{date}/{name}.zip", path, contents=contents),))


def _ngc(name: str, folder: str) -> Files:
    contents = dict.fromkeys(("bert_config.json", "model.ckpt.index", "vocab.txt"), None)
    url = f"{NGC}/{name}/versions/19.03.1/zip"
    return Files((Item(url, f"download/nvidia_pretrained/{folder}", contents=contents),))


def _blue(folder: str, path: str, *names: str) -> Item:
    return Item(BLUE, f"biobert/{path}", contents=dict.fromkeys(names, None), inside=folder)


GOOGLE_FILES = (
    "bert_config.json",
    "bert_model.ckpt.data-00000-of-00001",
    "bert_model.ckpt.index",
    "bert_model.ckpt.meta",
    "vocab.txt",
)
UNCASED_VOCAB = "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"
CASED_VOCAB = "eeaa9875b23b04b4c54ef759d03db9d1ba1554838f8fb26c5d96fa551df93d02"

# SHA-256 and sizes: of SQuAD and GLUE as TensorFlow Datasets and Hugging Face Datasets have published them; of Google's
# weights as NVIDIA's recipe has. NVIDIA, NCBI (full texts) and the BLUE benchmark publish none. about_bytes are
# estimates: of weights the number of parameters x 4 bytes x 0.93 (the packing of the base model's archive, whose size
# is known, as is multi_cased's); of PubMed 1,334 files (in 2026) of some 30 MB.
DATASETS: dict[str, Dataset] = {
    # Unpacked, the dumps are about four times as large; they are read packed.
    "wikicorpus_en": Dataset(
        "English Wikipedia, pages and articles",
        Dump("enwiki", "download/wikicorpus_en/wikicorpus_en.xml.bz2"),
        22_000_000_000,
    ),
    "wikicorpus_zh": Dataset(
        "Chinese Wikipedia, pages and articles", Dump("zhwiki", "download/wikicorpus_zh/wikicorpus_zh.xml.bz2")
    ),
    "bookscorpus": Dataset(
        "books, one text file each",
        ByHand(
            "download/bookscorpus",
            "BookCorpus cannot be downloaded: it was never published as an archive, and the site that its texts were "
            "taken from refuses most requests. Put the books that you have there, as text files or as an archive of "
            "them, or name their folder or archive in BOOKS",
        ),
    ),
    "squad": Dataset(
        "SQuAD 1.1 and 2.0, questions and answers",
        Files(
            (
                _squad(
                    "1.1",
                    "train",
                    30_288_272,
                    "3527663986b8295af4f7fcdff1ba1ff3f72d07d61a20f487cb238a6ef92fd955",
                ),
                _squad("1.1", "dev", 4_854_279, "95aa6a52d5d6a735563366753ca50492a658031da74f301ac5238b03966972c9"),
                _squad(
                    "2.0",
                    "train",
                    42_123_633,
                    "68dcfbb971bd3e96d5b46c7177b16c1a4e7d4bdef19fb204502738552dede002",
                ),
                _squad("2.0", "dev", 4_370_528, "80a5225e94905956a6446d296ca1093975c4d3b3260f1d6c8f68bc2ab77182d8"),
            )
        ),
    ),
    "cola": Dataset(
        "GLUE: acceptability",
        _glue("CoLA", "CoLA.zip", 376_971, "f212fcd832b8f7b435fb991f101abf89f96b933ab400603bf198960dfc32cbff"),
    ),
    "sst-2": Dataset(
        "GLUE: sentiment",
        _glue("SST-2", "SST-2.zip", 7_439_277, "d67e16fb55739c1b32cdce9877596db1c127dc322d93c082281f64057c16deaa"),
    ),
    "mrpc": Dataset(  # Microsoft's files, and the pairs of them that GLUE took for its development set
        "GLUE: paraphrase",
        Files(
            (
                Item(
                    f"{SENTEVAL}/msr_paraphrase_train.txt",
                    "download/glue/MRPC/msr_paraphrase_train.txt",
                    1_047_044,
                    "60a9b09084528f0673eedee2b69cb941920f0b8cd0eeccefc464a98768457f89",
                ),
                Item(
                    f"{SENTEVAL}/msr_paraphrase_test.txt",
                    "download/glue/MRPC/msr_paraphrase_test.txt",
                    441_275,
                    "a04e271090879aaba6423d65b94950c089298587d9c084bf9cd7439bd785f784",
                ),
                Item(
                    f"{GLUE}/mrpc_dev_ids.tsv",
                    "download/glue/MRPC/dev_ids.tsv",
                    6_222,
                    "971d7767d81b997fd9060ade0ec23c4fc31cbb226a55d1bd4a1bac474eb81dc7",
                ),
            )
        ),
    ),
    "qqp": Dataset(
        "GLUE: question pairs",
        _glue("QQP", "QQP-clean.zip", 41_696_084, "40e7c862c04eb26ee04b67fd900e76c45c6ba8e6d8fab4f8f1f8072a1a3fbae0"),
    ),
    "sts-b": Dataset(
        "GLUE: similarity",
        _glue("STS-B", "STS-B.zip", 802_872, "e60a6393de5a8b5b9bac5020a1554b54e3691f9d600b775bd131e613ac179c85"),
    ),
    "mnli": Dataset(
        "GLUE: inference",
        _glue(
            "MNLI",
            "MNLI.zip",
            312_783_507,
            "e7c1d896d26ed6caf700110645df426cc2d8ebf02a5ab743d5a5c68ac1c83633",
            ("train", "dev_matched", "dev_mismatched", "test_matched", "test_mismatched"),
        ),
    ),
    "qnli": Dataset(
        "GLUE: question inference",
        _glue("QNLI", "QNLIv2.zip", 10_627_589, "e634e78627a29adaecd4f955359b22bf5e70f2cbd93b493f2d624138a0c0e5f5"),
    ),
    "rte": Dataset(
        "GLUE: entailment",
        _glue("RTE", "RTE.zip", 697_150, "6bf86de103ecd335f3441bd43574d23fef87ecc695977a63b82d5efb206556ee"),
    ),
    "wnli": Dataset(
        "GLUE: coreference",
        _glue("WNLI", "WNLI.zip", 28_999, "ae0e8e4d16f4d46d4a0a566ec7ecceccfd3fbfaa4a7a4b4e02848c0f2561ac46"),
    ),
    "ax": Dataset(
        "GLUE: diagnostics",
        Files(
            (
                Item(
                    f"{GLUE}/AX.tsv",
                    "download/glue/AX/AX.tsv",
                    222_257,
                    "0e13510b1bb14436ff7e2ee82338f0efb0133ecf2e73507a697dc210db3f05fd",
                ),
            )
        ),
    ),
    "uncased_L-12_H-768_A-12": Dataset(
        "BERT base, uncased",
        _google(
            "2018_10_18",
            "uncased_L-12_H-768_A-12",
            "7b4e5f53efbd058c67cda0aacfafb340113ea1b5797d9ce6ee411704ba21fcbc",
            "58580dc5e0bf0ae0d2efd51d0e8272b2f808857f0a43a88aaf7549da6d7a8a84",
            "04c1323086e2f1c5b7c0759d8d3e484afbb0ab45f51793daab9f647113a0117b",
            "dd5682170a10c3ea0280c2e9b9a45fee894eb62da649bbdea37b38b0ded5f60e",
            UNCASED_VOCAB,
        ),
        407_727_028,
    ),
    "uncased_L-24_H-1024_A-16": Dataset(
        "BERT large, uncased",
        _google(
            "2018_10_18",
            "uncased_L-24_H-1024_A-16",
            "bfa42236d269e2aeb3a6d30412a33d15dbe8ea597e2b01dc9518c63cc6efafcb",
            "bc6b3363e3be458c99ecf64b7f472d2b7c67534fd8f564c0556a678f90f4eea1",
            "68b52f2205ffc64dc627d1120cf399c1ef1cbc35ea5021d1afc889ffe2ce2093",
            "6fcce8ff7628f229a885a593625e3d5ff9687542d5ef128d9beb1b0c05edc4a1",
            UNCASED_VOCAB,
        ),
        1_250_000_000,
    ),
    "cased_L-12_H-768_A-12": Dataset(
        "BERT base, cased",
        _google(
            "2018_10_18",
            "cased_L-12_H-768_A-12",
            "f11dfb757bea16339a33e1bf327b0aade6e57fd9c29dc6b84f7ddb20682f48bc",
            "734d5a1b68bf98d4e9cb6b6692725d00842a1937af73902e51776905d8f760ea",
            "517d6ef5c41fc2ca1f595276d6fccf5521810d57f5a74e32616151557790f7b1",
            "5f8a9771ff25dadd61582abb4e3a748215a10a6b55947cbb66d0f0ba1694be98",
            CASED_VOCAB,
        ),
        400_000_000,
    ),
    "cased_L-24_H-1024_A-16": Dataset(
        "BERT large, cased",
        _google(
            "2018_10_18",
            "cased_L-24_H-1024_A-16",
            "7adb2125c8225da495656c982fd1c5f64ba8f20ad020838571a3f8a954c2df57",
            "6ff33640f40d472f7a16af0c17b1179ca9dcc0373155fb05335b6a4dd1657ef0",
            "ef42a53f577fbe07381f4161b13c7cab4f4fc3b167cec6a9ae382c53d18049cf",
            "d2ddff3ed33b80091eac95171e94149736ea74eb645e575d942ec4a5e01a40a1",
            CASED_VOCAB,
        ),
        1_240_000_000,
    ),
    "multi_cased_L-12_H-768_A-12": Dataset(
        "BERT base, 104 languages, cased",
        _google(
            "2018_11_23",
            "multi_cased_L-12_H-768_A-12",
            "e76c3964bc14a8bb37a5530cdc802699d2f4a6fddfab0611e153aa2528f234f0",
            "55b8a2df41f69c60c5180e50a7c31b7cdf6238909390c4ddf05fbc0d37aa1ac5",
            "7d8509c2a62b4e300feb55f8e5f1eef41638f4998dd4d887736f42d4f6a34b37",
            "95e5f1997e8831f1c31e5cf530f1a2e99f121e9cd20887f2dce6fe9e3343e3fa",
            "fe0fda7c425b48c516fc8f160d594c8022a0808447475c1a7c6d6479763f310c",
        ),
        662_903_077,
    ),
    "multilingual_L-12_H-768_A-12": Dataset(
        "BERT base, 102 languages, uncased",
        _google(
            "2018_11_03",
            "multilingual_L-12_H-768_A-12",
            "49063bb061390211d2fdd108cada1ed86faa5f90b80c8f6fdddf406afa4c4624",
            "3cd83912ebeb0efe2abf35c9f1d5a515d8e80295e61c49b75c8853f756658429",
            "87c372c1a3b1dc7effaaa9103c80a81b3cbab04c7933ced224eec3b8ad2cc8e7",
            "27f504f34f02acaa6b0f60d65195ec3e3f9505ac14601c6a32b421d0c8413a29",
            "87b44292b452f6c05afa49b2e488e7eedf79ea4f4c39db6f2f4b37764228ef3f",
        ),
        620_000_000,
    ),
    "chinese_L-12_H-768_A-12": Dataset(
        "BERT base, Chinese",
        _google(
            "2018_11_03",
            "chinese_L-12_H-768_A-12",
            "7aaad0335058e2640bcb2c2e9a932b1cd9da200c46ea7b8957d54431f201c015",
            "756699356b78ad0ef1ca9ba6528297bcb3dd1aef5feadd31f4775d7c7fc989ba",
            "46315546e05ce62327b3e2cd1bed22836adcb2ff29735ec87721396edb21b82e",
            "c0f8d51e1ab986604bc2b25d6ec0af7fd21ff94cf67081996ec3f3bf5d823047",
            "45bbac6b341c319adc98a532532882e91a9cefc0329aa57bac9ae761c27b291c",
        ),
        380_000_000,
    ),
    "nvidia_squad11_large_384": Dataset(
        "NVIDIA's BERT large, answers questions",
        _ngc("bert_tf_ckpt_large_qa_squad11_amp_384", "bert_tf_squad11_large_384"),
    ),
    "nvidia_squad11_base_128": Dataset(
        "NVIDIA's BERT base, answers questions",
        _ngc("bert_tf_ckpt_base_qa_squad11_amp_128", "bert_tf_squad11_base_128"),
    ),
    "nvidia_pretraining_large_lamb": Dataset(
        "NVIDIA's BERT large, pre-trained with LAMB",
        _ngc("bert_tf_ckpt_large_pretraining_amp_lamb", "bert_tf_pretraining_large_lamb"),
    ),
    "pubmed_baseline": Dataset(
        "PubMed's records of the year, with abstracts",
        Listing(f"{NCBI}/pubmed/baseline", r"pubmed\d+n\d+\.xml\.gz", "download/pubmed/baseline", md5_beside=True),
        40_000_000_000,
    ),
    "pubmed_daily_update": Dataset(
        "PubMed's records since then",
        Listing(
            f"{NCBI}/pubmed/updatefiles", r"pubmed\d+n\d+\.xml\.gz", "download/pubmed/daily_update", md5_beside=True
        ),
    ),
    "pubmed_fulltext": Dataset(
        "PubMed Central, articles for any use",
        Listing(f"{NCBI}/pub/pmc/oa_bulk/oa_comm/xml", r"oa_comm_xml\.[\w.-]+\.tar\.gz", "download/pubmed/fulltext"),
    ),
    "pubmed_open_access": Dataset(
        "PubMed Central, articles for non-commercial use",
        Listing(
            f"{NCBI}/pub/pmc/oa_bulk/oa_noncomm/xml", r"oa_noncomm_xml\.[\w.-]+\.tar\.gz", "download/pubmed/open_access"
        ),
    ),
    "bc5cdr": Dataset(
        "BC5CDR of the BLUE benchmark, chemicals and diseases",
        Files(
            tuple(
                _blue(f"BC5CDR/{kind}", f"BC5CDR/{kind}", "train.tsv", "devel.tsv", "test.tsv")
                for kind in ("chem", "disease")
            )
        ),
    ),
    "chemprot": Dataset(
        "ChemProt of the BLUE benchmark, relations",
        Files((_blue("ChemProt", "chemprot-data_treeLSTM", "train.tsv", "dev.tsv", "test.tsv"),)),
    ),
}

GLUE_TASKS = ("cola", "sst-2", "mrpc", "qqp", "sts-b", "mnli", "qnli", "rte", "wnli", "ax")
GROUPS: dict[str, tuple[str, ...]] = {
    "glue": GLUE_TASKS,
    "google_pretrained_weights": tuple(name for name in DATASETS if "_H-" in name),
    "nvidia_pretrained": tuple(name for name in DATASETS if name.startswith("nvidia_")),
}
GROUPS["weights"] = GROUPS["google_pretrained_weights"] + GROUPS["nvidia_pretrained"]


def expand(names: Iterable[str]) -> list[str]:
    """Names with each group replaced by its members, each once. Raises UserError for an unknown one."""
    expanded: list[str] = []
    for name in names:
        if name not in DATASETS and name not in GROUPS:
            raise UserError(f"there is no data set {name!r}; there are {', '.join([*GROUPS, *DATASETS])}")
        expanded += GROUPS.get(name, (name,))
    return list(dict.fromkeys(expanded))


def checked_by(dataset: Dataset) -> str:
    """What a download is compared with."""
    match dataset.source:
        case Dump():
            return "SHA-1 or MD5 list of the dump"
        case Listing(md5_beside=True):
            return "MD5 beside each file"
        case Files(items) if all(item.sha256 for item in items):
            return "SHA-256"
        case Files(items) if all(digest for item in items for digest in item.contents.values()):
            return "SHA-256 of each file in it"
        case ByHand():
            return "-"
    return "the server's length (no digest is public)"


def listed_bytes(name: str) -> int | None:
    """Bytes to download for a data set by the registry, or about so many; None where it does not know."""
    dataset = DATASETS[name]
    if dataset.about_bytes is not None or not isinstance(dataset.source, Files):
        return dataset.about_bytes
    sizes = [item.n_bytes for item in dataset.source.items]
    return None if None in sizes else sum(sizes)


def where(dataset: Dataset) -> list[str]:
    """Its files and folders, below the data folder."""
    source = dataset.source
    return [item.path for item in source.items] if isinstance(source, Files) else [source.path]
