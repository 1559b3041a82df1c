"""BERT pre-training on two processes of Horovod under chaos; what it does: chaos.py.

The whole: CHAOS_KILLS=20 CHAOS_TERMS=5 CHAOS_TABLE=table.md pytest -s tests/chaos/test_chaos_bert.py
"""

from pathlib import Path

import pytest

from bert_tf import checkpoint
from runkit.store import CheckpointStore
from tests.bert_tf import test_horovod
from tests.bert_tf.test_horovod import MAIN, environment, horovodrun, losses
from tests.bert_tf.test_run_pretraining import arguments, data, settings  # noqa: F401 (data: a fixture)
from tests.chaos import chaos

pytestmark = [*test_horovod.pytestmark, pytest.mark.slow]
KILLS, TERMS, SEED = chaos.counts()
UPDATES = 80 * (KILLS + TERMS + 2)  # an event takes one or two dozens


def newest(output: Path) -> Path:
    return output / f"model.ckpt-{CheckpointStore(output).steps()[-1]}.data-00000-of-00001"


def make_job(data: Path, updates: int) -> chaos.Job:  # noqa: F811
    def flags(output: Path) -> list[str]:
        return arguments(settings(data, output, num_train_steps=updates, num_warmup_steps=10,
                         save_checkpoints_steps=10, keep_checkpoints=2, do_eval=False, optimizer_type="lamb",
                         learning_rate=0.001))  # fmt: skip

    def elastic(output: Path) -> list[list[str]]:
        hosts = output.parent / "hosts.sh"
        hosts.write_text("#!/bin/sh\necho localhost:1\necho 127.0.0.1:1\n")
        hosts.chmod(0o755)
        launcher = ["horovodrun", "--gloo", "-np", "2", "--min-np", "1", "--max-np", "2", "--host-discovery-script"]
        return [[*launcher, str(hosts), *MAIN, *flags(output)]]

    return chaos.Job(
        name="BERT, 2 x Horovod",
        command=lambda output: [*horovodrun(2), *flags(output)],
        elastic=elastic,
        environment=environment(),
        main=MAIN[1],
        saved=lambda output: CheckpointStore(output).steps(),
        newest=newest,
        losses=losses,
        state=lambda output: checkpoint.read_tensors(output / f"model.ckpt-{updates}"),
    )


def test_chaos_leaves_no_trace(data, tmp_path):  # noqa: F811
    table = chaos.chaos(make_job(data, UPDATES), tmp_path, KILLS, TERMS, SEED)
    assert len(table) > KILLS + TERMS


def test_the_process_that_is_left_ends_the_run(data, tmp_path):  # noqa: F811
    chaos.lose_one(make_job(data, 100), tmp_path, SEED)
