"""Names of the memory of nodes: the tensor that was there at the capture, not the newest one at the address."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from dump_makers import Capture, guarded
from msgspec.structs import replace as replace_fields

import shadowgraph as sg
from shadowgraph.commands.main import main
from shadowgraph.dumps.naming import BufferNames
from shadowgraph.dumps.node_memory import NodeMemory
from shadowgraph.dumps.reader import read_dump
from shadowgraph.dumps.schema import Manifest
from shadowgraph.render.html.tables import launch_rows
from shadowgraph.views.write_map import WriteMap


class Reusing:
    """A graph that frees the result of its first node, and gets smaller tensors in the same memory."""

    def __init__(self, debugger: sg.Debugger) -> None:
        self.table = guarded(debugger, 4, 12)
        self.weights = guarded(debugger, 64, 8, dtype=torch.float32)
        debugger.name("model", self)
        self.graph = sg.HostGraph()
        with sg.host_graph(self.graph):
            summed = self.weights[self.table.long()].sum((1, 2))
            self.output = (summed + 1) % 1000


class Known:
    """A manifest with the buffers as names need them."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest, self.buffers, self.freed = manifest, manifest.buffers, manifest.freed


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with sg.debug(layout="faithful") as debugger:
        model = Reusing(debugger)
        model.graph.replay()
        return debugger.dump(tmp_path_factory.mktemp("reuse") / "run.safetensors")


def forms(capsys: Capture, path: Path, *words: str) -> list[dict[str, str]]:
    """Of each node the buffer of each argument, without the place that made it."""
    assert main(["nodes", str(path), "--json", *words]) == 0
    (graph,) = json.loads(capsys.readouterr().out)["graphs"]
    return [{each["name"]: each["buffer"].split(" from ")[0] for each in node["arguments"]} for node in graph["nodes"]]


def test_the_memory_was_reused(dump: Path) -> None:
    """Else the other tests could not fail."""
    with read_dump(dump) as read:
        (graph,) = read.graphs
        result = graph.nodes[0].launch.pointers[-1].view.address
        newest = read.names.buffer_at(result)
        assert newest is not None
        assert newest.dtype == "float32"


def test_nodes_have_the_tensors_of_their_capture(dump: Path, capsys: Capture) -> None:
    nodes = forms(capsys, dump)
    assert nodes[0] == {"self": "model.table", "result": "int64[4, 12]"}
    assert nodes[1] == {"self": "model.weights", "indices[0]": "int64[4, 12]", "result": "float32[4, 12, 8]"}
    assert nodes[2]["result"] == nodes[3]["self"] == "float32[4]"
    assert nodes[-1]["result"] == "model.output"


def test_a_filter_by_name_keeps_the_nodes_of_that_tensor(dump: Path, capsys: Capture) -> None:
    with read_dump(dump) as read:
        made = read.graphs[0].allocations[0].buffer
        assert made is not None
        name = read.names.name(made)
        address = read.graphs[0].nodes[0].launch.pointers[-1].view.address
    assert [node.get("result") for node in forms(capsys, dump, "--buffer", name)] == [
        "int64[4, 12]",
        "float32[4, 12, 8]",
    ]
    assert len(forms(capsys, dump, "--buffer", hex(address))) > 2  # every tensor that had the memory in turn


def test_the_map_of_writes_has_every_result(dump: Path) -> None:
    with read_dump(dump) as read:
        drawn = WriteMap.of(read)
    writers = {(each.node, drawn.memory.buffers[each.buffer].dtype) for each in drawn.writes}
    assert (0, "int64") in writers
    assert {node for node, _ in writers} == {0, 1, 2, 3, 4}


def test_the_last_launches_of_a_page(dump: Path) -> None:
    with read_dump(dump) as read:
        rows, _ = launch_rows(read, read.names)
        first = next(row for row in rows if row.node == "graph#1 node 0" or row.node.endswith(" node 0"))
    assert "result: int64[4, 12] from " in first.given


def test_memory_that_the_program_reused_after_the_capture(dump: Path) -> None:
    """A buffer that was allocated after the capture, or freed before it, is not what a node was given."""
    with read_dump(dump) as read:
        (graph,) = read.graphs
        address = graph.nodes[0].launch.pointers[0].view.address
        (given,) = (each for each in read.buffers if each.start == address)
    began = graph.allocations[0].serial
    assert given.serial < began < graph.ended
    manifest = replace_fields(
        read.manifest,
        buffers=(*(b for b in read.buffers if b is not given), replace_fields(given, serial=graph.ended + 2)),
        freed=(
            *read.freed,
            replace_fields(given, dtype="early", freed_at=began - 1),
            replace_fields(given, dtype="given", freed_at=graph.ended + 1),
        ),
    )
    book = BufferNames(Known(manifest))
    newest, node = book.buffer_at(address), NodeMemory(book, graph).buffer_at(0, address)
    assert newest is not None
    assert newest.serial == graph.ended + 2
    assert node is not None
    assert node.dtype == "given"


def test_allocations_without_entries_in_the_ledger(dump: Path) -> None:
    """As of a capture on CUDA, where one buffer stands for all tensors of a block."""
    with read_dump(dump) as read:
        (graph,) = read.graphs
        without = [replace(each, buffer=None) for each in graph.allocations]
        graph.build_allocations_later(lambda: without)
        memory = NodeMemory(read.names, graph)
        names = [memory.at(index, graph.nodes[index].launch.pointers[-1].view.address) for index in (0, 2, 4)]
    said = [name[0] if name is not None else "" for name in names]
    assert said[0].startswith("int64[4, 12] from test_node_memory.py:")
    assert said[1].startswith("float32[4] from test_node_memory.py:")
    assert names[2] == ("model.output", 0)


def test_a_dump_without_the_field_names_the_newest(dump: Path) -> None:
    """Dumps of an earlier version have no allocations."""
    with read_dump(dump) as read:
        (graph,) = read.graphs
        graph.build_allocations_later(list)
        graph.ended = 0
        address = graph.nodes[0].launch.pointers[-1].view.address
        assert NodeMemory(read.names, graph).at(0, address) == read.names.at(address)
