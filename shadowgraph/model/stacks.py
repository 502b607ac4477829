"""Python stacks of the program, without the frames of shadowgraph and of libraries such as torch and Triton.

Any thread. The caches have no lock: two threads may at worst compute the same entry twice.
"""

from __future__ import annotations

import linecache
import os
import re
import sys
from types import CodeType, FrameType
from typing import Any

import msgspec

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_DEMOS = os.path.join(PACKAGE, "demos") + os.sep
_DRIVERS = os.path.join(_DEMOS, "sglang") + os.sep
_LIBRARIES = (
    *("torch", "triton", "numpy"),
    *("_pytest", "pytest", "pluggy", "xdist", "execnet"),  # their variables hold a test's arguments, not names
)
_STANDARD = ("contextlib.py", "functools.py", "threading.py")
_CORE = "IPython.core.getipython"
# Files that inductor generates, in its folder or TORCHINDUCTOR_CACHE_DIR: a hash, in a folder named by its start.
_COMPILED = re.compile(r"torchinductor_|[/\\]([a-z2-7]{2})[/\\]c\1[a-z2-7]{49}\.py$")
_CELL = re.compile(r"In\[(\d{1,9})\]")
_MAGIC_CALL = "get_ipython().run_cell_magic("  # what IPython makes of a cell that starts with `%%`
_skip_cache: dict[str, bool] = {}
_CODES = 8192  # functions whose lines are remembered
_known: dict[int, tuple[CodeType, dict[int, Frame] | None]] = {}  # by the code's id; None for library code


class Frame(msgspec.Struct, frozen=True):
    """One line of a stack: absolute file, line (from 1), function."""

    file: str
    line: int
    function: str


Stack = tuple[Frame, ...]


def current_stack(limit: int = 12) -> Stack:
    """The caller's stack, innermost first, without frames of shadowgraph, torch, Triton and numpy.

    Parameters
    ----------
    limit
        Most frames kept. Walking 60 frames costs about 10 us.
    """
    frame: FrameType | None = sys._getframe(1)
    if _shell() is not None:
        return _notebook_stack(frame, limit)
    frames: list[Frame] = []
    while frame is not None and len(frames) < limit:
        known = _known.get(id(frame.f_code))
        lines = known[1] if known is not None and known[0] is frame.f_code else _lines_of(frame.f_code)
        if lines is not None:
            at = frame.f_lasti
            frames.append(lines.get(at) or _note_line(lines, frame))
        frame = frame.f_back
    return tuple(frames)


def current_frame(depth: int = 1) -> FrameType | None:
    """The innermost frame of the program: that of the first line of `current_stack`. None without any.

    Parameters
    ----------
    depth
        Frames above this one that are known to be shadowgraph's.
    """
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None:
        known = _known.get(id(frame.f_code))
        lines = known[1] if known is not None and known[0] is frame.f_code else _lines_of(frame.f_code)
        if lines is not None:
            return frame
        frame = frame.f_back
    return None


def _notebook_stack(frame: FrameType | None, limit: int) -> Stack:
    """As `current_stack`, from `frame` on, with the labels of notebook cells in place of their files."""
    frames: list[Frame] = []
    while frame is not None and len(frames) < limit:
        code = frame.f_code
        if not is_machinery(code.co_filename):
            cell = cell_label(code.co_filename)
            frames.append(Frame(cell or code.co_filename, frame.f_lineno, code.co_name))
            if cell and code.co_name == "<module>":
                break  # below a notebook cell there are only frames of its kernel
        frame = frame.f_back
    return tuple(frames)


def _shell() -> Any:
    """The running IPython shell, or None: servers import IPython without running a shell."""
    module = sys.modules.get("IPython")
    if module is None:
        return None
    # Looked up where it is found at once, since each stack needs it; missing while IPython is being imported.
    get_ipython = vars(module).get("get_ipython") or vars(sys.modules.get(_CORE, module)).get("get_ipython")
    return get_ipython() if get_ipython is not None else None


