"""SG108 with nothing declared: a name from which a captured function took its input leads to other memory since."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch
from captures import graph_over
from playing import played
from programs import guarded, only

import shadowgraph as sg
from shadowgraph.demos import a10_fresh_input
from shadowgraph.demos.device import HostDevice
from shadowgraph.dumps.redaction import redacted

SLOTS = torch.arange(64.0)


class Owner:
    """Whatever holds a tensor."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


def numbers(step: int, rows: int = 4) -> torch.Tensor:
    return torch.arange(rows) * (step + 1) + step


def zeros(rows: int = 4) -> torch.Tensor:
    return torch.zeros(rows, dtype=torch.int64)


class Attention:
    """A page table whose static memory lives on, and an attribute that a captured function takes it from."""

    def __init__(self, debugger: sg.Debugger) -> None:
        self.static_table = guarded(debugger, 4, 4, dtype=torch.int64)
        self.metadata = Owner(page_table=self.static_table[:3])
        self.graph = sg.HostGraph()

    def capture(self) -> None:
        with sg.host_graph(self.graph):
            self.out = self.attend(self.metadata)

    def attend(self, metadata: Any) -> torch.Tensor:
        return SLOTS[metadata.page_table].sum(1)

    def build(self, step: int) -> torch.Tensor:
        return torch.arange(12).view(3, 4) + step


@pytest.mark.parametrize("layout", ["isolate", "faithful"])
def test_a_table_that_is_built_anew_in_each_step(layout: str) -> None:
    """The shape of sglang 26019."""
    with sg.debug(layout=layout) as debugger:
        attention = Attention(debugger)
        debugger.name("attention", attention)
        attention.capture()
        for step in range(1, 4):
            with debugger.prepare(attention.graph):
                attention.metadata.page_table = attention.build(step)
            attention.graph.replay()
        assert attention.out.tolist() == [0, 0, 0], "invalid: the graph did not read old slots"
        found: Any = only(debugger.findings)
    assert (found.code, found.severity, found.phase, found.replay) == ("SG108", "error", "prepare", 2)
    assert (found.graph, found.occurrences, found.confidence) == (attention.graph.model.name, 2, "medium")
    assert (found.buffer.name, found.buffer.nbytes) == ("attention.static_table", 96)
    assert (found.bytes.first, found.bytes.last, found.bytes.count) == (0, 95, 96)
    assert (found.culprit.name, found.culprit.status) == ("aten.add.Tensor", "candidate")
    assert (found.culprit.stack[0].function, found.reader.name) == ("build", "aten.index.Tensor")
    detail = found.detail
    assert (detail.attribute, detail.moved) == ("attention.metadata.page_table", True)
    assert (detail.evidence, detail.refreshes, detail.planned) == ("name", 2, False)
    assert (detail.now.shape, detail.now.dtype) == ((3, 4), "int64")
    assert "page_table leads to other memory since" in found.message
    assert redacted(found).window is None


@pytest.mark.parametrize("layout", ["isolate", "faithful"])
def test_its_fixed_twin_copies_onto_the_captured_memory(layout: str) -> None:
    with sg.debug(layout=layout) as debugger:
        attention = Attention(debugger)
        attention.capture()
        for step in range(1, 4):
            attention.metadata.page_table.copy_(attention.build(step))
            attention.graph.replay()
        assert attention.out.tolist() != [0, 0, 0], "invalid: nothing was refreshed"
        assert debugger.findings == ()


class _Undeclared:
    """A debugger that is told of no attribute."""

    def __init__(self, debugger: sg.Debugger) -> None:
        self._debugger = debugger

    def __getattr__(self, name: str) -> Any:
        return getattr(self._debugger, name)

    def refreshes(self, *_: object) -> None: ...


@pytest.mark.parametrize("fixed", [False, True])
def test_an_input_that_an_eager_operator_returns_anew(fixed: bool) -> None:
    """vLLM 53915, as in the acceptance cases."""
    with sg.debug() as debugger:
        seen = a10_fresh_input.program(HostDevice(), _Undeclared(debugger), fixed, 0)
        assert seen == ([0, 2, 4] if fixed else [0, 0, 0]), "invalid: the inputs are not what they should be"
        if fixed:
            assert debugger.findings == ()
            return
        found: Any = only(debugger.findings)
    assert (found.code, found.replay, found.buffer.name) == ("SG108", 3, "runner.kept")
    assert (found.culprit.name, found.culprit.stack[0].function) == ("aten.add.out", "embed")
    assert (found.detail.attribute, found.detail.evidence) == ("runner.inputs", "name")


# -- ways to hold a tensor --------------------------------------------------------------------------------------------

Step = Callable[[int], None]
Made = tuple[sg.HostGraph, Step, list[torch.Tensor]]
Meta = namedtuple("Meta", "ids lens")


class Slotted:
    __slots__ = ("__weakref__", "ids")


def in_a_dict() -> Made:
    owner = Owner(buffers={"ids": zeros()})
    kept = [owner.buffers["ids"]]

    def step(number: int) -> None:
        owner.buffers["ids"] = numbers(number)

    return graph_over(lambda: SLOTS[owner.buffers["ids"]]), step, kept


def in_a_dict_that_is_passed_on() -> Made:
    owner = Owner(buffers={"ids": zeros()})
    kept = [owner.buffers["ids"]]

    def forward(ids: torch.Tensor) -> torch.Tensor:
        return SLOTS[ids]

    def step(number: int) -> None:
        owner.buffers["ids"] = numbers(number)

    return graph_over(lambda: forward(**owner.buffers)), step, kept


def in_a_new_object() -> Made:
    owner = Owner(meta=Owner(ids=zeros()))
    kept = [owner.meta.ids]

    def step(number: int) -> None:
        owner.meta = Owner(ids=numbers(number))

    return graph_over(lambda: SLOTS[owner.meta.ids]), step, kept


