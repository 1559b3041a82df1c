"""Writing checkpoints while training goes on: one thread, one write at a time.

    with BackgroundWriter() as writer:
        for ...:
            one update
            writer.poll()
            if a save is due:
                snapshot = copy of everything that later updates change
                writer.submit(lambda: write(snapshot), lambda path: log.info(f"saved {path}"))

What goes wrong in the background is raised in the caller's thread, at the next poll, submit, wait or end of the block,
and once. The caller is expected to end with it, as with an error of its own: a run that cannot save would lose
everything from then on. A write that failed has left the checkpoints before it as they were (see runkit.store).
"""

import threading
import time
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class BackgroundWriter:
    """Runs writes in a thread beside the caller's, which is the only one to call these methods.

    stalled_seconds: for how long the caller has been held up, in all, by waiting for a write to end.
    """

    def __init__(self):
        self.stalled_seconds = 0.0
        self._thread: threading.Thread | None = None
        self._done: Callable[[Any], None] | None = None
        self._result: Any = None
        self._error: BaseException | None = None

    def submit(self, write: Callable[[], T], done: Callable[[T], None] | None = None) -> None:
        """Waits for the write before, then starts this one and returns.

        write: called in the background; must not touch what the caller goes on changing. done: called with its
        result in the caller's thread, at the first poll, submit, wait or end of the block after the write. Raises what
        the write before raised; then nothing is started.
        """
        self.wait()
        self._done = done
        self._thread = threading.Thread(target=self._run, args=(write,), name="background write")
        self._thread.start()

    def poll(self) -> None:
        """Reports a write that has ended: calls its `done`, or raises what it raised. Never waits."""
        if self._thread is not None and not self._thread.is_alive():
            self.wait()

    def wait(self) -> None:
        """Returns when nothing is being written any more. Raises what the write raised."""
        if self._thread is None:
            return
        began = time.perf_counter()
        try:
            self._thread.join()
        finally:  # also where Ctrl-C ends the waiting
            self.stalled_seconds += time.perf_counter() - began
        result, error, done = self._result, self._error, self._done
        self._thread = self._result = self._error = self._done = None
        if error is not None:
            raise error
        if done is not None:
            done(result)

    def _run(self, write: Callable[[], Any]) -> None:
        try:
            self._result = write()
        except BaseException as error:  # raised in the caller's thread
            self._error = error

    def __enter__(self) -> "BackgroundWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_) -> None:
        """Waits. Where the block ends with an error, one of the write is a warning beside it."""
        if kind is None:
            self.wait()
            return
        try:
            self.wait()
        except Exception as error:
            warnings.warn(f"writing in the background failed too: {error}", stacklevel=2)
