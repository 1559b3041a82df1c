"""data/download.py against a server on this machine that does all a bad one does."""

import contextlib
import email.utils
import fcntl
import hashlib
import http.client
import os
import shutil
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from data import download
from data.download import fetch, list_folder, read_text, remote_bytes
from runkit.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
CONTENT = b"".join(hashlib.sha256(b"%d" % i).digest() for i in range(8192))  # 256 KiB that do not compress
MD5 = hashlib.md5(CONTENT).hexdigest()
SHA1 = hashlib.sha1(CONTENT).hexdigest()
SHA256 = hashlib.sha256(CONTENT).hexdigest()
HALF = len(CONTENT) // 2


class Server:
    """Answers request after request as told; the last way goes on. Notes the headers of each request."""

    def __init__(self):
        self.ways: list[str] = ["ok"]
        self.retry_after = "0"
        self.requests: list[dict[str, str]] = []
        self.released = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                outer.requests.append(dict(self.headers) | {"path": self.path})
                way = outer.ways.pop(0) if len(outer.ways) > 1 else outer.ways[0]
                self.close_connection = True
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    outer.answer(self, way)

            def do_HEAD(self):
                length = {"ok": str(len(CONTENT)), "lie": "many"}.get(outer.ways[0])
                self.send_response(200 if outer.ways[0] != "404" else 404)
                if length:
                    self.send_header("Content-Length", length)
                self.end_headers()

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.01,))
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}/file.bin"

    def close(self):
        self.released.set()
        self.http.shutdown()
        self.thread.join()
        self.http.server_close()

    def answer(self, handler: BaseHTTPRequestHandler, way: str) -> None:
        if way.isdecimal():
            body = b"<html>no such file</html>"
            handler.send_response(int(way))
            headers = {"Content-Type": "text/html", "Content-Length": len(body), "Retry-After": self.retry_after}
            if way == "416":
                headers["Content-Range"] = f"bytes */{len(CONTENT)}"
            for name, value in headers.items():
                handler.send_header(name, value)
            handler.end_headers()
            handler.wfile.write(body)
            return
        content = CONTENT[:-1000] + b"?" + CONTENT[-999:] if way == "corrupt" else CONTENT
        if way == "changed":
            content = CONTENT[::-1]
        etag = '"two"' if way == "changed" else '"one"'
        start = 0
        wanted = handler.headers.get("Range")
        if wanted and way not in ("no_range", "no_range_cut") and handler.headers.get("If-Range", etag) == etag:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
        body = content[start:]
        handler.send_response(206 if start else 200)
        if start:
            first = start + (1 if way == "other_part" else 0)
            handler.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        handler.send_header("Content-Type", "text/html" if way == "page" else "application/octet-stream")
        if way not in ("no_version", "no_version_cut"):
            handler.send_header("ETag", etag)
        if way == "chunked_cut":
            handler.send_header("Transfer-Encoding", "chunked")
            handler.end_headers()
            handler.wfile.write(b"%x\r\n" % HALF + body[:HALF] + b"\r\n")
            return
        if way == "encoded":
            handler.send_header("Content-Encoding", "gzip")
        if way != "no_length":
            n_bytes = len(body) + {"says_less": -1000, "says_more": 1000}.get(way, 0)
            handler.send_header("Content-Length", str(n_bytes))
        handler.end_headers()
        if way in ("cut", "stall", "no_range_cut", "no_version_cut"):
            handler.wfile.write(body[: len(body) // 2])
            if way == "stall":
                handler.wfile.flush()
                self.released.wait(20)
        elif way == "slow":
            for place in range(0, len(body), 4096):
                handler.wfile.write(body[place : place + 4096])
                if self.released.wait(0.02):
                    return
        elif way == "trickle":
            for byte in body[:200]:
                handler.wfile.write(bytes([byte]))
                if self.released.wait(0.02):
                    return
        else:
            handler.wfile.write(body)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch):
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    server = Server()
    yield server
    server.close()


def quick(urls, target: Path, **options) -> Path:
    return fetch(urls, target, **{"first_pause": 0.001, "timeout": 5.0} | options)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# ------------------------------------------------------------------------------------------------------- fetching


def test_a_file_comes_whole(server: Server, tmp_path: Path):
    target = quick(server.url, tmp_path / "deep" / "file.bin", md5=MD5.upper(), sha256=SHA256, n_bytes=len(CONTENT))
    assert target.read_bytes() == CONTENT and names(target.parent) == ["file.bin"]
    quick(server.url, target, md5=MD5)  # kept: the server is not asked
    assert len(server.requests) == 1


@pytest.mark.parametrize("way", ["cut", "chunked_cut", "503", "429", "500", "408", "stall", "says_less", "says_more"])
def test_a_passing_failure_passes(server: Server, tmp_path: Path, way: str, capsys: pytest.CaptureFixture):
    server.ways = [way, "ok"]
    quick(server.url, tmp_path / "file.bin", sha256=SHA256, timeout=0.3 if way == "stall" else 5.0)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT and names(tmp_path) == ["file.bin"]
    out = capsys.readouterr().out
    assert len(server.requests) == 2 and "trying again" in out
    if way in ("cut", "stall"):
        assert server.requests[1]["Range"] == f"bytes={HALF}-"


def test_many_drops_are_no_failure_while_it_gets_further(server: Server, tmp_path: Path):
    server.ways = ["cut"] * 10 + ["ok"]
    quick(server.url, tmp_path / "file.bin", attempts=2)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT and len(server.requests) == 11


def test_a_server_that_never_recovers(server: Server, tmp_path: Path):
    server.ways = ["503"]
    with pytest.raises(UserError, match=r"(?s)cannot download file.bin.*HTTP 503.*3 times in a row"):
        quick(server.url, tmp_path / "file.bin", attempts=3)
    assert len(server.requests) == 3 and names(tmp_path) == []


def test_a_server_that_always_drops_at_the_same_place(server: Server, tmp_path: Path):
    server.ways = ["no_range_cut"]
    with pytest.raises(UserError, match=f"ended after {HALF} of {len(CONTENT)} bytes .3 times"):
        quick(server.url, tmp_path / "file.bin", attempts=3)
    assert len(server.requests) == 3
    assert (tmp_path / "file.bin.partial").stat().st_size == HALF  # a later call may go on


def test_the_pause_the_server_asks_for(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    in_90_s = email.utils.formatdate(time.time() + 90, usegmt=True)
    for asked in ("7", "100000", in_90_s, "soon", email.utils.formatdate(0, usegmt=True)):
        server.retry_after, server.ways = asked, ["503", "ok"]
        fetch(server.url, tmp_path / asked / "file.bin", attempts=2)
    assert pauses[:2] == [7, download.MAX_ASKED_PAUSE] and 85 < pauses[2] <= 90 and pauses[3:] == [1, 1]


def test_a_length_that_is_never_reached(server: Server, tmp_path: Path):
    server.ways = ["says_more", "no_range_cut"]  # and drops at another place than it said
    with pytest.raises(UserError, match="times in a row"):
        quick(server.url, tmp_path / "file.bin", attempts=3)
    assert not (tmp_path / "file.bin").exists()


def test_an_encoded_file(server: Server, tmp_path: Path):
    server.ways = ["encoded"]
    with pytest.raises(UserError, match="gzip-encoded"):
        quick(server.url, tmp_path / "file.bin")
    quick(server.url, tmp_path / "file.gz", sha1=SHA1)  # which some servers say of what is meant to be packed


def test_pauses_grow(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    server.ways = ["503"] * 7 + ["ok"]
    fetch(server.url, tmp_path / "file.bin", attempts=10)
    assert pauses == [1, 2, 4, 8, 16, 32, 60]


@pytest.mark.parametrize("way, cause", [("404", "HTTP 404"), ("403", "HTTP 403"), ("page", "a web page")])
def test_an_error_page_never_becomes_the_file(server: Server, tmp_path: Path, way: str, cause: str):
    server.ways = [way]
    with pytest.raises(UserError, match=cause):
        quick(server.url, tmp_path / "file.bin")
    assert len(server.requests) == 1 and names(tmp_path) == []


def test_a_trickle_is_a_stall(server: Server, tmp_path: Path):
    server.ways = ["trickle", "ok"]
    begun = time.monotonic()
    quick(server.url, tmp_path / "file.bin", timeout=0.2)
    assert time.monotonic() - begun < 3 and (tmp_path / "file.bin").read_bytes() == CONTENT


@pytest.mark.parametrize("place", ["read1", "begin"])
def test_any_failure_of_the_network_passes(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str):
    original = getattr(http.client.HTTPResponse, place)
    errors = [ssl.SSLError(1, "bad record"), OSError(101, "Network is unreachable"), ConnectionResetError("reset")]

    def failing(self, *arguments):
        if errors:
            raise errors.pop()
        return original(self, *arguments)

    monkeypatch.setattr(http.client.HTTPResponse, place, failing)
    quick(server.url, tmp_path / "file.bin", md5=MD5)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_interrupted_and_called_again(server: Server, tmp_path: Path):
    server.ways = ["cut", "404"]
    with pytest.raises(UserError):
        quick(server.url, tmp_path / "file.bin")
    assert names(tmp_path) == ["file.bin.partial", "file.bin.partial.json"]
    server.ways = ["ok"]
    quick(server.url, tmp_path / "file.bin")  # no digest: the server is asked whether it is still the same file
    assert server.requests[-1]["Range"] == f"bytes={HALF}-" and server.requests[-1]["If-Range"] == '"one"'
    assert (tmp_path / "file.bin").read_bytes() == CONTENT and names(tmp_path) == ["file.bin"]


@pytest.mark.parametrize("after", [1, 60_000, 200_000])
def test_killed_and_called_again(server: Server, tmp_path: Path, after: int):
    command = [sys.executable, "-m", "data.download", server.url, "--output", str(tmp_path / "file.bin")]
    partial_file = tmp_path / "file.bin.partial"
    server.ways = ["slow", "ok"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and not (partial_file.exists() and partial_file.stat().st_size >= after):
        time.sleep(0.002)
    process.kill()
    assert process.wait() == -9 and not (tmp_path / "file.bin").exists()
    received = partial_file.stat().st_size
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT and names(tmp_path) == ["file.bin"]
    assert server.requests[-1].get("Range") == f"bytes={received}-"


@pytest.mark.parametrize("way", ["changed", "no_range"])
def test_a_changed_file_or_a_server_without_parts_starts_over(server: Server, tmp_path: Path, way: str):
    server.ways = ["cut", way]
    quick(server.url, tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == (CONTENT[::-1] if way == "changed" else CONTENT)


def test_what_has_no_version_is_not_pieced_together(server: Server, tmp_path: Path):
    server.ways = ["no_version_cut", "no_version"]
    quick(server.url, tmp_path / "file.bin")
    assert "Range" not in server.requests[1] and (tmp_path / "file.bin").read_bytes() == CONTENT


def test_pieces_of_two_versions_are_found_by_the_digest(server: Server, tmp_path: Path):
    (tmp_path / "file.bin.partial").write_bytes(b"old" * 1000)
    quick(server.url, tmp_path / "file.bin", md5=MD5)
    assert len(server.requests) == 2 and (tmp_path / "file.bin").read_bytes() == CONTENT


def test_a_partial_file_that_is_whole_or_too_long(server: Server, tmp_path: Path):
    server.ways = ["416", "ok"]
    (tmp_path / "file.bin.partial").write_bytes(CONTENT)
    quick(server.url, tmp_path / "file.bin", md5=MD5)
    assert len(server.requests) == 1
    (tmp_path / "file.bin").unlink()
    server.ways = ["416", "ok"]
    (tmp_path / "file.bin.partial").write_bytes(CONTENT + b"more")
    quick(server.url, tmp_path / "file.bin", md5=MD5)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_corrupt_bytes(server: Server, tmp_path: Path):
    server.ways = ["corrupt"]
    with pytest.raises(UserError, match=f"has md5 .*, not {MD5}"):
        quick(server.url, tmp_path / "file.bin", md5=MD5)
    assert len(server.requests) == 2 and names(tmp_path) == []
    server.ways = ["cut", "corrupt", "cut", "corrupt"]
    (tmp_path / "file.bin.partial").write_bytes(b"x" * 100)
    with pytest.raises(UserError, match="what it sends has sha256"):
        quick(server.url, tmp_path / "file.bin", sha256=SHA256)
    assert names(tmp_path) == []
    server.ways = ["corrupt", "ok"]
    quick(server.url, tmp_path / "file.bin", sha256=SHA256)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_all_digests_count(server: Server, tmp_path: Path):
    quick(server.url, tmp_path / "file.bin", md5=MD5, sha1=SHA1.upper(), sha256=SHA256)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    for wrong in ({"md5": "0" * 32}, {"sha1": "0" * 40}, {"sha256": "0" * 64}):
        with pytest.raises(UserError, match=f"has {next(iter(wrong))} "):
            quick(server.url, tmp_path / "other.bin", **({"md5": MD5, "sha1": SHA1, "sha256": SHA256} | wrong))
    assert names(tmp_path) == ["file.bin"]


def test_another_size(server: Server, tmp_path: Path):
    with pytest.raises(UserError, match=f"has {len(CONTENT)} bytes, not 10"):
        quick(server.url, tmp_path / "file.bin", n_bytes=10)


def test_the_way_to_an_unprotected_place_is_refused(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    original = urllib.request.OpenerDirector.open

    def open_elsewhere(self, request, timeout):  # as if a server had sent us on
        return original(self, urllib.request.Request(server.url), timeout=timeout)

    monkeypatch.setattr(urllib.request.OpenerDirector, "open", open_elsewhere)
    with pytest.raises(UserError, match="leads away from https, to http:"):
        quick("https://x.org/file.bin", tmp_path / "file.bin")


def test_another_part_than_asked_for(server: Server, tmp_path: Path):
    server.ways = ["cut", "other_part"]
    with pytest.raises(UserError, match="another part"):
        quick(server.url, tmp_path / "file.bin")


def test_mirrors(server: Server, tmp_path: Path):
    (tmp_path / "copy").write_bytes(CONTENT)
    server.ways = ["cut", "404"]
    nobody = "http://127.0.0.1:1/file.bin"
    urls = [nobody, "gopher://host/file.bin", server.url, str(tmp_path / "none"), f"file://{tmp_path}/copy"]
    quick(urls, tmp_path / "out" / "file.bin", md5=MD5, attempts=2)
    assert (tmp_path / "out" / "file.bin").read_bytes() == CONTENT and names(tmp_path / "out") == ["file.bin"]
    with pytest.raises(UserError) as caught:
        quick(urls[:4], tmp_path / "out" / "other.bin", md5=MD5, attempts=2)
    lines = str(caught.value).splitlines()
    assert len(lines) == 5
    for cause in ("refused", "gopher:// is not supported", "HTTP 404", "No such file"):
        assert cause in str(caught.value)


def test_small_files_are_silent(tmp_path: Path, capsys: pytest.CaptureFixture):
    (tmp_path / "sums").write_bytes(CONTENT[:9999])
    quick(str(tmp_path / "sums"), tmp_path / "a")
    assert capsys.readouterr().err == ""
    (tmp_path / "sums").write_bytes(CONTENT[:10_000])
    quick(str(tmp_path / "sums"), tmp_path / "b")
    assert "b: 10/10 kB (100%)" in capsys.readouterr().err


def test_no_length_is_said(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture):
    server.ways = ["no_length"]
    quick(server.url, tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == CONTENT and "tells no length" in capsys.readouterr().out


def test_a_local_path(tmp_path: Path):
    (tmp_path / "source file").write_bytes(CONTENT)
    quick(str(tmp_path / "source file"), tmp_path / "a.bin", n_bytes=len(CONTENT))
    quick(f"file://{tmp_path}/source%20file", tmp_path / "b.bin", sha256=SHA256)
    assert (tmp_path / "a.bin").read_bytes() == (tmp_path / "b.bin").read_bytes() == CONTENT
    with pytest.raises(UserError, match="Is a directory"):
        quick(str(tmp_path), tmp_path / "c.bin")


def test_a_wrong_file_stays_until_the_right_one_is_there(server: Server, tmp_path: Path):
    (tmp_path / "file.bin").write_bytes(b"wrong")
    server.ways = ["404"]
    with pytest.raises(UserError):
        quick(server.url, tmp_path / "file.bin", md5=MD5)
    assert (tmp_path / "file.bin").read_bytes() == b"wrong"
    server.ways = ["ok"]
    quick(server.url, tmp_path / "file.bin", md5=MD5)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_the_disk_is_looked_at_first(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=download.SPARE_BYTES + 1000))
    with pytest.raises(UserError, match="free some space"):
        quick(server.url, tmp_path / "file.bin")


def test_two_at_once(server: Server, tmp_path: Path):
    with open(tmp_path / "file.bin.partial", "ab") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="another process"):
            quick(server.url, tmp_path / "file.bin")
    quick(server.url, tmp_path / "file.bin")


def test_proxies_are_taken_from_the_environment(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("http_proxy", server.url.removesuffix("/file.bin"))
    quick("http://far.invalid/file.bin", tmp_path / "file.bin", md5=MD5)
    assert server.requests[0]["path"] == "http://far.invalid/file.bin"


def test_progress_and_command_line(server: Server, tmp_path: Path):
    def call(*words: str) -> subprocess.CompletedProcess:
        command = [sys.executable, "-m", "data.download", server.url, "--output", str(tmp_path / "file.bin"), *words]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    done = call("--sha256", SHA256, "--bytes", str(len(CONTENT)))
    assert done.returncode == 0, done.stderr
    assert "262144 bytes" in done.stdout and "file.bin: 262/262 kB (100%)" in done.stderr
    server.ways = ["404"]
    failed = call("--md5", "0" * 32)
    assert failed.returncode == 2 and "HTTP 404" in failed.stderr


# ------------------------------------------------------------------------------------------------- what is there


def test_sizes_are_asked(server: Server, tmp_path: Path):
    (tmp_path / "a").write_bytes(b"12345")
    assert remote_bytes([str(tmp_path / "none"), f"file://{tmp_path}/a"]) == 5
    assert remote_bytes(["http://127.0.0.1:1/a", server.url]) == len(CONTENT)
    for way in ("404", "lie", "nothing"):
        server.ways = [way]
        assert remote_bytes([server.url, "gopher://x/y"]) is None


def test_folders_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    (tmp_path / "files" / "20250101").mkdir(parents=True)
    for name in ("b.xml.gz", "a b.xml.gz"):
        (tmp_path / "files" / name).write_text("x")
    expected = ["20250101/", "a b.xml.gz", "b.xml.gz"]
    assert list_folder(str(tmp_path / "files")) == list_folder((tmp_path / "files").as_uri()) == expected
    handler = partial(SimpleHTTPRequestHandler, directory=tmp_path)
    monkeypatch.setattr(SimpleHTTPRequestHandler, "log_message", lambda *_: None)
    http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=http.serve_forever, args=(0.01,))
    thread.start()
    try:
        url = f"http://127.0.0.1:{http.server_address[1]}/files"
        assert list_folder(url) == list_folder(url + "/") == expected
        page = '<a href="../">up</a><a href="/">top</a><a href="?C=N;O=D">Name</a><a href="https://x.org/files/q">q</a>'
        page += (
            '<a name="none"></a><A HREF="sub/deep.gz">deep</A><a href="/files/z.gz">z</a><a href="%2E%2E%2Fevil">e</a>'
        )
        (tmp_path / "files" / "index.html").write_text(page)
        assert list_folder(url) == ["z.gz"]
        with pytest.raises(UserError, match="HTTP 404"):
            list_folder(url + "/none")
    finally:
        http.shutdown()
        thread.join()
        http.server_close()
    with pytest.raises(UserError, match="cannot list"):
        list_folder(str(tmp_path / "none"))


def test_small_lists_are_read(server: Server, tmp_path: Path):
    (tmp_path / "sums.txt").write_bytes(b"abc  file\r\ndef  other\n")
    assert read_text(str(tmp_path / "sums.txt")) == ["abc  file", "def  other"]
    with pytest.raises(UserError, match=r"file\.bin:\d+: not UTF-8"):
        read_text(server.url)
