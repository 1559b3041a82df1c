"""Hostile tar and zip archives."""

import bz2
import gzip
import io
import lzma
import os
import random
import stat
import tarfile
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.archives import unpacked
from tests.fuzz.mutations import answer, fuzz, mutated

NOISE = random.Random(1).randbytes(700)
LONG = "long/" * 40 + "name.txt"  # needs an extended header


def make_tar(format: int, members=None) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as tar:
        for name, kind, link, data in members or (
            ("d", tarfile.DIRTYPE, "", b""),
            ("d/a.txt", tarfile.REGTYPE, "", b"some text\n" * 20),
            (LONG, tarfile.REGTYPE, "", NOISE),
            ("d/é", tarfile.SYMTYPE, "a.txt", b""),
            ("h", tarfile.LNKTYPE, "d/a.txt", b""),
        ):
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.size = kind, link, len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue().rstrip(b"\0") + bytes(2048)


def make_zip(method: int, members=None) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, mode, data in members or (
            ("d/", stat.S_IFDIR, b""),
            ("d/a.txt", stat.S_IFREG, b"some text\n" * 20),
            (LONG, 0, NOISE),
            ("link", stat.S_IFLNK, b"d/a.txt"),
        ):
            info = zipfile.ZipInfo(name)
            info.external_attr, info.compress_type = mode << 16, method
            archive.writestr(info, data)
    return buffer.getvalue()


TARS = [make_tar(format) for format in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT)]
PACKED = [gzip.compress(TARS[0]), bz2.compress(TARS[1]), lzma.compress(TARS[0])]
ZIPS = [make_zip(method) for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)]


@st.composite
def sealed_tars(draw):
    """Tar headers with any fields and right checksums, data behind them."""
    blocks = []
    for _ in range(draw(st.integers(1, 4))):
        sample = draw(st.sampled_from(TARS))
        header = bytearray(sample[:512])
        for _ in range(draw(st.integers(0, 3))):
            start, length = draw(
                st.sampled_from([(0, 100), (124, 12), (156, 1), (157, 100), (257, 8), (345, 155), (386, 96), (482, 26)])
            )
            value = draw(
                st.sampled_from(
                    [
                        b"../x",
                        b"/x",
                        b"a/" * 60,
                        b"\0",
                        b"\x80" + bytes(11),
                        b"\xff" * 12,
                        b"77777777777\0",
                        b"0",
                        b"1",
                        b"2",
                        b"5",
                        b"x",
                        b"g",
                        b"L",
                        b"K",
                        b"S",
                        b"D",
                        b"3",
                        b"00000001000\0",
                    ]
                )
                | st.binary(min_size=1, max_size=12)
            )[:length]
            header[start : start + len(value)] = value
        header[148:156] = b" " * 8
        header[148:156] = b"%06o\0 " % sum(header)
        blocks.append(
            bytes(header)
            + draw(
                st.sampled_from(
                    [b"", bytes(512), b"22 path=" + b"x" * 504, b"30 GNU.sparse.size=99999999999\n".ljust(512, b"\0")]
                )
            )
        )
    return b"".join(blocks) + bytes(draw(st.sampled_from([0, 512, 1024])))


ARCHIVES = {
    "tar": mutated(TARS) | sealed_tars(),
    "packed": mutated(PACKED)
    | mutated(TARS).map(lambda data: gzip.compress(data, 1))
    | sealed_tars().map(lambda data: gzip.compress(data, 1)),
    "zip": mutated(ZIPS),
}


def unpack_and_check(archive, folder) -> bool:
    """Whether an archive is unpacked; if so, nothing of it leads out of its folder. Nothing stays in any case."""
    before = sorted(os.listdir(folder.parent)), sorted(set(os.listdir(folder)) - {archive.name})

    def read():
        with unpacked(archive, folder) as tree:
            root = os.path.realpath(tree)
            for place, folders, names in os.walk(tree):
                for name in (*folders, *names):
                    path = os.path.join(place, name)
                    assert os.path.realpath(path).startswith(root + os.sep) or os.path.realpath(path) == root
                    assert stat.S_IFMT(os.lstat(path).st_mode) in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK)
        return True

    done = answer(read, archive)
    assert before == (sorted(os.listdir(folder.parent)), sorted(set(os.listdir(folder)) - {archive.name}))
    return bool(done)


