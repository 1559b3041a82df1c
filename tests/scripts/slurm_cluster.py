"""A Slurm cluster of several nodes on this machine, with everything of its own in one folder: for the tests.

Needs Debian's slurm-wlm and munge (installed by `find_or_install` where this is root), no system service and nothing
in /etc. Nodes are slurmd daemons on ports of their own; jobs start within a second.
"""

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol")
PACKAGES = ("slurm-wlm", "munge")
PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"  # where the daemons are
PATIENCE = 240  # seconds until something that should happen has failed to, on however busy a machine
# cgroups cannot be used in containers. The scheduler's settings make jobs start at once, and cred_expire also after a
# requeue: Slurm waits until old credentials are void, by default two minutes.
CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=1,bf_interval=1
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=30
MinJobAge=3600
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def find_or_install() -> None:
    """Sees to it that Slurm is there; skips the test where it is not and cannot be installed."""
    missing = [program for program in PROGRAMS if not shutil.which(program, path=PATH)]
    if not missing:
        return
    remedy = f"apt-get install --no-install-recommends {' '.join(PACKAGES)}"
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        pytest.skip(f"no {', '.join(missing)} here: {remedy} (as root)")
    install = ["apt-get", "install", "--yes", "--no-install-recommends", *PACKAGES]
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "update"], install):
        result = subprocess.run(command, env=environment, capture_output=True, text=True)
        if result.returncode != 0:
            pytest.skip(f"Slurm cannot be installed here ({remedy}): {result.stderr.strip()[-300:]}")


class Cluster:
    """The running cluster, as a user on its login node sees it."""

    def __init__(self, folder: Path, environment: dict[str, str]):
        self.folder, self.environment = folder, environment

    def call(self, *command: str, **variables: str) -> str:
        """What a command prints, such as scontrol."""
        result = subprocess.run(command, env=self.environment | variables, capture_output=True, text=True)
        assert result.returncode == 0, f"{command}: {result.stdout}{result.stderr}"
        return result.stdout

    def submit(self, root: Path, log: Path, *words: str, **variables: str) -> str:
        """sbatch with these words, from the folder `root`; the number of the job."""
        command = ["sbatch", "--parsable", f"--output={log}", *words]
        result = subprocess.run(command, cwd=root, env=self.environment | variables, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        return result.stdout.strip().split(";")[0]

    def job(self, number: str) -> dict[str, str]:
        """What scontrol knows of a job, such as JobState, Restarts and ExitCode."""
        words = self.call("scontrol", "show", "job", "--oneliner", number).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait_for(self, condition: Callable[[], bool], what: str, log: Path, patience: float = PATIENCE) -> None:
        """Returns when the condition holds; fails with the job's log when it does not come to that."""
        deadline = time.monotonic() + patience
        while not condition():
            if time.monotonic() > deadline:
                text = log.read_text(errors="replace") if log.exists() else "(no log)"
                queue = subprocess.run(["squeue"], env=self.environment, capture_output=True, text=True)
                pytest.fail(f"no {what} within {patience} s\n{queue.stdout}{queue.stderr}\n{text[-4000:]}")
            time.sleep(0.1)

    def wait_for_end(self, number: str, log: Path) -> dict[str, str]:
        """The job's record when it is over for good."""
        over = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
        self.wait_for(lambda: self.job(number)["JobState"] in over, f"end of job {number}", log)
        return self.job(number)


@contextlib.contextmanager
def cluster(nodes: int) -> Iterator[Cluster]:
    """A cluster of so many nodes of 2 cores each. All of its processes are gone afterwards, jobs included."""
    find_or_install()
    with tempfile.TemporaryDirectory(prefix="slurm-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # munged insists on a socket that all users could reach; pytest's folders are private
        with running(folder, nodes) as up:
            yield up


@contextlib.contextmanager
def running(folder: Path, nodes: int) -> Iterator[Cluster]:
    """The cluster with everything in this folder."""
    (folder / "state").mkdir()
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    host, ports = socket.gethostname(), free_ports(nodes + 1)
    lines = [
        f"NodeName=n{i} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[i]} CPUs=2" for i in range(1, nodes + 1)
    ]
    text = CONFIGURATION.format(
        host=host, user=getpass.getuser(), port=ports[0], folder=folder, nodes="\n".join(lines)
    )  # fmt: skip
    (folder / "slurm.conf").write_text(text)
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "SBATCH", "PMI"))}
    environment |= {"PATH": PATH, "SLURM_CONF": str(folder / "slurm.conf")}
    munged = ["munged", "--foreground", "--num-threads=1", f"--key-file={key}", f"--socket={folder}/munge.socket"]
    munged += [f"--{name}-file={folder}/munged.{name}" for name in ("pid", "seed", "log")]
    slurmds = [["slurmd", "-D", "-N", f"n{i}"] for i in range(1, nodes + 1)]
    up = Cluster(folder, environment)
    with contextlib.ExitStack() as stack:
        stack.enter_context(daemon(munged, folder / "munged.out", environment))
        up.wait_for((folder / "munge.socket").exists, "socket of munged", folder / "munged.out", 30)
        for name, command in {"slurmctld": ["slurmctld", "-D", "-i"], **{c[-1]: c for c in slurmds}}.items():
            stack.enter_context(daemon(command, folder / f"{name}.out", environment))
        stack.callback(cancel_all, up)
        up.wait_for(lambda: is_idle(up, nodes), "idle nodes", folder / "slurmctld.out", 60)
        yield up


@contextlib.contextmanager
def daemon(command: list[str], output: Path, environment: dict[str, str]) -> Iterator[None]:
    """A process in the background, which is stopped at the end."""
    with output.open("w") as stream:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, start_new_session=True
        )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def is_idle(up: Cluster, nodes: int) -> bool:
    result = subprocess.run(["sinfo", "-h", "-o", "%T %D"], env=up.environment, capture_output=True, text=True)
    return result.stdout.split() == ["idle", str(nodes)]


def cancel_all(up: Cluster) -> None:
    """Ends what still runs, so that no process of a job outlives the daemons."""
    numbers = subprocess.run(["squeue", "-h", "-o", "%A"], env=up.environment, capture_output=True, text=True)
    for number in set(numbers.stdout.split()):
        subprocess.run(["scancel", "--full", "--signal=KILL", number], env=up.environment)
        subprocess.run(["scancel", number], env=up.environment)
    deadline = time.monotonic() + 30
    while numbers.stdout.split() and time.monotonic() < deadline:
        time.sleep(0.2)
        numbers = subprocess.run(["squeue", "-h", "-o", "%A"], env=up.environment, capture_output=True, text=True)


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
