"""Files from the web, whole or not at all.

    python -m data.download URL... --output FILE [--md5 HEX] [--sha1 HEX] [--sha256 HEX] [--bytes N]

Several URLs are mirrors of one file, tried in turn; http, https, file:// and plain paths will do. Proxies are taken
from the environment (http_proxy, https_proxy, no_proxy). What was received so far lies in FILE.partial, and the next
call goes on from there.
"""

import argparse
import contextlib
import email.utils
import fcntl
import hashlib
import http.client
import os
import re
import shutil
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import IO, NamedTuple

from runkit.errors import UserError, run_main
from runkit.files import (
    fsync_directory,
    fsync_file,
    make_directory,
    naming_write_errors,
    read_json,
    read_lines,
    write_json,
)
from runkit.progress import Progress, print_line

CHUNK_BYTES = 1 << 20
TIMEOUT = 30.0  # s without a byte, or with fewer than MIN_RATE a second, end a connection
MIN_RATE = 1024  # bytes/s
ATTEMPTS = 5  # for one URL, in a row without getting further
FIRST_PAUSE, MAX_PAUSE = 1.0, 60.0  # s between attempts: doubled each time
MAX_ASKED_PAUSE = 600.0  # s, where the server asks for more
SILENT_BYTES = 10_000  # files below that show no progress: lists, digests
SPARE_BYTES = 64 << 20  # left free on the disk
USER_AGENT = "training-recipes/0.1 (Python urllib)"  # some hosts refuse urllib's own

# -------------------------------------------------------------------------------------------------------- fetching


class _Transient(Exception):
    """This attempt failed, the next one may succeed. pause: seconds the server asks to wait."""

    def __init__(self, cause: str, pause: float = 0.0):
        super().__init__(cause)
        self.pause = pause


class _Useless(Exception):
    """This URL does not give the file, however often it is asked."""


def fetch(
    urls: str | Sequence[str],
    target: Path,
    *,
    n_bytes: int | None = None,
    md5: str | None = None,
    sha1: str | None = None,
    sha256: str | None = None,
    attempts: int = ATTEMPTS,
    timeout: float = TIMEOUT,
    first_pause: float = FIRST_PAUSE,
) -> Path:
    """Downloads a file to target; returns target.

    urls: one, or mirrors in order of preference. A target that is there is kept, without a question to the network,
    if size and digests are as given; otherwise it is replaced once the new one is whole. After a failure that may
    pass (timeout, dropped connection, HTTP 408, 425, 429, 5xx) the same URL is asked again, `attempts` times in a
    row without getting further. Raises UserError naming each URL and why it failed, when the disk is too small, or
    when another process is downloading the same file.
    """
    urls = [urls] if isinstance(urls, str) else list(urls)
    target = Path(os.path.realpath(target))
    digests = {"md5": md5, "sha1": sha1, "sha256": sha256}
    expected = _Expected(n_bytes, {name: digest.lower() for name, digest in digests.items() if digest})
    download = _Download(target, expected, timeout)
    if target.is_file():
        problem = expected.problem_with(target)
        if problem is None:
            download.record.unlink(missing_ok=True)  # of a run that was killed between its last two steps
            return target
        print_line(f"{target}: {problem}; fetching it anew")
    make_directory(target.parent)
    causes = []
    with naming_write_errors(target), _locked(download.partial):
        for url in urls:
            try:
                _insist(download, url, attempts, first_pause)
                download.publish()
                return target
            except _Useless as error:
                causes.append(f"{url}: {error}")
                print_line(f"{target.name}: {causes[-1]}")
        download.clean_up()
    raise UserError("\n  ".join([f"cannot download {target.name}:", *causes]))


