import pytest

from data import stage
from runkit.files import read_json, write_json


def outputs(folder, size=3):
    (folder / "training").mkdir(parents=True)
    (folder / "training" / "x.bin").write_bytes(b"1" * size)
    write_json(folder / "training" / "manifest.json", {"files": {"x.bin": {"bytes": size}}})


def test_a_stage_is_current_once_ended(tmp_path):
    assert stage.begin(tmp_path, [1], {"k": "v"})
    outputs(tmp_path)
    assert stage.begin(tmp_path, [1], {"k": "v"}), "begun is not done"
    stage.end(tmp_path)
    assert not stage.begin(tmp_path, [1], {"k": "v"})


def test_what_an_interrupted_run_made_stays(tmp_path):
    stage.begin(tmp_path, [1], {})
    outputs(tmp_path)
    stage.begin(tmp_path, [1], {})
    assert (tmp_path / "training" / "x.bin").exists()


def test_other_input_or_settings_clear_the_folder_and_say_which(tmp_path, capsys):
    for inputs, settings, changed in (([2], {"k": "v"}, "inputs"), ([1], {"k": "w"}, "k"), ([1], {}, "k")):
        folder = tmp_path / changed / str(len(settings))
        stage.begin(folder, [1], {"k": "v"})
        outputs(folder)
        stage.end(folder)
        assert stage.begin(folder, inputs, settings)
        assert not (folder / "training").exists()
        assert f"made with other {changed}, " in capsys.readouterr().err


def test_a_folder_without_record_is_not_cleared(tmp_path):
    outputs(tmp_path)
    assert stage.begin(tmp_path, [1], {})
    assert (tmp_path / "training" / "x.bin").exists()


def test_a_lost_or_short_file_is_noticed(tmp_path):
    stage.begin(tmp_path, [1], {})
    outputs(tmp_path)
    stage.end(tmp_path)
    (tmp_path / "training" / "x.bin").write_bytes(b"1")
    assert not stage.files_are_whole(tmp_path / stage.RECORD)
    (tmp_path / "training" / "x.bin").unlink()
    assert not stage.files_are_whole(tmp_path / stage.RECORD)


def test_a_file_is_made_once_and_a_failure_leaves_it(tmp_path):
    path = tmp_path / "a.txt"

    def write(text):
        return lambda stream: {"length": stream.write(text)}

    record = stage.make_file(path, [1], {}, write("one"))
    assert record["length"] == 3 and path.read_text(encoding="utf-8") == "one"
    assert read_json(tmp_path / "a.manifest.json") == record
    assert stage.make_file(path, [1], {}, write("two")) is None
    assert path.read_text(encoding="utf-8") == "one"
    with pytest.raises(ZeroDivisionError):
        stage.make_file(path, [2], {}, lambda stream: 1 / 0)
    assert path.read_text(encoding="utf-8") == "one"
    assert stage.make_file(path, [1], {}, write("two")), "nothing vouches for the file after a failure"


def test_fingerprint_names_the_file_by_content(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.txt").write_bytes(b"abc")
    # SHA-256 of "abc": FIPS 180-2, appendix B.1
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert stage.fingerprint([tmp_path / "a" / "x.txt"], tmp_path) == [
        {"name": "a/x.txt", "bytes": 3, "sha256": digest}
    ]


def test_command_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "in.txt").write_bytes(b"abc")
    folder = tmp_path / "out"
    begin = f"stage begin {folder} --inputs {tmp_path / 'in.txt'} --settings seed=1 name=x".split()
    monkeypatch.setattr("sys.argv", begin)
    stage.main()
    outputs(folder)
    monkeypatch.setattr("sys.argv", ["stage", "end", str(folder)])
    stage.main()
    monkeypatch.setattr("sys.argv", begin)
    stage.main()
    assert capsys.readouterr().out.split() == ["begun", "current"]
    assert read_json(folder / stage.RECORD)["settings"] == {"seed": "1", "name": "x"}
