"""Errors a user can fix, and the one place that turns them into exit codes."""

import sys
from collections.abc import Callable
from typing import NoReturn


class UserError(Exception):
    """Something the user can fix. The message names the file, line or key, the cause and the remedy."""


def run_main(main: Callable[..., int | None], *args) -> NoReturn:
    """Runs `main(*args)` and leaves the process with its return value (None: 0).

    A UserError becomes one line `error: <message>` on stderr and exit code 2, Ctrl-C exit code 130 (128 +
    SIGINT). Anything else is a defect of the program and keeps its traceback (exit code 1).
    """
    try:
        code = main(*args)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        code = 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        code = 130
    sys.exit(code)
