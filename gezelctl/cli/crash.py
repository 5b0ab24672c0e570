"""A bug becomes one line and a file to attach; the traceback never reaches the terminal."""

from __future__ import annotations

import os
import sys
import tempfile
import traceback

from gezelctl import __version__
from gezelctl.errors import ExitCode


def report_crash() -> int:
    """Write the current exception to a private file and say where; returns the exit code."""
    text = f"gezelctl {__version__}, Python {sys.version}\n{' '.join(sys.argv[:2])}\n\n{traceback.format_exc()}"
    try:
        handle, path = tempfile.mkstemp(prefix="gezelctl-crash-", suffix=".log")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        path = f"nowhere ({error})"
    kind = sys.exc_info()[0]
    name = kind.__name__ if kind else "unknown"
    sys.stderr.write(f"error: gezelctl has a bug ({name}); nothing more was done\n")
    sys.stderr.write(f"  cure: report it with {path}\n")
    return ExitCode.FAILED
