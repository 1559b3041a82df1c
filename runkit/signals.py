"""Signals that ask a run to stop: the update under way is finished and saved, then the run ends."""

import signal


class StopSignals:
    """Within it, SIGTERM and SIGUSR1 are noted in `received` instead of ending the process. Main thread only."""

    def __enter__(self) -> "StopSignals":
        self.received: signal.Signals | None = None
        self._previous = {number: signal.signal(number, self._note) for number in (signal.SIGTERM, signal.SIGUSR1)}
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame) -> None:
        self.received = signal.Signals(number)

    def requested(self) -> bool:
        """Whether a signal has come."""
        return self.received is not None
