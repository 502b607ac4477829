"""Memory snapshots as torch's own functions read them."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch
from support.node_makers import Model
from torch.cuda import _memory_viz

import shadowgraph as sg
from shadowgraph.dumps.reader import read_dump
from shadowgraph.render.plots.memory_viz import memory_snapshot, save_memory_viz


def _snapshot(path: Path) -> tuple[Any, dict[str, tuple[int, int]], list[Any]]:
    with sg.debug() as debugger:
        model = Model(debugger)
        with debugger.guard():
            gone = torch.zeros(100)
        address = gone.data_ptr()
        del gone
        with read_dump(debugger.dump(path / "run.dump")) as dump:
            written = save_memory_viz(dump, path / "out.pickle")
            assert memory_snapshot(dump) == memory_snapshot(debugger)
            known = list(dump.buffers)
        places = {name: (t.data_ptr(), t.nbytes) for name, t in vars(model).items() if isinstance(t, torch.Tensor)}
        del model
    places["gone"] = address, 400
    return pickle.loads(written.read_bytes()), places, known


def test_segments_and_blocks_are_the_ledgers(tmp_path: Path) -> None:
    data, places, known = _snapshot(tmp_path)
    active = {}
    for segment in data["segments"]:
        at = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == at, "blocks follow one another"
            at += block["size"]
            if block["state"] == "active_allocated":
                active[block["address"]] = block
        assert at == segment["address"] + segment["total_size"]
    assert set(active) == {buffer.start for buffer in known if buffer.nbytes}
    for name in ("table", "indptr", "weights", "output"):
        address, nbytes = places[name]
        block = active[address]
        assert block["requested_size"] == nbytes
        assert block["size"] > nbytes, "its guard is behind it"
        assert f"model.{name}" in block["frames"][0]["name"]
        assert block["frames"][1]["filename"].endswith(".py")
    assert places["gone"][0] not in active


def test_the_trace_has_allocations_and_frees_in_order(tmp_path: Path) -> None:
    data, places, _ = _snapshot(tmp_path)
    (trace,) = data["device_traces"]
    gone = [entry["action"] for entry in trace if (entry["addr"], entry["size"]) == places["gone"]]
    gone = gone[-3:]  # freed buffers of tests before this one are remembered too
    assert gone == ["alloc", "free_requested", "free_completed"]
    names = [entry["frames"][0]["name"] for entry in trace]
    first, second = (next(i for i, n in enumerate(names) if f"model.{name} " in n) for name in ("table", "output"))
    assert first < second


def test_torchs_own_functions_take_it(tmp_path: Path) -> None:
    data, _, known = _snapshot(tmp_path)
    summary = _memory_viz.segsum(data)  # checks its own sums
    assert f"segments: {len(data['segments'])}\n" in summary
    total = sum(buffer.nbytes for buffer in known)
    assert f"total_allocated: {_memory_viz.Bytes(total)}\n" in summary
    assert f"{len(data['device_traces'][0])} entries" in _memory_viz.trace(data)
    lines = _memory_viz.memory(data, format_flamegraph=lambda text: text)
    assert "model.weights" in lines
    for page in (_memory_viz.trace_plot(data), _memory_viz.segment_plot(data)):
        assert "snapshot.pickle" in page
    assert _memory_viz.segments(data, format_flamegraph=lambda text: text).count("active_allocated") >= 4
