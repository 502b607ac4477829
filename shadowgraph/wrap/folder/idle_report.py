"""Report of a run without tensor work, made from the run folder without importing the report's modules.

Called by the supervising process, after the command has ended.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Sequence

UNSEEN = (
    "no Python process that imports torch was seen. Not reached are Python with -I, -E or -S, programs that clear "
    "PYTHONPATH, and what is not Python"
)
_SMALL = 1 << 16  # bytes of a file without findings
_COMMAND = 60


def idle_report(folder: str, shown: str, command: Sequence[str], code: int) -> list[str] | None:
    """The report of a run in which no process did tensor work; None when a full report is needed.

    Parameters
    ----------
    shown
        The folder's name to print.
    """
    processes = []
    for name in sorted(os.listdir(folder)):
        said = _idle_process(os.path.join(folder, name)) if name.startswith("findings-") else ""
        if said is None:
            return None
        processes += [said] if said else []
    return [
        f"shadowgraph wrap: {cut(shlex.join(command), 100)}: exit code {code}",
        *(processes or [UNSEEN]),
        "shadowgraph: no findings; no debugger had anything to watch"
        if not code
        else f"shadowgraph: nothing was watched before the program ended with exit code {code}",
        f"run folder: {shown}",
    ]


def cut(text: str, length: int = _COMMAND) -> str:
    """A text in one line of at most `length` characters."""
    text = " ".join(text.split())
    return text if len(text) <= length else f"{text[: length - 3]}..."


def _idle_process(path: str) -> str | None:
    """One line on a process whose log has only its start and its end; None for any other log."""
    try:
        with open(path, "rb") as file:
            data = file.read(_SMALL)
        records = [json.loads(line) for line in data.splitlines()]
        start, end = (record for record in records if record["kind"] != "title")
        if (start["kind"], end["kind"]) != ("start", "end"):
            return None
        argv = cut(shlex.join(start["argv"]))
        return f"  process {start['pid']}  {start['born']} of {start['ppid']}, no tensor work, exit  {argv}"
    except (OSError, ValueError, KeyError, TypeError):
        return None