def _lines_of(code: CodeType) -> dict[int, Frame] | None:
    """The cached lines of a code object, by instruction; None for library code."""
    if len(_known) >= _CODES:
        _known.clear()
    lines: dict[int, Frame] | None = None if is_machinery(code.co_filename) else {}
    _known[id(code)] = code, lines  # a reference, so that the id stays unique
    return lines


def _note_line(lines: dict[int, Frame], frame: FrameType) -> Frame:
    code = frame.f_code
    line = lines[frame.f_lasti] = Frame(code.co_filename, frame.f_lineno, code.co_name)
    return line


def cell_label(filename: str) -> str | None:
    """``In[3]`` for the code of a notebook cell, None elsewhere. Not cached: a cell that runs again is renumbered."""
    shell = _shell()
    named = shell.compile.format_code_name(filename) if shell is not None else None
    return f"In[{named[1].split('[')[-1].rstrip(']')}]" if named else None


def cell_source(label: str) -> str | None:
    """The Python text of the notebook cell with a label such as ``In[3]``, with the line numbers of its frames.

    Empty where the running shell does not know the cell; None for anything but a label in a notebook. Not cached, as
    the label is not: caches above go by the text.
    """
    shell, number = _shell(), _CELL.fullmatch(label)
    if shell is None or number is None:
        return None
    return _compiled_text(label) or _entered_text(shell, int(number[1]))


def _compiled_text(label: str) -> str:
    """What was compiled last under a label: for a cell magic, the code that it ran and not the call of the magic."""
    found = ""
    for name in [*linecache.cache]:  # a copy: another thread may run a cell
        text = "".join(linecache.getlines(name)) if cell_label(name) == label else ""
        found = text if text and not text.startswith(_MAGIC_CALL) else found
    return _without_magic(found)


def _entered_text(shell: Any, number: int) -> str:
    """The text of a cell that the shell remembers by another number, since it ran again."""
    cells = shell.user_ns.get("In")
    known = cells[number] if isinstance(cells, list) and number < len(cells) else ""
    if not isinstance(known, str) or not known.startswith(_MAGIC_CALL):
        return known if isinstance(known, str) else ""
    entered = shell.history_manager.input_hist_raw
    text = entered[number].lstrip("\n") if number < len(entered) else ""
    return _without_magic(text)


def _without_magic(text: str) -> str:
    """The text with an empty line in place of ``%%shadowgraph``, which is no Python."""
    return text[text.index("\n") :] if text.startswith("%%") and "\n" in text else text


def is_machinery(filename: str) -> bool:
    """Whether a file belongs to shadowgraph, torch or another library whose frames say nothing of the program."""
    known = _skip_cache.get(filename)
    if known is None:
        known = _skip_cache[filename] = _classify(filename)
    return known


def is_own(filename: str) -> bool:
    """Whether an absolute path is shadowgraph's code: demos are programs under test that ship with the package, while
    the drivers, which make a library run for them, are not.
    """
    ships = filename.startswith(PACKAGE + os.sep)
    return ships and (not filename.startswith(_DEMOS) or filename.startswith(_DRIVERS))


def _classify(filename: str) -> bool:
    if filename.startswith("<frozen") or filename == "<string>" or _COMPILED.search(filename):
        return True
    absolute = os.path.abspath(filename)
    if absolute.startswith(PACKAGE + os.sep):
        return is_own(absolute)
    if any(absolute.startswith(folder) for folder in _folders()):
        return True
    parts = absolute.split(os.sep)
    library = {"site-packages", "dist-packages"} & set(parts)
    if library:
        after = parts[parts.index(next(iter(library))) + 1 :]
        return bool(after) and after[0] in _LIBRARIES
    return parts[-1] in _STANDARD and os.path.dirname(absolute) == os.path.dirname(os.__file__)


def _folders() -> list[str]:
    """Where the libraries were imported from: one that is developed may stand anywhere."""
    files = (getattr(sys.modules.get(name), "__file__", None) for name in _LIBRARIES)
    return [os.path.dirname(os.path.abspath(file)) + os.sep for file in files if file]
