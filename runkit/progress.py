"""Progress of long work with rate and time left: a bar on a terminal, an occasional plain line elsewhere."""

import datetime
import sys
import time
from typing import TextIO


class Progress:
    """Context manager that shows how far long work is.

    On a terminal a tqdm bar; otherwise one line at most every `interval` seconds and one at the end, so that
    a log file of a day's work stays readable. `total` may be None when it is not known.
    """

    def __init__(
        self, total: int | None, label: str, unit: str = "items", interval: float = 10.0, stream: TextIO | None = None
    ):
        self.total, self.label, self.unit, self.interval = total, label, unit, interval
        self.stream = sys.stderr if stream is None else stream
        self.done = 0
        self._bar = None

    def __enter__(self) -> "Progress":
        self._start = self._printed = time.monotonic()
        if self.stream.isatty():
            from tqdm import tqdm

            self._bar = tqdm(
                total=self.total, desc=self.label, unit=f" {self.unit}", file=self.stream, dynamic_ncols=True
            )
        return self

    def update(self, n: int = 1) -> None:
        """Says that n more units are done."""
        self.done += n
        if self._bar is not None:
            self._bar.update(n)
            return
        now = time.monotonic()
        if now - self._printed >= self.interval:
            self._printed = now
            self._print(self._position() + self._time_left(now - self._start))

    def __exit__(self, exception_type, *_) -> None:
        if self._bar is not None:
            self._bar.close()
            return
        seconds = time.monotonic() - self._start
        stopped = " (stopped)" if exception_type else ""
        self._print(f"{self._position()} in {duration(seconds)}, {self._rate(seconds)}{stopped}")

    def _position(self) -> str:
        if not self.total:
            return f"{self.label}: {self.done} {self.unit}"
        return f"{self.label}: {self.done}/{self.total} {self.unit} ({100 * self.done / self.total:.0f}%)"

    def _rate(self, seconds: float) -> str:
        rate = self.done / seconds if seconds > 0 else 0.0
        return f"{rate:.{1 if rate >= 1 else 3}f} {self.unit}/s"

    def _time_left(self, seconds: float) -> str:
        if not self.total or not self.done:
            return f", {self._rate(seconds)}"
        left = seconds * max(self.total - self.done, 0) / self.done
        return f", {self._rate(seconds)}, ETA {duration(left)}"

    def _print(self, text: str) -> None:
        print(text, file=self.stream, flush=True)


def duration(seconds: float) -> str:
    """Seconds as h:mm:ss ("1 day, 2:03:04" beyond a day)."""
    return str(datetime.timedelta(seconds=round(seconds)))


def print_line(text: str) -> None:
    """Prints to stdout at once, above any bar on the screen, escaping letters the terminal lacks."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    text = text.encode(encoding, "backslashreplace").decode(encoding)
    tqdm = sys.modules.get("tqdm")
    if tqdm is None:
        print(text, flush=True)
    else:
        tqdm.tqdm.write(text)
        sys.stdout.flush()
