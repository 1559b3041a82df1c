from pathlib import Path

import pytest

from data import layout
from runkit.errors import UserError
from runkit.files import write_json

# As the published scripts spell it, for example in DeepLearningExamples' run_pretraining_lamb_phase1.sh.
PUBLISHED = (
    "lower_case_1_seq_len_128_max_pred_20_masked_lm_prob_0.15_random_seed_12345_dupe_factor_5_shard_1472_test_split_10"
)


def test_config_name_is_the_published_one():
    assert layout.config_name(128, 20, 1472) == PUBLISHED


@pytest.mark.parametrize(("fraction", "percent"), [(0.1, 10), (0.05, 5), (0.29, 29), (0.125, 12)])
def test_test_share_is_whole_percent_without_float_error(fraction, percent):
    assert layout.config_name(512, 80, 8, fraction_test_set=fraction).endswith(f"_test_split_{percent}")


def make_records(root: Path, dataset: str, config: str = PUBLISHED, splits=("training", "test")) -> Path:
    folder = layout.tfrecord_folder(root, config, dataset)
    for split in splits:
        write_json(folder / split / "manifest.json", {})
    return folder


def test_the_only_corpus_is_found(tmp_path):
    folder = make_records(tmp_path, "embedded")
    assert layout.find_datasets(tmp_path, 128, 20, []) == [folder]


def test_published_corpora_come_first(tmp_path):
    make_records(tmp_path, "embedded")
    wiki = make_records(tmp_path, "wikicorpus_en")
    assert layout.find_datasets(tmp_path, 128, 20, []) == [wiki]
    both = make_records(tmp_path, "books_wiki_en_corpus")
    assert layout.find_datasets(tmp_path, 128, 20, []) == [both]


def test_named_sources_keep_their_order(tmp_path):
    a, b = make_records(tmp_path, "a"), make_records(tmp_path, "b")
    assert layout.find_datasets(tmp_path, 128, 20, ["b", "a"]) == [b, a]


def test_nothing_there_names_the_command(tmp_path):
    make_records(tmp_path, "other_length", PUBLISHED.replace("seq_len_128", "seq_len_64"))
    make_records(tmp_path, "unfinished", splits=("training",))
    with pytest.raises(UserError, match=r"sequence length 128.*create_datasets_from_start.sh embedded"):
        layout.find_datasets(tmp_path, 128, 20, [])


def test_several_corpora_want_a_choice(tmp_path):
    make_records(tmp_path, "a")
    make_records(tmp_path, "b")
    with pytest.raises(UserError, match=r"a, b; choose with SOURCES"):
        layout.find_datasets(tmp_path, 128, 20, [])


def test_unknown_source_lists_what_is_there(tmp_path):
    make_records(tmp_path, "a")
    with pytest.raises(UserError, match=rf"SOURCES names wiki.*\n  {PUBLISHED}/a"):
        layout.find_datasets(tmp_path, 128, 20, ["wiki"])


def test_several_settings_want_the_config(tmp_path):
    other = PUBLISHED.replace("seed_12345", "seed_7")
    make_records(tmp_path, "a")
    wanted = make_records(tmp_path, "a", other)
    with pytest.raises(UserError, match="several settings"):
        layout.find_datasets(tmp_path, 128, 20, ["a"])
    assert layout.find_datasets(tmp_path, 128, 20, [f"{other}/a"]) == [wanted]


def test_find_prints_both_splits(tmp_path, monkeypatch, capsys):
    a, b = make_records(tmp_path, "a"), make_records(tmp_path, "b")
    words = f"layout find --data_dir {tmp_path} --max_seq_length 128 --max_predictions_per_seq 20"
    monkeypatch.setattr("sys.argv", [*words.split(), "--source", "a", "--source=b"])
    layout.main()
    assert capsys.readouterr().out == f"training {a}/training,{b}/training\ntest {a}/test,{b}/test\n"


def test_config_name_counts_the_shards(tmp_path, monkeypatch, capsys):
    write_json(tmp_path / "manifest.json", {"training": {"shards": 1472}})
    words = f"layout config_name --max_seq_length 128 --max_predictions_per_seq 20 --sharded {tmp_path}"
    monkeypatch.setattr("sys.argv", words.split())
    layout.main()
    assert capsys.readouterr().out == PUBLISHED + "\n"


@pytest.mark.parametrize("name", ["", "a b", "a,b", "../x", "a/b", ".hidden"])
def test_names_that_would_break_paths_are_refused(name):
    with pytest.raises(layout.argparse.ArgumentTypeError):
        layout.dataset_name(name)
