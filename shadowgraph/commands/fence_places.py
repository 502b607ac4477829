"""What ``--fence`` of `shadowgraph wrap` says: its places, checked before the program starts, and whether a fence was
laid in the end.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING

from shadowgraph.common.errors import FenceError, UsageError
from shadowgraph.common.options import FENCE_PLACE

if TYPE_CHECKING:
    from shadowgraph.model.run_facts import RunFacts
    from shadowgraph.model.stacks import Stack

_SOUGHT = 20_000  # files and folders that are looked at for a module
_MPS_PIPE = "/tmp/nvidia-mps/control"


def fence_places(where: str, run: str | None, command: Sequence[str]) -> str:
    """The places of ``--fence``, for `Settings.fence`.

    Parameters
    ----------
    run
        A run folder or a dump: `where` is the name of a buffer in it.

    Raises
    ------
    FenceError
        For what is no place, and for a place or a name that is known not to exist.
    MissingFileError, RunFolderError, DumpError
        When the run cannot be read.
    """
    if run is not None:
        return _place_of(where, run)
    for part in where.split(","):
        if not re.fullmatch(FENCE_PLACE, part):
            wanted = "in:module:qualname or FILE:LINE, or a buffer's name with --from RUN"
            raise FenceError(f"--fence must be {wanted}, not {where!r}")
        if part.startswith("in:"):
            _require_module(part.split(":")[1], command)
        else:
            _require_line(part)
    return ",".join(each for part in where.split(",") for each in _as_it_runs(part, command))


def _as_it_runs(place: str, command: Sequence[str]) -> list[str]:
    """A place, and the same one in ``__main__`` where the program's own file has the module's name: as a script, it
    runs under that one."""
    found = re.fullmatch(r"in:(\w+):(.+)", place)
    if found is None or all(os.path.basename(word) != f"{found[1]}.py" for word in command[1:]):
        return [place]
    return [place, f"in:__main__:{found[2]}"]


def refuse_mps(backend: str, anyway: bool) -> None:
    """Refuse fences on a device that several programs share by MPS, as far as the environment tells.

    Raises
    ------
    FenceError
    """
    shared = bool(os.environ.get("CUDA_MPS_PIPE_DIRECTORY")) or os.path.exists(_MPS_PIPE)
    on_device = backend == "cuda" or (backend == "auto" and os.path.exists("/dev/nvidiactl"))
    if shared and on_device and not anyway:
        raise FenceError(
            "CUDA MPS is in use, where an access past a fence ends all programs that share the device; --fence-anyway "
            "lays fences all the same"
        )


def why_none(facts: RunFacts | None, where: str) -> str | None:
    """Why a run laid no fence, in a line; None where it laid one."""
    from shadowgraph.graphs.dispatch.stepping_aside import refusals

    if facts is not None and facts.fences:
        return None
    reasons = refusals(facts.stepped_aside if facts else ())
    return f"no fence was laid: {'; '.join(reasons) or f'nothing was allocated eagerly from {where}'}"


def _place_of(name: str, run: str) -> str:
    """The lines that allocated the buffers of a name in an earlier run."""
    from shadowgraph.dumps.naming import nearest_of

    known: list[str] = []
    stacks = _in_dumps(name, run, known) or (_in_findings(name, run, known) if os.path.isdir(run) else [])
    if not stacks:
        raise FenceError(f"no buffer of {run} is called {name!r}{nearest_of(name, known)}")
    sites = dict.fromkeys(f"{stack[0].file}:{stack[0].line}" for stack in stacks if stack)
    fitting = [site for site in sites if re.fullmatch(FENCE_PLACE, site)]
    if not fitting:
        raise FenceError(f"{run} does not tell where {name} was allocated")
    return ",".join(fitting)


def _in_dumps(name: str, run: str, known: list[str]) -> list[Stack]:
    """The stacks that allocated the buffers of a name, as a dump or the dumps of a run have them; `known` gets the
    names of all buffers."""
    from shadowgraph.commands.opening import latest_dumps
    from shadowgraph.wrap.folder.reader import read_run

    if os.path.isdir(run) and not read_run(run).dumps:
        return []
    with ExitStack() as opened:
        books = [dump.names for dump in latest_dumps(run, opened)]
        try:
            buffers = [buffer for book in books for buffer in book.buffers(name)]
        except UsageError as error:  # the end of several names
            raise FenceError(str(error)) from None
        known += [each for book in books for each in book.known()]
    if buffers and all(buffer.graph is not None for buffer in buffers):
        raise FenceError(f"{name} is allocated in a capture, where no fence can be laid")
    return [buffer.stack for buffer in buffers if buffer.graph is None]


def _in_findings(name: str, run: str, known: list[str]) -> list[Stack]:
    """The same, as the findings of a run and its fences have them."""
    from shadowgraph.model.stacks import Frame
    from shadowgraph.wrap.folder.reader import read_run

    facts = read_run(run).merged()
    buffers = [finding.buffer for finding in (*facts.damage, *facts.notes)]
    named = [(each, buffer.allocated) for buffer in buffers for each in (buffer.name, *buffer.names)]
    named += [(fence.name, (Frame(fence.file, fence.line, ""),)) for fence in facts.fences]
    known += [each for each, _ in named]
    exact = [stack for each, stack in named if each == name]
    return exact or [stack for each, stack in named if each.endswith(f".{name}")]


def _require_line(place: str) -> None:
    """Refuse a line that is not in its file. Only the end of a path may be given: then the file is not known."""
    file, _, line = place.rpartition(":")
    if not os.path.isfile(file):
        if os.path.isabs(file):
            raise FenceError(f"--fence {place}: there is no file {file}")
        return
    with open(file, "rb") as text:
        count = sum(1 for _ in text)
    if int(line) > count:
        raise FenceError(f"--fence {place}: {file} has {count:,} lines")


def _require_module(module: str, command: Sequence[str]) -> None:
    """Refuse a module that the command's interpreter cannot find, and that is nowhere below the working directory: a
    program may extend its path."""
    top = module.partition(".")[0]
    if top == "__main__" or top in sys.builtin_module_names or not _is_this_python(command[0]):
        return
    scripts = [os.path.dirname(os.path.abspath(word)) for word in command[1:] if word.endswith(".py")]
    folders = [*scripts, os.getcwd(), *os.environ.get("PYTHONPATH", "").split(os.pathsep), *sys.path]
    if PathFinder.find_spec(top, folders) is None and not any(_lies_below(top, each) for each in (*scripts, ".")):
        raise FenceError(f"--fence in:{module}: there is no module {top}")


def _is_this_python(command: str) -> bool:
    found = shutil.which(command)
    return found is not None and os.path.realpath(found) == os.path.realpath(sys.executable)


def _lies_below(module: str, folder: str) -> bool:
    """Whether a folder has a module somewhere below it, or is too large to tell."""
    seen = 0
    for _, folders, files in os.walk(folder):
        if module in folders or f"{module}.py" in files:
            return True
        seen += len(folders) + len(files)
        if seen > _SOUGHT:
            return True
    return False
