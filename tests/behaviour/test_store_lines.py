"""The line of the kernel's store that hit the bytes of a finding, on the host."""

from __future__ import annotations

import ctypes
import inspect
import json
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

import shadowgraph as sg
from shadowgraph.dumps.redaction import redacted
from shadowgraph.model.findings import Finding
from shadowgraph.render.html.cards import card_of
from shadowgraph.tracking import stores


@triton.jit
def running_sums(x, out, totals, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    pid = tl.program_id(0)
    at = pid * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n, other=0.0)
    tl.store(totals + pid, tl.sum(v, 0))
    tl.store(out + at, tl.cumsum(v, 0))  # past the end


@triton.jit
def put(to, value, mask):  # type: ignore[no-untyped-def]
    tl.store(to, value, mask=mask)  # of the helper


@triton.jit
def fill_by_helper(out, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    put(out + at, 1.0, at < n)


@triton.jit
def count(out, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out + at, 1.0, mask=at < n)  # atomically


def line_of(text: str) -> int:
    (found,) = [at for at, line in enumerate(LINES, 1) if line.endswith(text)]
    return found


LINES = inspect.getsource(inspect.getmodule(line_of)).splitlines()  # type: ignore[arg-type]


def found_by(kernel: Any, n: int, *inputs: int) -> list[Finding]:
    with sg.debug() as debugger:
        with debugger.guard():
            given = [torch.zeros(size) for size in inputs]
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            kernel[(4,)](*given, n, BLOCK=32)
        graph.replay()
    return list(debugger.findings)


@pytest.mark.parametrize(
    ("kernel", "n", "inputs", "text", "program"),
    [
        (running_sums, 100, (100, 100, 4), "# past the end", (3, 0, 0)),
        (fill_by_helper, 70, (60,), "# of the helper", (1, 0, 0)),
        (count, 70, (60,), "# atomically", (1, 0, 0)),
    ],
    ids=["store", "helper", "atomic"],
)
def test_the_store_past_the_end_is_named(
    kernel: Any, n: int, inputs: tuple[int, ...], text: str, program: tuple[int, int, int]
) -> None:
    (finding,) = found_by(kernel, n, *inputs)
    store = finding.culprit.stored_by
    assert finding.code == "SG101"
    assert store is not None
    assert (store.program, store.line.file, store.line.line) == (program, __file__, line_of(text))
    assert text in store.text
    groups = {group.label: group.lines for group in card_of(finding).facts}
    said, shown = groups["stored by"]
    assert said.startswith(f"program {program} at ")
    assert said.endswith(f"test_store_lines.py:{line_of(text)}")
    assert shown.strip() == store.text
    assert json.loads(json.dumps(finding.to_dict()))["culprit"]["stored_by"]["line"]["line"] == line_of(text)


def test_stores_that_fit_are_no_finding() -> None:
    assert found_by(running_sums, 128, 128, 128, 4) == []


def test_redaction_leaves_the_text_out_and_the_place_in() -> None:
    (finding,) = found_by(count, 70, 60)
    store, hidden = finding.culprit.stored_by, redacted(finding).culprit.stored_by
    assert store is not None
    assert hidden is not None
    assert (hidden.program, hidden.line, hidden.text) == (store.program, store.line, "")


def test_a_log_without_room_tells_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores.SHARED, "limit", 0)
    (finding,) = found_by(count, 70, 60)
    assert finding.culprit.name == "count"
    assert finding.culprit.stored_by is None


def test_an_operator_has_no_line_of_a_store() -> None:
    with sg.debug() as debugger:
        with debugger.guard():
            out = torch.zeros(16)
        graph = sg.HostGraph()

        def overflow(victim: torch.Tensor) -> None:
            (ctypes.c_float * 18).from_address(victim.data_ptr())[:] = [7.0] * 18

        with sg.host_graph(graph):
            graph.call(overflow, out, writes=(out,))
        graph.replay()
    (finding,) = debugger.findings
    assert finding.culprit.stored_by is None