def _insist(download: "_Download", url: str, attempts: int, first_pause: float) -> None:
    """Completes the partial file from one URL, with pauses between attempts. Raises _Useless."""
    failures, furthest, was_wrong = 0, download.position, False
    while True:
        try:
            download.receive(url)
            problem = download.expected.problem_with(download.partial)
            if problem is None:
                return
            download.discard()
            if was_wrong:
                raise _Useless(f"what it sends {problem}")
            # Once more: it may be pieced together from two versions of the file.
            was_wrong, furthest = True, 0
            raise _Transient(f"what was received {problem}; starting over")
        except _Transient as error:
            failures = 1 if download.position > furthest else failures + 1
            furthest = max(furthest, download.position)
            if failures >= attempts:
                raise _Useless(f"{error}{f' ({failures} times in a row)' if failures > 1 else ''}") from error
            pause = max(min(first_pause * 2 ** (failures - 1), MAX_PAUSE), min(error.pause, MAX_ASKED_PAUSE))
            print_line(f"{url}: {error}; trying again in {pause:g} s")
            time.sleep(pause)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keeps other processes from writing `path`, which it makes if need be. Raises UserError when one is at it."""
    try:
        stream = open(path, "ab")  # noqa: SIM115 (closed below)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error
    with stream:
        lock(stream, f"{path}: another process is downloading it")
        yield


def lock(stream: IO[bytes], refusal: str) -> None:
    """Takes the lock of an open file, which lasts until it is closed. Raises UserError(refusal) when another process
    has it."""
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise UserError(refusal) from error
    except OSError:
        pass  # a filesystem without locks


class _Expected(NamedTuple):
    """What is known of a file beforehand."""

    n_bytes: int | None
    digests: dict[str, str]  # by algorithm

    @property
    def has_digest(self) -> bool:
        return bool(self.digests)

    def problem_with(self, path: Path) -> str | None:
        """Why the file is not the expected one; None if it is, as far as is known."""
        size = path.stat().st_size
        if self.n_bytes is not None and size != self.n_bytes:
            return f"has {size} bytes, not {self.n_bytes}"
        for algorithm, wanted in self.digests.items():
            with open(path, "rb") as stream:
                found = hashlib.file_digest(stream, algorithm).hexdigest()
            if found != wanted:
                return f"has {algorithm} {found}, not {wanted}"
        return None


class _Answer(NamedTuple):
    stream: IO[bytes]
    start: int  # the place in the file where the stream begins
    total: int | None  # bytes of the whole file
    validator: str | None  # names this version of the file: a strong ETag, or its date


class _Download:
    """A file on its way: what is there of it (`partial`), and which version that is (`record`)."""

    def __init__(self, target: Path, expected: _Expected, timeout: float):
        self.target, self.expected, self.timeout = target, expected, timeout
        self.partial = target.with_name(target.name + ".partial")
        self.record = target.with_name(target.name + ".partial.json")

    @property
    def position(self) -> int:
        return self.partial.stat().st_size if self.partial.exists() else 0

    def discard(self) -> None:
        os.truncate(self.partial, 0)
        self.record.unlink(missing_ok=True)

    def clean_up(self) -> None:
        """Removes what is of no use to a later call."""
        if not self.position:
            self.partial.unlink(missing_ok=True)
            self.record.unlink(missing_ok=True)

    def publish(self) -> None:
        fsync_file(self.partial)
        os.replace(self.partial, self.target)
        self.record.unlink(missing_ok=True)
        fsync_directory(self.target.parent)

    def receive(self, url: str) -> None:
        """Asks once for what is missing and appends it; what came is kept. Raises _Transient or _Useless."""
        # Without a digest, only the server can say whether the rest belongs to what is there.
        validator = read_json(self.record)["validator"] if self.record.is_file() else None
        if self.position and not validator and not self.expected.has_digest:
            self.discard()
        try:
            with contextlib.ExitStack() as stack:
                answer = self._ask(url, None if self.expected.has_digest else validator, stack)
                if answer is None:
                    return
                self._check_size(answer)
                if answer.start == 0:
                    self.discard()
                    if answer.validator:
                        write_json(self.record, {"url": url, "validator": answer.validator})
                self._append(answer)
        except http.client.HTTPException as error:
            raise _Transient(_describe(error)) from error
        if answer.total is not None and self.position < answer.total:
            raise _Transient(f"the connection ended after {self.position} of {answer.total} bytes")

    def _ask(self, url: str, validator: str | None, stack: contextlib.ExitStack) -> _Answer | None:
        """Opens what a URL has from `position` on, or all of it if it cannot give a part; None if nothing is
        missing."""
        scheme = urllib.parse.urlsplit(url).scheme if "://" in url else "file"
        if scheme == "file":
            return self._open_file(url, validator, stack)
        if scheme not in ("http", "https"):
            raise _Useless(f"{scheme}:// is not supported; http, https and file are")
        position = self.position
        request = urllib.request.Request(url, headers={"User-Agent": USER_AGENT})
        if position:
            request.add_header("Range", f"bytes={position}-")
            if validator:
                request.add_header("If-Range", validator)
        try:
            # Not urlopen, which keeps the proxies of the first call.
            response = stack.enter_context(urllib.request.build_opener().open(request, timeout=self.timeout))
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 416 and position:
                if error.headers.get("Content-Range") == f"bytes */{position}":
                    return None
                self.discard()
                raise _Transient("has less than was received before; starting over") from error
            cause = f"HTTP {error.code} {error.reason}"
            if error.code in (408, 425, 429) or error.code >= 500:
                raise _Transient(cause, _asked_pause(error.headers.get("Retry-After", ""))) from error
            raise _Useless(cause) from error
        except urllib.error.URLError as error:
            # Name servers and routes recover, a certificate does not.
            kind = _Useless if "CERTIFICATE" in str(error.reason) else _Transient
            raise kind(_describe(error.reason)) from error
        except OSError as error:  # before the first byte of the answer
            raise _Transient(_describe(error)) from error
        headers = response.headers
        if scheme == "https" and not response.url.startswith("https:"):
            raise _Useless(f"leads away from https, to {response.url}")
        if headers.get_content_type() == "text/html" and self.target.suffix not in (".html", ".htm"):
            raise _Useless("sent a web page instead of the file (for a login, or an error?)")
        encoding = headers.get("Content-Encoding", "identity")
        # Some servers call a .gz file "gzip-encoded" and send it as it is.
        if encoding != "identity" and self.target.suffix not in (".gz", ".tgz", ".bz2", ".xz", ".zip"):
            raise _Useless(f"sent the file {encoding}-encoded, which it was not asked for")
        etag = headers.get("ETag", "")
        version = etag if etag and not etag.startswith("W/") else headers.get("Last-Modified")
        if response.status == 206:
            span = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", headers.get("Content-Range", ""))
            if not span or int(span[1]) != position:
                raise _Useless("sent another part than it was asked for")
            return _Answer(response, position, int(span[2]) if span[2] != "*" else None, version)
        length = headers.get("Content-Length", "")
        total = int(length) if length.isdecimal() else None
        if total is None and not response.chunked and not self.expected.has_digest and self.expected.n_bytes is None:
            print_line(f"{url}: tells no length, so that a lost end would go unnoticed")
        return _Answer(response, 0, total, version)

    def _open_file(self, url: str, validator: str | None, stack: contextlib.ExitStack) -> _Answer:
        try:
            path = local_path(url)
            stream = stack.enter_context(open(path, "rb"))  # noqa: SIM115
        except OSError as error:
            raise _Useless(error.strerror) from error
        facts = os.fstat(stream.fileno())
        version = f"{facts.st_size}-{facts.st_mtime_ns}"
        start = self.position if self.position <= facts.st_size and validator in (None, version) else 0
        stream.seek(start)
        return _Answer(stream, start, facts.st_size, version)

    def _check_size(self, answer: _Answer) -> None:
        """Raises _Useless for a file of another size, UserError when the disk cannot hold it."""
        n_bytes = self.expected.n_bytes
        if None not in (answer.total, n_bytes) and answer.total != n_bytes:
            raise _Useless(f"has {answer.total} bytes, not {n_bytes}")
        total = n_bytes if answer.total is None else answer.total
        if total is not None:
            require_space(self.target.parent, total - self.position, self.target.name)

    def _append(self, answer: _Answer) -> None:
        label = f"{self.target.name} from {answer.start / 1e6:.0f} MB on" if answer.start else self.target.name
        left = None if answer.total is None else answer.total - answer.start
        # read1 returns what is there: a slow line shows its progress, and what came before a failure is kept.
        read = getattr(answer.stream, "read1", answer.stream.read)
        silent = left is not None and left < SILENT_BYTES
        progress = contextlib.nullcontext(lambda n: None) if silent else byte_progress(left, label)
        with open(self.partial, "ab") as output, progress as received:
            window_start, window_bytes = time.monotonic(), 0
            while True:
                try:
                    chunk = read(CHUNK_BYTES)
                except OSError as error:  # timeouts, resets, TLS; an error of output.write is none of these
                    raise _Transient(_describe(error)) from error
                if not chunk:
                    return
                output.write(chunk)
                received(len(chunk))
                window_bytes += len(chunk)
                seconds = time.monotonic() - window_start
                if seconds >= self.timeout:
                    if window_bytes < MIN_RATE * seconds:
                        raise _Transient(f"only {window_bytes} bytes in {seconds:.0f} s")
                    window_start, window_bytes = time.monotonic(), 0


def _asked_pause(retry_after: str) -> float:
    """Seconds of a Retry-After header, which has them or a date; 0 for none or nonsense."""
    if retry_after.isdecimal():
        return float(retry_after)
    try:
        return max(email.utils.parsedate_to_datetime(retry_after).timestamp() - time.time(), 0.0)
    except ValueError:
        return 0.0


def _describe(error: BaseException | str) -> str:
    return "timed out" if isinstance(error, TimeoutError) else str(error) or type(error).__name__


def require_space(folder: Path, n_bytes: int, what: str) -> None:
    """Raises UserError when the disk of `folder` has no room for n_bytes more, and some to spare."""
    free = shutil.disk_usage(folder).free
    if n_bytes + SPARE_BYTES > free:
        raise UserError(
            f"{folder}: {what} takes {n_bytes / 1e9:.2f} GB more and {free / 1e9:.2f} GB are free; free some space or "
            "choose another folder"
        )


@contextlib.contextmanager
def byte_progress(n_bytes: int | None, label: str) -> Iterator[Callable[[int], None]]:
    """Yields a function that is told of bytes done; they are shown in whole MB, of small files in kB."""
    unit, scale = ("MB", 10**6) if n_bytes is None or n_bytes >= 10**7 else ("kB", 10**3)
    done = 0
    with Progress(None if n_bytes is None else round(n_bytes / scale), label, unit) as progress:

        def advance(n: int) -> None:
            nonlocal done
            done += n
            progress.update(round(done / scale) - progress.done)

        yield advance


# --------------------------------------------------------------------------------------------------- what is there


def read_text(url: str, name: str = "", **options: float) -> list[str]:
    """The lines of a small UTF-8 text file, such as a list of checksums; as fetch. name: of the file for messages, by
    default its own."""
    with tempfile.TemporaryDirectory() as folder:
        return list(read_lines(fetch(url, Path(folder) / (name or url.rsplit("/", 1)[-1]), **options)))


def list_folder(url: str, **options: float) -> list[str]:
    """The names in a folder: of a disk, or as a server shows them on its page; folders end with "/". Sorted.

    Raises UserError as fetch does, or when the folder cannot be read.
    """
    if path := local_path(url):
        try:
            return sorted(entry.name + "/" * entry.is_dir() for entry in Path(path).iterdir())
        except OSError as error:
            raise UserError(f"cannot list {path}: {error.strerror}") from error
    links = _Links()
    try:
        links.feed("\n".join(read_text(url.rstrip("/") + "/", "index.html", **options)))
    except UserError as error:
        raise UserError(f"cannot list the folder {url}: {str(error).partition(chr(10))[2].strip() or error}") from error
    base = urllib.parse.urlsplit(url.rstrip("/") + "/")
    found = set()
    for link in links.found:
        place = urllib.parse.urlsplit(urllib.parse.urljoin(base.geturl(), link))
        name = urllib.parse.unquote(place.path).removeprefix(urllib.parse.unquote(base.path))
        if place.netloc == base.netloc and name and not place.query and "/" not in name[:-1] and name != place.path:
            found.add(name)
    return sorted(found)


def remote_bytes(urls: Sequence[str], timeout: float = 10.0) -> int | None:
    """How large a file is by the word of the first address that tells; None when none does. Nothing is downloaded."""
    for url in urls:
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
            if path := local_path(url):
                return os.stat(path).st_size
            request = urllib.request.Request(url, headers={"User-Agent": USER_AGENT}, method="HEAD")
            with urllib.request.build_opener().open(request, timeout=timeout) as response:
                return int(response.headers.get("Content-Length", ""))
    return None


def local_path(url: str) -> str | None:
    """The path that file:// or a plain path means; None for what is on a server."""
    if "://" not in url:
        return url
    parts = urllib.parse.urlsplit(url)
    return urllib.request.url2pathname(parts.path) if parts.scheme == "file" else None


class _Links(HTMLParser):
    def __init__(self):
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attrs if tag == "a" and name == "href" and value]


# ------------------------------------------------------------------------------------------------------------ main


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("urls", nargs="+", metavar="URL")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--md5")
    parser.add_argument("--sha1")
    parser.add_argument("--sha256")
    parser.add_argument("--bytes", type=int, dest="n_bytes")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    options = vars(arguments)
    target = fetch(options.pop("urls"), options.pop("output"), **options)
    print(f"{target}: {target.stat().st_size} bytes")


if __name__ == "__main__":
    run_main(main)