@pytest.fixture
def folder(place, monkeypatch):
    monkeypatch.setattr(os, "sync", lambda: None)
    folder = place / "unpacking"
    folder.mkdir(exist_ok=True)
    return folder


@fuzz
@pytest.mark.parametrize("kind", ARCHIVES)
@given(data=st.data())
def test_archives(folder, kind, data):
    archive = folder / "archive"
    archive.write_bytes(data.draw(ARCHIVES[kind]))
    unpack_and_check(archive, folder)


@pytest.mark.parametrize("data", [*TARS, *PACKED, *ZIPS], ids=range(10))
def test_the_samples_are_valid(folder, data):
    archive = folder / "archive"
    archive.write_bytes(data)
    assert unpack_and_check(archive, folder)


# ------------------------------------------------------------------------------------- minimal inputs of faults found
def header(name: str, kind: bytes, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    return info.tobuf(tarfile.GNU_FORMAT)


def deep_path() -> bytes:
    """A name within the system's limits whose folders are more than Python can make, or remove, by recursion."""
    return make_tar(tarfile.PAX_FORMAT, [("a/" * 1600 + "b", tarfile.REGTYPE, "", b"x")])


def chained_links() -> bytes:
    return make_tar(tarfile.USTAR_FORMAT, [(f"l{i}", tarfile.SYMTYPE, f"l{i + 1}", b"") for i in range(1500)])


def chained_headers() -> bytes:
    """Extended headers that describe extended headers."""
    return (header("x", b"L", 5) + b"name\0".ljust(512, b"\0")) * 1500 + bytes(1024)


def endless_header() -> bytes:
    """1.5 MB of gzip that are one extended header of 1.5 GB."""
    size = 3 << 29
    packer = gzip.zlib.compressobj(1, wbits=31)
    parts = [
        packer.compress(header("x", b"x", size)),
        *(packer.compress(bytes(1 << 20)) for _ in range(size >> 20)),
        packer.flush(),
    ]
    return b"".join(parts)


def endless_end() -> bytes:
    """An end mark that goes on and on."""
    packer = gzip.zlib.compressobj(1, wbits=31)
    return b"".join([packer.compress(TARS[0]), *(packer.compress(bytes(1 << 20)) for _ in range(800)), packer.flush()])


def endless_link() -> bytes:
    """A symbolic link in a zip archive that leads to a name of 1 GB."""
    return make_zip(zipfile.ZIP_DEFLATED, [("link", stat.S_IFLNK, bytes(1 << 30))])


def large_dictionary() -> bytes:
    """An xz file that asks for a dictionary of 1.5 GB to unpack next to nothing."""
    filters = [
        {"id": lzma.FILTER_LZMA2, "dict_size": 3 << 29, "mode": lzma.MODE_FAST, "nice_len": 8, "mf": lzma.MF_HC3}
    ]
    packed = bytearray(lzma.compress(TARS[0]))
    assert filters
    # Block header: at byte 12; its LZMA2 property, the size of the dictionary, is 2 bytes behind the filter's id.
    place = packed.index(b"\x21\x01", 12) + 2
    packed[place] = 37  # (2 | 1) << (37 // 2 + 11) = 1.5 GB
    end = 12 + (packed[12] + 1) * 4
    packed[end - 4 : end] = gzip.zlib.crc32(packed[12 : end - 4]).to_bytes(4, "little")
    return bytes(packed)


@pytest.mark.parametrize(
    "make", [deep_path, chained_links, chained_headers, endless_header, endless_end, endless_link, large_dictionary]
)
def test_hostile_archives_are_refused(folder, make):
    archive = folder / "archive"
    archive.write_bytes(make())
    assert not unpack_and_check(archive, folder)
