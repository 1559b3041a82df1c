"""A save that dies, or that the disk refuses, just before a given change of the disk."""

import os
import sys
import traceback
from collections.abc import Callable

from runkit.errors import UserError

CHANGES = {"open", "os.rename", "os.remove", "os.link", "os.mkdir", "os.rmdir"}
DONE, KILLED, REFUSED, DONE_NEVERTHELESS = 0, 9, 10, 11
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def interrupted(save: Callable[[], object], number: int, refusal: int = 0, for_good: bool = False) -> int:
    """Calls `save` in a child up to its number-th change of the disk; returns what came of it, one of the above.

    There the child dies (refusal 0), or the change fails with that errno, and all later ones too if for_good. REFUSED:
    the save raised a UserError that tells the cause, a remedy, and that older checkpoints are intact. DONE: it made
    less than `number` changes. To be used from a process with one thread; a failure of the child shows on stderr.
    """
    child = os.fork()
    if child == 0:
        os._exit(_child(save, number, refusal, for_good))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (DONE, KILLED, REFUSED, DONE_NEVERTHELESS), code
    return code


def _child(save: Callable[[], object], number: int, refusal: int, for_good: bool) -> int:
    seen = 0

    def hook(event, arguments):
        nonlocal seen
        if event not in CHANGES or (event == "open" and not arguments[2] & _WRITING):
            return
        seen += 1
        if seen == number and not refusal:
            os._exit(KILLED)
        if refusal and (seen == number or (for_good and seen > number)):
            raise OSError(refusal, os.strerror(refusal))

    sys.addaudithook(hook)
    try:
        save()
    except UserError as error:
        if all(text in str(error) for text in (os.strerror(refusal), "then run again", "are as they were")):
            return REFUSED
        traceback.print_exc()
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return DONE if seen < number else DONE_NEVERTHELESS
