"""By which names captured code takes values, from its source."""

from __future__ import annotations

import linecache
import textwrap

import pytest

from shadowgraph.checks.rebound.loaded_names import Chain, loads_in, loads_of
from shadowgraph.model.stacks import Frame

SOURCE = textwrap.dedent(
    """\
    from typing import Callable

    class Backend:
        def capture(self, step: Callable[[], int] = None) -> None:
            '''Text
    at the margin.'''
            table = self.metadata.page_table
            self.log["ids"] = self.last = x
            self.out = run(
                inputs["ids"],
                *self.buffers.values(),
                self.rows[step].lens,
            )

            def later():
                return self.never
        def other(self):
            return self.unrelated

    y = z + 1
    f = lambda: w * 2
    """
)
FILE = "<loaded names>"


@pytest.fixture(autouse=True)
def _source() -> None:
    linecache.cache[FILE] = len(SOURCE), None, SOURCE.splitlines(keepends=True), FILE


def loads(function: str, line: int) -> set[Chain]:
    return {load.chain for load in loads_in(FILE, line, function)}


def test_the_names_that_a_function_loads() -> None:
    assert loads("capture", 9) == {
        ("self", ".metadata", ".page_table"),
        ("x",),
        ("run",),
        ("inputs", '["ids"]'),
        ("self", ".buffers", ".values"),
        ("self", ".rows", "[]", ".lens"),
        ("step",),
    }
    assert loads("<module>", 20) >= {("z",)}
    assert ("w",) in loads("<lambda>", 21)
    assert loads("gone", 9) == set()
    assert loads_in("/no/such/file.py", 3, "f") == ()


@pytest.mark.parametrize(
    ("name", "taken"),
    [
        (("backend", ".metadata", ".page_table"), True),
        (("runner", ".attn", ".metadata", ".page_table"), True),
        (("backend", ".other", ".page_table"), False),
        (("backend", ".last"), False),  # stored only
        (("backend", ".log", '["ids"]'), True),  # `inputs["ids"]` may be it
        (("inputs", '["ids"]'), True),
        (("inputs", ".more", '["ids"]'), False),
        (("backend", ".buffers", '["mask"]'), True),
        (("backend", ".buffers", "[]"), True),
        (("backend", ".rows", "[]", ".lens"), True),
        (("backend", ".never"), False),
        (("backend", ".unrelated"), False),
        (("backend", ".last", "[]"), False),
    ],
)
def test_whether_a_name_may_be_taken(name: Chain, taken: bool) -> None:
    assert bool(loads_of(name, [(Frame(FILE, 9, "capture"),)])) is taken


def test_a_variable_counts_in_its_statement_only() -> None:
    assert loads_of(("x",), [(Frame(FILE, 8, "capture"),)]) == {("x",)}
    assert loads_of(("x",), [(Frame(FILE, 9, "capture"),)]) == set()
    assert loads_of(("step",), [(Frame(FILE, 9, "capture"),)]) == {("step",)}, "the call spans five lines"
