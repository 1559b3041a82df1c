import numpy as np
import pytest

from runkit.tensorboard import EventWriter


@pytest.fixture(scope="module")
def read():
    """Reads a folder back with TensorBoard's own reader: {tag: [(step, value)]}."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")

    def read(folder):
        events = accumulator.EventAccumulator(str(folder)).Reload()
        tags = events.Tags()["scalars"]
        return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in tags}

    return read


def test_scalars_are_read_back(tmp_path, read):
    writer = EventWriter(tmp_path / "events")
    writer.scalars(1, {"loss/total": 9.5, "learning_rate": np.float32(0.5)})
    writer.scalars(2, {"loss/total": 9.25})
    writer.close()
    assert read(tmp_path / "events") == {"loss/total": [(1, 9.5), (2, 9.25)], "learning_rate": [(1, 0.5)]}


def test_a_resumed_run_hides_what_it_repeats(tmp_path, read):
    first = EventWriter(tmp_path)
    for step in (1, 2, 3, 4):
        first.scalars(step, {"loss": step})
    first.close()
    second = EventWriter(tmp_path, purge_step=3)
    second.scalars(3, {"loss": 30})
    second.close()
    assert read(tmp_path) == {"loss": [(1, 1), (2, 2), (3, 30)]}
