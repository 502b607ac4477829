"""Compiles and runs a notebook cell as IPython does: same transformations, same namespace, same tracebacks.

Called by the magics, in the thread that runs the cell.
"""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from types import CodeType, TracebackType
from typing import Any

from shadowgraph.common.errors import ShadowgraphError, UsageError
from shadowgraph.model.stacks import cell_label

_AWAITS = ("'await' outside", "outside async function", "outside of async")


class CellSyntaxError(ShadowgraphError):
    """A cell that does not compile; rendered like IPython's own syntax errors, without a traceback."""

    def __init__(self, shell: Any, error: SyntaxError) -> None:
        super().__init__(str(error))
        self._shown = shell.SyntaxTB.structured_traceback(type(error), error, [])

    def _render_traceback_(self) -> Any:
        return self._shown


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell's code.

    Attributes
    ----------
    name
        File name of its lines in tracebacks and stacks.
    body, last
        The statements, and the final expression, whose value is the cell's result.
    """

    name: str
    body: CodeType
    last: CodeType | None

    def run(self, shell: Any) -> Any:
        """Run the cell in the user's namespace; returns the value of its last expression."""
        exec(self.body, shell.user_global_ns, shell.user_ns)
        return None if self.last is None else eval(self.last, shell.user_global_ns, shell.user_ns)


def compiled(shell: Any, first: str, text: str) -> Cell:
    """Compile the cell below its first line, with the notebook's line numbers.

    Raises
    ------
    CellSyntaxError
        When it is not valid Python.
    UsageError
        For an ``await`` outside of functions.
    """
    lines = text.splitlines(keepends=True)
    blank = next((at for at, line in enumerate(lines) if line.strip()), len(lines))  # `transform_cell` drops these
    code = first + "\n" * (1 + blank) + shell.transform_cell(text)
    name = shell.compile.cache(code, _number(shell), raw_code=f"{first}\n{text}")
    try:
        return _compiled(shell, code.removeprefix(first), name)
    except SyntaxError as error:
        if any(words in str(error) for words in _AWAITS):
            raise UsageError(
                "a cell with `await` outside of functions cannot run under %%shadowgraph; write `with sg.debug() as "
                "dbg:` around the code instead"
            ) from None
        raise CellSyntaxError(shell, error) from None


def _number(shell: Any) -> int:
    """The number of the running cell. The shell's own counter is one ahead in some versions of IPython."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        label = cell_label(frame.f_code.co_filename)
        if label is not None and label[3:-1].isdecimal():
            return int(label[3:-1])
    return int(shell.execution_count)


def _compiled(shell: Any, code: str, name: str) -> Cell:
    tree = shell.transform_ast(ast.parse(code, name))
    expression = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    body = shell.compile(tree, name, "exec")
    last = None if expression is None else shell.compile(ast.Expression(expression.value), name, "eval")
    return Cell(name, body, last)


def as_its_own(shell: Any, error: BaseException, name: str) -> BaseException:
    """An error of a cell's code, rendered as without the magic: once, starting at the cell's own line."""
    found = _from(error.__traceback__, name)

    def render() -> Any:
        del error._render_traceback_  # type: ignore[attr-defined]  # raised again elsewhere, it has another traceback
        return shell.InteractiveTB.structured_traceback(type(error), error, found, tb_offset=0)

    if found is not None:
        error._render_traceback_ = render  # type: ignore[attr-defined]
    return error


def _from(trace: TracebackType | None, name: str) -> TracebackType | None:
    """The part of a traceback from a file's first frame on; None when the file is not in it."""
    while trace is not None and trace.tb_frame.f_code.co_filename != name:
        trace = trace.tb_next
    return trace
