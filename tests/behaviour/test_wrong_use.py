"""Each wrong use of the API is one line that says what to do."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import shadowgraph as sg
from shadowgraph.common.errors import ShadowgraphError


class Objects:
    """What the uses are of."""

    def __init__(self, debugger: sg.Debugger) -> None:
        self.dbg: Any = debugger
        with debugger.guard():
            self.table = torch.zeros(4)
        self.graph: Any = sg.HostGraph()
        with sg.host_graph(self.graph):
            self.out = self.table + 1


Use = Callable[[Objects], object]

WRONG: list[tuple[str, type[ShadowgraphError], Use, str]] = [
    ("name of numbers", sg.UnknownBufferError, lambda o: o.dbg.name("a", [1, 2]), "found no tensor in this list"),
    ("name of an empty dict", sg.UnknownBufferError, lambda o: o.dbg.name("a", {}), "name it once it holds some"),
    ("name of None", sg.UnknownBufferError, lambda o: o.dbg.name("a", None), "not NoneType"),
    ("number as name", sg.UsageError, lambda o: o.dbg.name(3, o.table), "takes a name as text, then the object"),
    ("swapped name", sg.UsageError, lambda o: o.dbg.name(o.table, "a"), "takes a name as text, then the object"),
    ("empty name", sg.UsageError, lambda o: o.dbg.name("", o.table), "takes a name as text"),
    ("protect None", sg.UnknownBufferError, lambda o: o.dbg.protect(None), "protect() expected a tensor, got NoneType"),
    ("protect a list", sg.UnknownBufferError, lambda o: o.dbg.protect([o.table]), "expected a tensor, got list"),
    ("watch 3", sg.UnknownBufferError, lambda o: o.dbg.watch(3), "watch() expected a tensor, got int"),
    ("watch under 3", sg.UsageError, lambda o: o.dbg.watch(o.table, 3), "a name as text, not 3"),
    ("no rule", sg.UsageError, lambda o: o.dbg.invariant(o.table, None), "not NoneType"),
    ("rule", sg.UsageError, lambda o: o.dbg.invariant(o.table, "nondecrasing"), "(did you mean nondecreasing?)"),
    ("rule of 3", sg.UsageError, lambda o: sg.Rule(3, 4), "a Rule is a name and a function"),  # type: ignore[arg-type]
    ("range", sg.UsageError, lambda o: sg.index_range("a", 3), "takes two numbers, not 'a'"),  # type: ignore[arg-type]
    ("range of None", sg.UsageError, lambda o: sg.index_range(0, None), "not None"),  # type: ignore[arg-type]
    ("padding", sg.UsageError, lambda o: o.dbg.padding(o.table, "refesh"), "(did you mean refresh?)"),
    ("padding []", sg.UsageError, lambda o: o.dbg.padding(o.table, []), "not []"),
    ("padding of 3", sg.UnknownBufferError, lambda o: o.dbg.padding(3, "refresh"), "padding() expected a tensor"),
    ("refreshes None", sg.UsageError, lambda o: o.dbg.refreshes(None, o, "table"), "not None"),
    ("refreshes 3", sg.UsageError, lambda o: o.dbg.refreshes(3, o, "table"), "expected a HostGraph"),
    ("refreshes nothing", sg.UsageError, lambda o: o.dbg.refreshes(o.graph, o), "the names of its attributes"),
    ("refreshes 4", sg.UsageError, lambda o: o.dbg.refreshes(o.graph, o, 4), "the names of its attributes"),
    (
        "refreshes zz",
        sg.UnknownBufferError,
        lambda o: o.dbg.refreshes(o.graph, o, "zz"),
        "'zz' of this Objects",
    ),
    ("contents_lost 3", sg.UnknownBufferError, lambda o: o.dbg.contents_lost(3), "contents_lost() expected a tensor"),
    ("how", sg.UsageError, lambda o: o.dbg.contents_lost(o.table, how=3), "takes a text as how"),
    ("prepare 3", sg.UsageError, lambda o: o.dbg.prepare(3).__enter__(), "expected a HostGraph"),
    ("locate 3", sg.UsageError, lambda o: o.dbg.locate(3), "expected a HostGraph"),
    ("graph None", sg.UsageError, lambda o: o.dbg.graph(None), "not None"),
    ("dump None", sg.UsageError, lambda o: o.dbg.dump(None), "takes the path of a file or of a folder, not None"),
    ("dump 3", sg.UsageError, lambda o: o.dbg.dump(3), "takes the path of a file or of a folder, not 3"),
    ("dump reason", sg.UsageError, lambda o: o.dbg.dump("x", reason=3), "takes a text as reason"),
    ("report into a path", sg.UsageError, lambda o: o.dbg.report("report.txt"), "takes an open file, not 'report.txt'"),
    ("host_graph None", sg.UsageError, lambda o: sg.host_graph(None), "not None; make one: HostGraph()"),  # type: ignore[arg-type]
    ("host_graph()", sg.UsageError, lambda o: sg.host_graph(o.dbg), "captures into a HostGraph, not <Debugger"),
    ("captured twice", sg.CaptureError, lambda o: o.graph.capture_begin(), "capture into a new HostGraph, or reset()"),
    ("debug_dump", sg.UsageError, lambda o: o.graph.debug_dump(None), "takes the path of a file, not None"),
    ("second debugger", sg.UsageError, lambda o: sg.debug().__enter__(), "or end it: shadowgraph.uninstall()"),
    ("second start", sg.UsageError, lambda o: sg.Debugger(sg.Settings()).start(), "or end it: shadowgraph.uninstall()"),
    (
        "unnamed option",
        sg.UsageError,
        lambda o: sg.debug("host"),
        "such as debug(backend=\"host\"), and was given 'host'",
    ),
    ("install unnamed", sg.UsageError, lambda o: sg.install("host"), "install() takes options by name"),
    (
        "unknown option",
        sg.UsageError,
        lambda o: sg.debug(layuot="isolate"),
        "no option 'layuot' (did you mean layout?",
    ),
    ("unfit option", sg.UsageError, lambda o: sg.debug(layout="tight"), "layout must be one of isolate, faithful"),
    ("Debugger(None)", sg.UsageError, lambda o: sg.Debugger(None), "takes Settings, not None"),  # type: ignore[arg-type]
]

AFTER_THE_END: dict[str, Use] = {
    "protect": lambda o: o.dbg.protect(o.table),
    "invariant": lambda o: o.dbg.invariant(o.table, "nondecreasing"),
    "padding": lambda o: o.dbg.padding(o.table, "refresh"),
    "refreshes": lambda o: o.dbg.refreshes(o.graph, o, "table"),
    "contents_lost": lambda o: o.dbg.contents_lost(o.table),
    "watch": lambda o: o.dbg.watch(o.table),
    "guard": lambda o: o.dbg.guard().__enter__(),
    "prepare": lambda o: o.dbg.prepare(None),
    "name": lambda o: o.dbg.name("late", o),
    "check": lambda o: o.dbg.check(),
    "locate": lambda o: o.dbg.locate(),
    "pause": lambda o: o.dbg.pause(),
    "resume": lambda o: o.dbg.resume(),
}


@pytest.mark.parametrize(("what", "error", "use", "said"), WRONG, ids=[what for what, *_ in WRONG])
def test_wrong_use_is_one_line(
    what: str, error: type[ShadowgraphError], use: Use, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with sg.debug() as debugger:
        held = Objects(debugger)
        with pytest.raises(error) as caught:
            use(held)
        held.graph.replay()
        facts = debugger.facts()
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert (facts.faults, facts.findings, list(tmp_path.iterdir())) == ({}, (), [])


@pytest.mark.parametrize("method", AFTER_THE_END)
def test_after_the_end_each_method_says_that_nothing_watches(method: str) -> None:
    with sg.debug() as debugger:
        held = Objects(debugger)
    with pytest.raises(sg.UsageError) as caught:
        AFTER_THE_END[method](held)
    assert str(caught.value).startswith(
        f"{method}() does nothing: this debugger does not watch; call it inside its with"
    )


def test_what_was_found_stays_readable_after_the_end(tmp_path: Path) -> None:
    with sg.debug() as debugger:
        held = Objects(debugger)
    assert debugger.graph(held.graph) is held.graph.model
    assert (debugger.findings, debugger.notes) == ((), ())
    debugger.report(io.StringIO())
    assert debugger.dump(tmp_path / "late.dump").exists()
    debugger.stop()


def test_a_child_goes_on_with_the_debugger_of_its_parent() -> None:
    with sg.debug() as debugger:
        debugger.abandon()
        with debugger.guard():
            table = torch.zeros(4)
        debugger.protect(table)  # none of it is refused as use after the end
        assert sg.current() is debugger
        assert (table.tolist(), debugger.findings) == ([0.0] * 4, ())


def test_a_debug_block_starts_a_debugger_at_each_entry() -> None:
    block = sg.debug(near_guard=64)
    with pytest.raises(AttributeError, match=r"has no 'guard'; the debugger has it, .* as dbg: dbg\.guard$"):
        block.guard()
    assert not hasattr(block, "nonsense")
    assert repr(block) == "<debug(near_guard=64): not entered>"
    with block as first:
        assert "entered>" in repr(block)
        with pytest.raises(sg.UsageError, match="active already"), block:
            pass
    with block as second:
        pass
    assert first is not second
    assert sg.current() is None


def test_debug_decorates_a_function() -> None:
    seen = []

    @sg.debug(sync=True)
    def run() -> None:
        seen.append(sg.current())

    run()
    run()
    assert all(isinstance(each, sg.Debugger) for each in seen)
    assert seen[0] is not seen[1]
    assert sg.current() is None


def test_the_second_capture_is_refused_as_torch_refuses_it_and_the_first_goes_on() -> None:
    graph, table = sg.HostGraph(), torch.zeros(4)
    with sg.host_graph(graph):
        out = table + 1
    with pytest.raises(sg.CaptureError, match="holds a capture already"), sg.host_graph(graph):
        pass
    table.fill_(3)
    graph.replay()
    assert out.tolist() == [4] * 4
    graph.reset()
    with sg.host_graph(graph):
        out = table + 2
    graph.replay()
    assert out.tolist() == [5] * 4


@pytest.mark.parametrize("value", [(lambda: None), object(), "text"])
def test_call_takes_a_function_and_tensors(value: Any) -> None:
    graph = sg.HostGraph()
    with sg.host_graph(graph):
        with pytest.raises(sg.UsageError, match="takes tuples of tensors"):
            graph.call(print, reads=(value,))
        with pytest.raises(sg.UsageError, match="takes a function first"):
            graph.call(3)  # type: ignore[arg-type]


def test_nan_is_no_nondecreasing_value() -> None:
    with sg.debug() as debugger:
        with debugger.guard():
            scale = torch.tensor([0.0, float("nan"), 2.0])
            fine = torch.tensor([0.0, 1.0, 2.0])
        debugger.invariant(scale, "nondecreasing")
        debugger.invariant(fine, "nondecreasing")
        (found,) = debugger.check()
    assert found.code == "SG109"
    assert "scale breaks nondecreasing: [1] = nan after [0] = 0.0" in found.message
