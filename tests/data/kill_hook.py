"""Kills a process group with SIGKILL at its n-th action on a folder: for processes that have the variables below.

KILL_FOLDER     actions are opening, making, renaming, removing and locking below it
KILL_COUNTER    a file that grows by a byte with every action of any process
KILL_AT         the number of the action before which the kill comes; 0: none, they are only counted
KILL_DELAY      seconds from there to the kill
"""

import os
import signal
import sys
import threading

ACTIONS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "fcntl.flock"}


def install() -> None:
    folder, at, delay = os.environ["KILL_FOLDER"], int(os.environ["KILL_AT"]), float(os.environ["KILL_DELAY"])
    counter = os.open(os.environ["KILL_COUNTER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    cwd = os.getcwd()

    def kill() -> None:
        os.killpg(0, signal.SIGKILL)

    def hook(event: str, arguments: tuple) -> None:
        if event not in ACTIONS:
            return
        if event != "fcntl.flock":
            try:
                path = os.path.join(cwd, os.fsdecode(arguments[0]))
            except TypeError:  # an open file
                return
            if not path.startswith(folder + os.sep):
                return
        os.write(counter, b".")
        if os.lseek(counter, 0, os.SEEK_CUR) == at:
            if delay:
                threading.Timer(delay, kill).start()
            else:
                kill()

    sys.addaudithook(hook)
