"""TensorBoard scalars, written with the tensorboard package alone: no framework needed."""

import os
import time
from collections.abc import Mapping


class EventWriter:
    """Writes scalars to a new event file in `logdir`.

    A resumed run gives the step it resumes from as `purge_step`: TensorBoard then hides what the interrupted
    run had logged from that step on.
    """

    def __init__(self, logdir: str | os.PathLike, purge_step: int | None = None):
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._summary = Event, Summary
        self._writer = EventFileWriter(os.fspath(logdir), flush_secs=10)
        if purge_step is not None:
            start = SessionLog(status=SessionLog.START)
            self._writer.add_event(Event(wall_time=time.time(), step=purge_step, session_log=start))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Writes values by tag at a step; a "/" in a tag makes groups."""
        summary = self._summary(
            value=[self._summary.Value(tag=tag, simple_value=float(value)) for tag, value in values.items()]
        )
        self._writer.add_event(self._event(wall_time=time.time(), step=step, summary=summary))

    def close(self) -> None:
        """Writes everything out and closes the file."""
        self._writer.close()
