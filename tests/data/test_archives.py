"""data/archives.py against good, hostile and broken archives."""

import hashlib
import io
import lzma
import os
import shutil
import stat
import tarfile
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from data import archives
from data.archives import unpacked
from runkit.errors import UserError

CONTENT = b"".join(hashlib.sha256(b"%d" % i).digest() for i in range(8192))  # 256 KiB that do not compress
GOOD = {"top/a.txt": b"alpha", "top/deep/b.bin": CONTENT[:5000], "top/empty": b""}


def unpack(archive: Path, target: Path, max_bytes: int | None = None) -> None:
    with unpacked(archive, target.parent, max_bytes) as tree:
        os.rename(tree, target)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def member(name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE, link: str = "") -> tuple:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, len(data)
    return info, data


def make_tar(path: Path, members: list[tuple], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as tar:
        for info, data in members:
            tar.addfile(info, io.BytesIO(data))
    return path


def make_zip(path: Path, members: dict[str, bytes], unix_mode: int = 0) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = unix_mode << 16
            archive.writestr(info, data)
    return path


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("suffix", ["tar", "tar.gz", "tar.bz2", "tar.xz", "zip"])
def test_good_archives(tmp_path: Path, suffix: str):
    archive = tmp_path / "good.dat"  # known by what is in it, not by its name
    if suffix == "zip":
        make_zip(archive, GOOD)
    else:
        members = [member("./", kind=tarfile.DIRTYPE), *(member(f"./{name}", data) for name, data in GOOD.items())]
        make_tar(archive, members, "w:" + suffix.partition(".")[2])
    unpack(archive, tmp_path / "out")
    assert contents(tmp_path / "out") == GOOD
    assert names(tmp_path) == ["good.dat", "out"]


def test_links_inside_are_kept(tmp_path: Path):
    members = [
        member("top/soft", kind=tarfile.SYMTYPE, link="deep/../a.txt"),
        *(member(name, data) for name, data in GOOD.items()),
        member("top/hard", kind=tarfile.LNKTYPE, link="top/a.txt"),
    ]
    unpack(make_tar(tmp_path / "a.tar", members), tmp_path / "out")
    assert contents(tmp_path / "out") == GOOD | {"top/soft": b"alpha", "top/hard": b"alpha"}
    assert os.readlink(tmp_path / "out" / "top" / "soft") == "deep/../a.txt"
    make_zip(tmp_path / "a.zip", {"link": b"somewhere"}, stat.S_IFLNK | 0o777)
    unpack(tmp_path / "a.zip", tmp_path / "zipped")
    assert os.readlink(tmp_path / "zipped" / "link") == "somewhere"


DIR, SYM, LNK = tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE
HOSTILE = {
    "absolute": [member("/etc/evil", b"x")],
    "parent": [member("../evil", b"x")],
    "parent within": [member("top/../../evil", b"x")],
    "backslashes": [member("top\\..\\..\\evil", b"x")],
    "drive": [member("C:\\evil", b"x")],
    "parent folder": [member("../evil", kind=DIR)],
    "symlink out": [member("link", kind=SYM, link="../outside")],
    "absolute symlink": [member("link", kind=SYM, link="/etc/passwd")],
    "hardlink out": [member("link", kind=LNK, link="../outside")],
    "absolute hardlink": [member("link", kind=LNK, link="/etc/passwd")],
    "hardlink to nothing": [member("link", kind=LNK, link="none")],
    "through a symlink": [member("link", kind=SYM, link="."), member("link/file", b"x")],
    "through a symlink out": [member("link", kind=SYM, link=".."), member("link/evil", b"x")],
    "link through links": [
        member("a", kind=SYM, link="x/y/../.."),  # the tree itself until x and y are made
        member("x", kind=SYM, link="."),
        member("y", kind=SYM, link="."),
        member("a/evil", kind=SYM, link="x"),
    ],
    "links that climb": [
        member("a", kind=SYM, link="x/y/../.."),
        member("x", kind=SYM, link="."),
        member("y", kind=SYM, link="."),
    ],
    "character device": [member("null", kind=tarfile.CHRTYPE)],
    "block device": [member("disk", kind=tarfile.BLKTYPE)],
    "fifo": [member("pipe", kind=tarfile.FIFOTYPE)],
    "twice": [member("a", b"x"), member("a", b"y")],
    "file and folder": [member("a", b"x"), member("a/b", b"y")],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_tars(tmp_path: Path, name: str):
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "outside").write_text("untouched")
    archive = make_tar(inside / "bad.tar", [member("good", b"x"), *HOSTILE[name]])
    with pytest.raises(UserError, match=r"bad\.tar: .*(not unpacked|not in it)"):
        unpack(archive, inside / "out")
    assert names(inside) == ["bad.tar"] and names(tmp_path) == ["inside", "outside"]
    assert (tmp_path / "outside").read_text() == "untouched"


@pytest.mark.parametrize(
    "members, mode",
    [
        ({"/etc/evil": b"x"}, 0),
        ({"../evil": b"x"}, 0),
        ({"top/../../evil": b"x"}, stat.S_IFREG | 0o644),
        ({"..\\evil": b"x"}, 0),
        ({"link": b"../outside"}, stat.S_IFLNK | 0o777),
        ({"link": b"/etc/passwd"}, stat.S_IFLNK | 0o777),
        ({"pipe": b""}, stat.S_IFIFO | 0o644),
    ],
)
def test_hostile_zips(tmp_path: Path, members: dict[str, bytes], mode: int):
    inside = tmp_path / "inside"
    inside.mkdir()
    archive = make_zip(inside / "bad.zip", members, mode)
    with pytest.raises(UserError, match="not unpacked"):
        unpack(archive, inside / "out")
    assert names(inside) == ["bad.zip"] and names(tmp_path) == ["inside"]


def test_an_encrypted_zip(tmp_path: Path):
    archive = make_zip(tmp_path / "a.zip", {"a": b"x"})
    data = bytearray(archive.read_bytes())
    data[6] |= 1  # flag in the local header
    data[data.index(b"PK\1\2") + 8] |= 1  # and in the directory
    archive.write_bytes(data)
    with pytest.raises(UserError, match="is encrypted"):
        unpack(archive, tmp_path / "out")


def test_bombs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(archives, "MAX_RATIO_FREE", 1 << 20)
    zeros = bytes(4 << 20)
    for archive in (
        make_tar(tmp_path / "bomb.tar.gz", [member("zeros", zeros)], "w:gz"),
        make_zip(tmp_path / "bomb.zip", {"zeros": zeros}),
    ):
        with pytest.raises(UserError, match="more bytes than 100 times its own"):
            unpack(archive, tmp_path / "out")
    plain = make_tar(tmp_path / "plain.tar", [member("a", CONTENT)])
    with pytest.raises(UserError, match="more bytes than expected"):
        unpack(plain, tmp_path / "out", max_bytes=len(CONTENT) - 1)
    unpack(plain, tmp_path / "enough", max_bytes=len(CONTENT))
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=archives.SPARE_BYTES + 1000))
        with pytest.raises(UserError, match="free some space"):
            unpack(plain, tmp_path / "out")
        packed = make_tar(tmp_path / "packed.tar.gz", [member("a", bytes(100_000))], "w:gz")
        with pytest.raises(UserError, match="than the disk has free"):
            unpack(packed, tmp_path / "out")
    monkeypatch.setattr(archives, "MAX_MEMBERS", 2)
    many = make_tar(tmp_path / "many.tar", [member(str(i)) for i in range(3)])
    with pytest.raises(UserError, match="more than 2 members"):
        unpack(many, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("suffix", ["tar", "tar.gz", "tar.bz2", "tar.xz", "zip"])
def test_cut_archives(tmp_path: Path, suffix: str):
    archive = tmp_path / "cut.dat"
    if suffix == "zip":
        make_zip(archive, GOOD)
    else:
        make_tar(archive, [member(name, data) for name, data in GOOD.items()], "w:" + suffix.partition(".")[2])
    whole = archive.read_bytes()
    # A plain tar may lose the blocks behind its end mark; 512 is where a header ends and its content begins.
    ends = [0, 1, 100, 512, 1000, 1024, 3000, len(whole) // 2, len(whole) * 3 // 4]
    ends += [] if suffix == "tar" else [len(whole) - 9, len(whole) - 1]
    for end in ends:
        if end < (len(whole) if suffix != "tar" else 512 * 15):
            archive.write_bytes(whole[:end])
            with pytest.raises(UserError, match="broken or incomplete"):
                unpack(archive, tmp_path / "out")
    assert names(tmp_path) == ["cut.dat"]


def test_damaged_bytes_are_found_where_the_format_has_checksums(tmp_path: Path):
    for suffix in ("gz", "bz2", "xz"):
        archive = make_tar(tmp_path / "a.tar", [member("a", CONTENT)], f"w:{suffix}")
        data = bytearray(archive.read_bytes())
        data[len(data) // 2] ^= 0xFF
        archive.write_bytes(data)
        with pytest.raises(UserError, match="broken or incomplete"):
            unpack(archive, tmp_path / "out")
    # A damaged header in the middle is not the end of the archive.
    archive = make_tar(tmp_path / "b.tar", [member("a", b"x"), member("b", b"y")])
    data = bytearray(archive.read_bytes())
    data[1024 + 150] ^= 0xFF
    archive.write_bytes(data)
    with pytest.raises(UserError, match="broken or incomplete"):
        unpack(archive, tmp_path / "out")


def test_what_is_no_archive(tmp_path: Path):
    for data in (b"", b"hello " * 1000, lzma.compress(b"hello"), b"PK nothing"):
        (tmp_path / "a").write_bytes(data)
        with pytest.raises(UserError, match="broken or incomplete"):
            unpack(tmp_path / "a", tmp_path / "out")
    with pytest.raises(UserError, match="No such file"):
        unpack(tmp_path / "none", tmp_path / "out")


def test_what_a_killed_run_left_goes(tmp_path: Path):
    archive = make_tar(tmp_path / "a.tar", [member("a", b"x")])
    left = tmp_path / ".a.tar.0123abcd.tmp"
    left.mkdir()
    (left / "half").write_text("x")
    with unpacked(archive, tmp_path) as tree:
        assert names(tree) == ["a"]
        with pytest.raises(UserError, match="another process"), unpacked(archive, tmp_path):
            pass
    assert names(tmp_path) == ["a.tar"]
