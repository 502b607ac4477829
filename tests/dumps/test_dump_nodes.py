"""Device nodes in dumps: the same again, little room, nothing that a made-up file could do with them."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from dump_makers import DAMAGED, Capture, Server, parts_of, refused, with_manifest, with_manifest_text
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.finding_samples import altered
from support.node_makers import UNTRACKED, Model, cuda_nodes, dump_of_nodes

import shadowgraph as sg
from shadowgraph.checks.stale_rows.facts import StaleRowsDetail, StaleStretch
from shadowgraph.commands.main import main
from shadowgraph.common.errors import DumpError
from shadowgraph.common.internal_errors import internal_errors
from shadowgraph.dumps.reader import read_dump
from shadowgraph.dumps.redaction import redacted
from shadowgraph.dumps.schema import DEPTH
from shadowgraph.model.device_nodes import DeviceNode, NodeKind, Word
from shadowgraph.model.findings import Argument
from shadowgraph.model.ranges import ByteRange


@pytest.fixture(scope="session")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A dump with device nodes of every sort."""
    return dump_of_nodes(tmp_path_factory.mktemp("nodes") / "run.safetensors").read_bytes()


# -- there and back ----------------------------------------------------------------------------------------------------


def test_the_same_nodes_come_back(tmp_path: Path) -> None:
    with sg.debug() as debugger:
        model = Model(debugger)
        made = cuda_nodes(model)
        (graph,) = debugger.graphs
        graph.build_device_later(lambda: made)
        path = debugger.dump(tmp_path / "run.safetensors")
        serials = {buffer.start: buffer.serial for buffer in debugger.buffers}
    with read_dump(path) as dump:
        (again,) = dump.graphs
        assert again.device_nodes == made
        assert again.unread == ""
        launches = [again.launch_of(node) for node in again.device_nodes]
        assert [launch and launch.name for launch in launches[:3]] == [None, "aten.mul.Tensor", "aten.mul.Tensor"]
        rows = parts_of(path.read_bytes())[1]["graphs"][0]["device"]
        words = [tuple(word[5:]) for word in rows[1][WORDS]]
        output = serials[model.output.data_ptr()]
        assert words == [(serials[model.table.data_ptr()], 0), (output, 16), (None, 0)]
        assert made[1].words[2].address == UNTRACKED
        (copied,) = rows[3][READS]
        assert copied[1:] == [16, serials[model.table.data_ptr()], 8]


def test_on_the_host_nothing_is_kept_twice(tmp_path: Path) -> None:
    with sg.debug() as debugger:
        server = Server(debugger)
        server.step()
        (graph,) = debugger.graphs
        path = debugger.dump(tmp_path / "run.safetensors")
        with read_dump(path) as dump:
            assert dump.manifest.graphs[0].device is None
            assert len(graph.device_nodes) == 2
            assert dump.graphs[0].device_nodes == graph.device_nodes


def test_nodes_that_cannot_be_read_cost_the_dump_nothing(tmp_path: Path) -> None:
    def broken() -> tuple[DeviceNode, ...]:
        raise RuntimeError("CUDA error: context is destroyed\nmore of it")

    with sg.debug() as debugger:
        model = Model(debugger)
        (graph,) = debugger.graphs
        before = sum(internal_errors.counts.values())
        graph.build_device_later(broken)
        path = debugger.dump(tmp_path / "one.safetensors")
        assert sum(internal_errors.counts.values()) == before + 1
        graph.unread = "nobody asked in time"
        second = debugger.dump(tmp_path / "two.safetensors")
        del model
    with read_dump(path) as dump, read_dump(second) as later:
        assert dump.graphs[0].unread == "RuntimeError: CUDA error: context is destroyed"
        assert later.graphs[0].unread == "nobody asked in time"
        assert [node.name for node in dump.graphs[0].device_nodes] == ["aten.mul.Tensor", "aten.add_.Tensor"]


def chain(model: Model, count: int) -> tuple[DeviceNode, ...]:
    """A long graph: four words a node, twenty different kernels."""
    at = model.weights.data_ptr()
    return tuple(
        DeviceNode(
            *(i, NodeKind.KERNEL, f"void at::native::kernel_{i % 20}<{'int, ' * 40}int>(int*)", (i, 1, 1), (128, 1, 1)),
            words=tuple(Word(k, 8 * k, "", at + 64 * k) for k in range(4)),
            launch=i % 2,
            after=(i - 1,) if i else (),
        )
        for i in range(count)
    )