def in_a_named_tuple() -> Made:
    owner = Owner(meta=Meta(zeros(), zeros()))
    kept = list(owner.meta)

    def step(number: int) -> None:
        owner.meta = Meta(numbers(number), kept[1])

    return graph_over(lambda: SLOTS[owner.meta.ids + owner.meta.lens]), step, kept


def in_a_slot() -> Made:
    meta = Slotted()
    meta.ids = zeros()
    kept = [meta.ids]

    def step(number: int) -> None:
        meta.ids = numbers(number)

    return graph_over(lambda: SLOTS[meta.ids]), step, kept


def in_a_module() -> Made:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("ids", zeros())

        def forward(self) -> torch.Tensor:
            return SLOTS[self.ids]

    model = Model()
    kept = [model.ids]

    def step(number: int) -> None:
        model.ids = numbers(number)

    return graph_over(model), step, kept


def of_fewer_rows() -> Made:
    owner = Owner(ids=zeros(8))
    kept = [owner.ids]

    def step(number: int) -> None:
        owner.ids = numbers(number, rows=3)

    return graph_over(lambda: SLOTS[owner.ids]), step, kept


@pytest.mark.parametrize(
    "make",
    [
        in_a_dict,
        in_a_dict_that_is_passed_on,
        in_a_new_object,
        in_a_named_tuple,
        in_a_slot,
        in_a_module,
        of_fewer_rows,
    ],
)
def test_an_input_held(make: Callable[[], Made]) -> None:
    with sg.debug() as debugger:
        graph, step, kept = make()
        before = kept[0].clone()
        for number in range(1, 4):
            step(number)
            graph.replay()
        assert torch.equal(kept[0], before), "invalid: the graph's memory was refreshed"
        found: Any = only(debugger.findings)
    assert (found.code, found.replay, found.detail.evidence) == ("SG108", 2, "name")
    assert found.detail.attribute.endswith(("ids", '["ids"]'))
    assert found.culprit.stack[0].function in ("numbers", "step")


def test_an_input_held_by_a_variable() -> None:
    with sg.debug() as debugger:
        x = zeros()
        kept = [x]
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            out = SLOTS[x]
        for step in range(1, 4):
            x = numbers(step)
            graph.replay()
        assert out.tolist() == [0, 0, 0, 0], "invalid: the graph read new values"
        found: Any = only(debugger.findings)
    assert (found.code, found.replay, found.detail.attribute) == ("SG108", 2, "x")
    assert not kept[0].any()


def test_a_name_that_is_rebound_only_after_some_right_steps() -> None:
    with sg.debug() as debugger:
        owner = Owner(ids=zeros())
        kept = owner.ids
        graph = graph_over(lambda: SLOTS[owner.ids])
        for step in range(1, 4):
            owner.ids.copy_(numbers(step))
            graph.replay()
        for step in range(4, 7):
            owner.ids = numbers(step)
            graph.replay()
        assert kept.tolist() == numbers(3).tolist(), "invalid: the graph's memory was refreshed"
        found: Any = only(debugger.findings)
    assert (found.replay, found.occurrences) == (5, 2)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
def test_what_is_copied_from_the_name_in_some_steps_only_is_a_note(dtype: torch.dtype, late: bool) -> None:
    with sg.debug() as debugger:
        owner = Owner(ids=zeros().to(dtype))
        kept = owner.ids
        graph = graph_over(lambda: owner.ids * 2)
        for step in range(1, 13):
            owner.ids = numbers(step).to(dtype)
            if step % 4 == (0 if late else 1):
                kept.copy_(owner.ids)
            graph.replay()
            if step == 3:
                early = [each.severity for each in (*debugger.findings, *debugger.notes)]
        found: Any = only(debugger.notes)
        assert not debugger.findings
    assert early == ["error"], "one copy is no habit"
    assert (found.code, found.detail.evidence, found.detail.lags) == ("SG108", "name", True)
    assert (found.replay, found.revision) == (2 if late else 3, 2)
    assert "lags behind" in found.message


def test_one_copy_before_the_name_alone_is_bound_stays_an_error() -> None:
    with sg.debug() as debugger:
        owner = Owner(ids=zeros())
        kept = owner.ids
        graph = graph_over(lambda: owner.ids * 2)
        for step in range(1, 9):
            owner.ids = numbers(step)
            if step == 1:
                kept.copy_(owner.ids)
            graph.replay()
        found: Any = only(debugger.findings)
    assert (found.code, found.detail.lags, found.occurrences) == ("SG108", False, 6)


def test_a_copy_from_elsewhere_is_no_lag() -> None:
    with sg.debug() as debugger:
        owner = Owner(ids=zeros())
        kept = owner.ids
        graph = graph_over(lambda: owner.ids * 2)
        kept.copy_(numbers(9))
        for step in range(1, 5):
            owner.ids = numbers(step)
            graph.replay()
        found: Any = only(debugger.findings)
    assert (found.code, found.detail.lags) == ("SG108", False)


def test_on_a_device_bytes_arrive_late(monkeypatch: pytest.MonkeyPatch) -> None:
    with played(monkeypatch) as debugger:
        owner = Owner(ids=guarded(debugger, 4, dtype=torch.int64))
        kept = owner.ids
        graph = graph_over(lambda: SLOTS[owner.ids])
        for step in range(1, 4):
            owner.ids = numbers(step)
            graph.replay()
        found: Any = only(debugger.check())
        assert not kept.any(), "invalid: the graph's memory was refreshed"
    assert (found.code, found.replay, found.confidence) == ("SG108", 2, "medium")
    assert found.detail.evidence == "name"