def test_many_nodes_stay_small(tmp_path: Path) -> None:
    with sg.debug() as debugger:
        model = Model(debugger)
        made = chain(model, 10_000)
        plain = debugger.dump(tmp_path / "before.safetensors")
        before = len(parts_of(plain.read_bytes())[1]["strings"])
        debugger.graphs[0].build_device_later(lambda: made)
        path = debugger.dump(tmp_path / "run.safetensors")
    assert path.stat().st_size - plain.stat().st_size < 300 * 10_000
    with read_dump(path) as dump:
        assert dump.graphs[0].device_nodes == made
    assert len(parts_of(path.read_bytes())[1]["strings"]) - before < 50


def test_a_bound_costs_device_nodes_before_launches(tmp_path: Path) -> None:
    with sg.debug() as debugger:
        model = Model(debugger)
        made = chain(model, 2_000)
        debugger.graphs[0].build_device_later(lambda: made)
        path = debugger.dump(tmp_path / "run.safetensors", limit=256 << 10)
    assert path.stat().st_size <= 256 << 10
    with read_dump(path) as dump:
        assert {left.what: left.count for left in dump.manifest.left_out}["device nodes of graphs"] == 2_000
        assert len(dump.graphs[0].nodes) == 2
        assert dump.graphs[0].device_nodes == ()
        assert dump.graphs[0].unread == "left out of the dump for size"


def test_child_graphs_too_deep_are_named_and_left_out(tmp_path: Path) -> None:
    node = DeviceNode(0, NodeKind.EMPTY, "the last")
    for _ in range(DEPTH + 3):
        node = DeviceNode(0, NodeKind.CHILD, "1 node", inner=(node,))
    with sg.debug() as debugger:
        model = Model(debugger)
        debugger.graphs[0].build_device_later(lambda: (node,))
        path = debugger.dump(tmp_path / "run.safetensors")
        del model
    with read_dump(path) as dump:
        (at,) = dump.graphs[0].device_nodes
        depth = 0
        while at.inner:
            (at,), depth = at.inner, depth + 1
        assert depth == DEPTH
        assert "too deep inside other graphs" in at.note


def test_edges_need_not_follow_the_order_of_creation(tmp_path: Path) -> None:
    """A graph that was put together by hand may wait for nodes that were made later."""
    made = tuple(DeviceNode(i, NodeKind.EMPTY, "empty", after=after) for i, after in enumerate([(2,), (0, 2), ()]))
    with sg.debug() as debugger:
        model = Model(debugger)
        debugger.graphs[0].build_device_later(lambda: made)
        path = debugger.dump(tmp_path / "run.safetensors")
        del model
    with read_dump(path) as dump:
        assert dump.graphs[0].device_nodes == made


def test_redacted_nodes_say_no_values(tmp_path: Path) -> None:
    with sg.debug() as debugger:
        model = Model(debugger)
        made = cuda_nodes(model)
        nested = replace(made[4], inner=(replace(made[0], index=0),))
        debugger.graphs[0].build_device_later(lambda: (*made[:4], nested, *made[5:]))
        plain = debugger.dump(tmp_path / "plain.safetensors")
        path = debugger.dump(tmp_path / "redacted.safetensors", redact=True)
    assert b"memset to 0x7f" in plain.read_bytes()
    assert b"0x7f" not in path.read_bytes()
    with read_dump(path) as dump:
        nodes = dump.graphs[0].device_nodes
        assert (nodes[0].name, nodes[0].writes) == ("memset", made[0].writes)
        assert nodes[4].inner[0].name == "memset"
        assert nodes[1] == made[1]


def test_redacted_culprits_say_no_keys_and_no_values() -> None:
    secret = Argument(0, 0, "self", 0x1000, "cache[15043].value", 4)
    finding = altered(
        culprit__arguments=(secret,),
        culprit__led_by=secret,
        culprit__kernel="memset to 0x7f",
        culprit__name="memset to 0",
    )
    finding = altered(culprit=finding.culprit, candidates=(finding.culprit,))
    for culprit in (redacted(finding).culprit, *redacted(finding).candidates):
        assert culprit.led_by == culprit.arguments[0] == Argument(0, 0, "self", 0x1000, "cache[...].value", 4)
        assert (culprit.kernel, culprit.name) == ("memset", "memset")


def test_redacted_stale_rows_say_no_keys() -> None:
    rows = (StaleStretch(1, 3, "graph#1", 6),)
    finding = altered(code="SG103", detail=StaleRowsDetail(4, rows, ((0, 0),), ("cache[15043].lens", "batch.slots")))
    assert redacted(finding).detail == StaleRowsDetail(4, rows, ((0, 0),), ("cache[...].lens", "batch.slots"))


# -- what somebody made up ---------------------------------------------------------------------------------------------

KIND, NAME, GRID, BLOCK, WORDS, READS, WRITES, LAUNCH, STACK, AFTER, INNER, NOTE = range(12)
Rows = list[list[Any]]


def _deep(count: int) -> list[Any]:
    row = ["empty", 0]
    for _ in range(count):
        row = ["child graph", 0, None, None, [], [], [], None, None, [], [row], None]
    return row


HOSTILE: dict[str, Callable[[Rows], object]] = {
    "a name that is not there": lambda rows: rows[0].__setitem__(NAME, 10**6),
    "a negative name": lambda rows: rows[0].__setitem__(NAME, -1),
    "a note that is not there": lambda rows: rows[0].__setitem__(NOTE, 10**6),
    "a word's name that is not there": lambda rows: rows[1][WORDS][0].__setitem__(2, 10**6),
    "a launch that is not there": lambda rows: rows[0].__setitem__(LAUNCH, 2),
    "a negative launch": lambda rows: rows[0].__setitem__(LAUNCH, -1),
    "a stack that is not there": lambda rows: rows[0].__setitem__(STACK, 10**6),
    "a node that waits for itself": lambda rows: rows[3].__setitem__(AFTER, [3]),
    "two nodes that wait for one another": lambda rows: (rows[1].__setitem__(AFTER, [2]),),
    "a circle of all": lambda rows: rows[0].__setitem__(AFTER, [len(rows) - 1]),
    "a node that is not there to wait for": lambda rows: rows[0].__setitem__(AFTER, [len(rows)]),
    "a negative node to wait for": lambda rows: rows[1].__setitem__(AFTER, [-1]),
    "a child's node that is outside": lambda rows: rows[4][INNER][1].__setitem__(AFTER, [5]),
    "a child's circle": lambda rows: rows[4][INNER][0].__setitem__(AFTER, [1]),
    "a child's launch that is not there": lambda rows: rows[4][INNER][1].__setitem__(LAUNCH, 2),
    "a grid of five axes": lambda rows: rows[1].__setitem__(GRID, [1] * 5),
    "a grid of a million axes": lambda rows: rows[1].__setitem__(GRID, [1] * 10**6),
    "a huge grid": lambda rows: rows[1].__setitem__(GRID, [1 << 70, 1, 1]),
    "a negative block": lambda rows: rows[1].__setitem__(BLOCK, [-1, 1, 1]),
    "an address beyond memory": lambda rows: rows[1][WORDS][0].__setitem__(3, 1 << 64),
    "an address of a thousand digits": lambda rows: rows[1][WORDS][0].__setitem__(3, 10**1000),
    "a negative address": lambda rows: rows[1][WORDS][0].__setitem__(3, -8),
    "a negative argument": lambda rows: rows[1][WORDS][0].__setitem__(0, -1),
    "a negative offset in an argument": lambda rows: rows[1][WORDS][0].__setitem__(1, -8),
    "a huge argument": lambda rows: rows[1][WORDS][0].__setitem__(0, 1 << 65),
    "an offset far away": lambda rows: rows[1][WORDS][0].__setitem__(6, -(1 << 65)),
    "a sureness that is none": lambda rows: rows[1][WORDS][0].__setitem__(4, "certain"),
    "a kind that is none": lambda rows: rows[1].__setitem__(KIND, "shader"),
    "a copy of negative size": lambda rows: rows[3][READS][0].__setitem__(1, -1),
    "a copy beyond memory": lambda rows: rows[3][READS][0].__setitem__(1, 1 << 64),
    "a copy from before memory": lambda rows: rows[3][WRITES][0].__setitem__(0, -1),
    "child graphs deeper than any": lambda rows: rows.append(_deep(DEPTH + 1)),
    "a node that is null": lambda rows: rows.append(None),  # type: ignore[arg-type]
    "a node that is a number": lambda rows: rows.append(7),  # type: ignore[arg-type]
    "words that are a number": lambda rows: rows[1].__setitem__(WORDS, 1 << 40),
}


def spoilt(data: bytes, change: Callable[[Rows], object], form: str | None = None) -> bytes:
    """A dump with other nodes; of another `form`, so that nothing but their sense is looked at."""

    def spoil(manifest: dict[str, Any]) -> None:
        manifest["form"] = manifest["form"] if form is None else form
        change(manifest["graphs"][0]["device"])

    return with_manifest(data, spoil)


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE.keys())
def test_made_up_nodes(nodes: bytes, change: Callable[[Rows], object], tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "made-up.safetensors"
    if change is HOSTILE["two nodes that wait for one another"]:
        assert parts_of(nodes)[1]["graphs"][0]["device"][2][AFTER] == [1]
    said = refused(path, spoilt(nodes, change, form=""), capsys, DAMAGED)
    assert "is damaged: its manifest makes no sense" in said
    assert main(["nodes", str(path)]) == DAMAGED
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", said)


def test_child_graphs_without_end(nodes: bytes, tmp_path: Path, capsys: Capture) -> None:
    row = b'["child graph",0,null,null,[],[],[],null,null,[],['
    deep = row * 50_000 + b"]]" * 50_000

    def change(text: bytes) -> bytes:
        assert b'"device":[' in text
        return text.replace(b'"device":[', b'"device":[' + deep + b",", 1)

    refused(tmp_path / "deep.safetensors", with_manifest_text(nodes, change), capsys, DAMAGED)


def test_a_maker_of_hostile_nodes_makes_good_ones_too(nodes: bytes, tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    assert spoilt(nodes, lambda rows: None) == nodes
    good: dict[str, Callable[[Rows], object]] = {
        "deep": lambda rows: rows.append([*_deep(DEPTH)]),
        "launch": lambda rows: rows[0].__setitem__(LAUNCH, 1),
        "grid": lambda rows: rows[1].__setitem__(GRID, [1, 1]),
        "address": lambda rows: rows[1][WORDS][0].__setitem__(3, (1 << 64) - 1),
        "edge": lambda rows: rows[0].__setitem__(AFTER, []),
    }
    for change in good.values():
        path.write_bytes(spoilt(nodes, change, form=""))
        with read_dump(path) as dump:
            assert len(dump.graphs[0].device_nodes) in (8, 9)


def test_an_older_dump_has_launches_alone(nodes: bytes, tmp_path: Path) -> None:
    def older(manifest: dict[str, Any]) -> None:
        manifest["form"] = "0123456789ab"
        for graph in manifest["graphs"]:
            del graph["device"], graph["unread"]

    path = tmp_path / "run.safetensors"
    path.write_bytes(with_manifest(nodes, older))
    with read_dump(path) as dump:
        assert [node.launch for node in dump.graphs[0].device_nodes] == [0, 1]
        assert dump.graphs[0].unread == ""


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


@pytest.mark.fuzz
@given(choices=st.lists(st.integers(0, 10**6), min_size=5, max_size=5), value=values, inside=st.booleans())
def test_random_values_among_the_nodes(
    choices: list[int], value: object, inside: bool, tmp_path_factory: pytest.TempPathFactory, nodes: bytes
) -> None:
    def change(manifest: dict[str, Any]) -> None:
        manifest["form"] = ""
        at: Any = manifest["graphs"][0] if inside else manifest
        for choice in choices:
            keys = list(at) if isinstance(at, dict) else list(range(len(at)))
            if not keys:
                return
            key = keys[choice % len(keys)]
            if not isinstance(at[key], (dict, list)) or choice % 5 == 0:
                at[key] = value
                return
            at = at[key]

    path = tmp_path_factory.getbasetemp() / "nodes-fuzz"
    path.write_bytes(with_manifest(nodes, change))
    for words in ([], ["--json"], ["--buffer", "table"], ["--line", "model.py"]):
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = main(["nodes", str(path), *words])
        assert code in (0, 2, 9, DAMAGED), err.getvalue()
        assert err.getvalue().count("\n") == (code > 0)
        assert bool(out.getvalue()) == (code == 0)


def test_ranges_of_made_up_nodes_can_be_made(nodes: bytes, tmp_path: Path) -> None:
    """What the reader lets through makes nodes without an error."""
    path = tmp_path / "run.safetensors"
    path.write_bytes(spoilt(nodes, lambda rows: rows[3][READS][0].__setitem__(1, 0)))
    with read_dump(path) as dump:
        assert dump.graphs[0].device_nodes[3].reads[0].nbytes == 0
        assert isinstance(dump.graphs[0].device_nodes[3].writes[0], ByteRange)
    path.write_bytes(nodes[:-1])
    with pytest.raises(DumpError):
        read_dump(path)
