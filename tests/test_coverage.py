from __future__ import annotations

import pytest

from shadowgraph.model.buffers import Buffer, Ledger, Role
from shadowgraph.model.coverage import (
    BufferClass,
    ClassCoverage,
    Coverage,
    CoverageLog,
    LargeGuards,
    added_classes,
)
from shadowgraph.model.graphs import Access, Graph, Launch, LaunchKind, Node, Pointer
from shadowgraph.model.stacks import Frame
from shadowgraph.model.views import TensorView
from shadowgraph.monitor.buffer_classes import classified
from shadowgraph.render.text.text import coverage_lines
from shadowgraph.wrap.folder.merging import coverage_of


def graph(serial: int, *pointers: tuple[int, int, Access]) -> Graph:
    """A graph with a node for each (start, bytes, access)."""
    nodes = []
    for index, (start, nbytes, access) in enumerate(pointers):
        view = TensorView(start, start, nbytes, (nbytes,), (1,), "uint8", 1, "cpu")
        nodes.append(Node(index, Launch(LaunchKind.ATEN, "aten.add", (Pointer("x", view, access),))))
    return Graph(serial, f"graph#{serial}", nodes)


def buffer(ledger: Ledger, start: int, nbytes: int, tail: int = 512, graph: int | None = None) -> Buffer:
    made = Buffer(ledger.next_serial(), start, nbytes, Role.STATIC, shape=(nbytes,), tail_guard=tail, graph=graph)
    return ledger.add(made)


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


def measured(ledger: Ledger, *graphs: Graph) -> Coverage:
    log = CoverageLog()
    for one in graphs:
        log.note(one, [b for b in ledger if b.guarded], ledger)
    return log.coverage(dropped=0)


def test_written_bytes_by_how_they_are_guarded(ledger: Ledger) -> None:
    buffer(ledger, 1000, 100)
    buffer(ledger, 2000, 300, tail=0)
    found = measured(ledger, graph(1, (1000, 100, Access.WRITE), (2000, 300, Access.READ_WRITE)))
    rows = (ClassCoverage("static inputs", 400, 100),)
    assert found == Coverage(written=400, exact=100, unguarded=("uint8[300]",), dropped=0, inputs=1, classes=rows)
    assert found.percent == 25


def test_a_guard_at_a_distance_counts_as_such(ledger: Ledger) -> None:
    kept_back = buffer(ledger, 1000, 100)
    kept_back.keep_back(12)
    behind = buffer(ledger, 2000, 300, tail=0)
    behind.gap = 212
    larger = buffer(ledger, 4000, 64)
    larger.inexact = 24  # it stands for a tenant of 40 bytes, too
    found = measured(ledger, graph(1, *((b.start, b.nbytes, Access.WRITE) for b in (kept_back, behind, larger))))
    assert (found.written, found.exact, found.inexact, found.inputs, found.unguarded) == (464, 0, 464, 0, ())
    assert found.gaps == (("uint8[300]", 212), ("uint8[64]", 24), ("uint8[100]", 12))
    assert "100 % guarded at a distance" in found.sentence()


def test_what_is_only_read_does_not_count(ledger: Ledger) -> None:
    buffer(ledger, 1000, 100)
    buffer(ledger, 2000, 300, tail=0)
    found = measured(ledger, graph(1, (1000, 50, Access.UNKNOWN), (2000, 300, Access.READ)))
    rows = (ClassCoverage("static inputs", 50, 50),)
    assert found == Coverage(written=50, exact=50, unguarded=(), dropped=0, inputs=1, classes=rows)


def test_buffers_without_guards_count_once_however_often_graphs_use_them(ledger: Ledger) -> None:
    for start, tail in ((1000, 512), (2000, 0), (3000, 0), (4000, 0)):
        buffer(ledger, start, 100, tail)
    first = graph(1, (1000, 100, Access.READ), (2000, 100, Access.READ), (2050, 10, Access.WRITE))
    assert measured(ledger, first, graph(2, (2000, 4, Access.READ), (3000, 4, Access.READ))).inputs == 2


def test_a_byte_counts_once_a_graph(ledger: Ledger) -> None:
    buffer(ledger, 1000, 100)
    found = measured(ledger, graph(1, (1000, 60, Access.WRITE), (1040, 60, Access.WRITE), (1000, 100, Access.WRITE)))
    assert (found.written, found.exact) == (100, 100)


def test_graphs_are_summed_and_a_capture_again_replaces_its_first(ledger: Ledger) -> None:
    buffer(ledger, 1000, 100)
    buffer(ledger, 2000, 300, tail=0)
    first, second = graph(1, (1000, 100, Access.WRITE)), graph(2, (2000, 300, Access.WRITE))
    again = graph(1, (1000, 10, Access.WRITE))
    assert (measured(ledger, first, second).written, measured(ledger, first, second).exact) == (400, 100)
    assert (measured(ledger, first, second, again).written, measured(ledger, first, second, again).exact) == (310, 10)


def test_memory_that_nobody_tracks_is_written_and_not_guarded(ledger: Ledger) -> None:
    buffer(ledger, 1000, 100)
    found = measured(ledger, graph(1, (900, 200, Access.WRITE)))
    assert (found.written, found.exact, found.unguarded) == (200, 100, ())


def test_a_guard_that_does_not_stand_now_is_none(ledger: Ledger) -> None:
    guarded = buffer(ledger, 1000, 100)
    log = CoverageLog()
    log.note(graph(1, (1000, 100, Access.WRITE)), [], ledger)
    assert (guarded.guarded, log.coverage(0).exact, log.coverage(0).unguarded) == (True, 0, ())


def test_tenants_that_were_freed_in_the_capture_were_guarded(ledger: Ledger) -> None:
    old = buffer(ledger, 1000, 100, graph=1)
    ledger.free(old)
    new = buffer(ledger, 1000, 40, graph=1)
    log = CoverageLog()
    log.note(graph(1, (1000, 100, Access.WRITE)), [new], ledger)
    assert (log.coverage(0).written, log.coverage(0).exact) == (100, 100)


def test_the_largest_forms_without_guards_are_listed(ledger: Ledger) -> None:
    sizes = [10, 500, 30, 40, 300, 60, 70, 80, 90, 100, 500]
    spans = [(1000 * i, size, Access.WRITE) for i, size in enumerate(sizes, 1)]
    for start, size, _ in spans:
        buffer(ledger, start, size, tail=0)
    names = ("uint8[500]", "uint8[300]", *(f"uint8[{n}]" for n in (100, 90, 80, 70, 60, 40)))
    assert measured(ledger, graph(1, *spans)).unguarded == names


@pytest.mark.parametrize(
    ("written", "exact", "percent"), [(0, 0, 0), (100, 100, 100), (1000, 999, 99), (1000, 4, 0), (8, 5, 62)]
)
def test_percent_is_never_rounded_up(written: int, exact: int, percent: int) -> None:
    assert Coverage(written, exact, (), 0).percent == percent


def test_the_sentence_at_the_end_of_a_report() -> None:
    whole = "guarded exactly against out-of-bounds writes: 63 % of the 100 B that graphs write"
    assert Coverage(100, 63, (), 0).sentence() == f"{whole}; 0 records dropped"
    assert Coverage(100, 63, (), 1).sentence() == f"{whole}; 1 record dropped"
    assert "; 1 buffer that graphs use has no guards; " in Coverage(100, 63, (), 0, 1).sentence()
    assert "; 2,000 buffers that graphs use have no guards; " in Coverage(100, 63, (), 0, 2000).sentence()
    assert (
        Coverage(0, 0, (), 2).sentence() == "no graph captured under the debugger wrote anything yet; 2 records dropped"
    )
    pool = (ClassCoverage("static inputs", 1000, 1000), ClassCoverage("KV pool", 1 << 30, 0))
    said = Coverage(1000 + (1 << 30), 1000, (), 0, classes=pool).sentence()
    assert said == (
        "guarded exactly against out-of-bounds writes: static inputs 100 % of 1000 B, KV pool 0 % of 1 GiB; "
        "0 records dropped"
    ), "a large pool without guards does not hide that all else has them"
    assert CoverageLog().coverage(3) == Coverage(0, 0, (), 3)


def test_bytes_count_once_in_the_class_of_the_smallest_buffer(ledger: Ledger) -> None:
    whole, part = buffer(ledger, 1000, 400, tail=0), buffer(ledger, 1100, 100)
    pool = ledger.add(Buffer(ledger.next_serial(), 5000, 64, Role.POOL, shape=(64,), tail_guard=64, graph=1))
    classes = {
        whole.serial: BufferClass.WORKSPACE,
        part.serial: BufferClass.KV_POOL,
        pool.serial: BufferClass.GRAPH_POOL,
    }
    log = CoverageLog()
    written = graph(1, (1000, 400, Access.WRITE), (5000, 64, Access.WRITE), (9000, 8, Access.WRITE))
    log.note(written, [part, pool], ledger, lambda each: classes[each.serial])
    rows = [(row.name, row.written, row.exact) for row in log.coverage(0).classes]
    assert rows == [("workspaces", 300, 0), ("KV pool", 100, 100), ("graph pool", 64, 64), ("other", 8, 0)]
    found = log.coverage(0)
    assert sum(row.written for row in found.classes) == found.written
    assert sum(row.exact for row in found.classes) == found.exact
    text = "workspaces 0 % of 300 B, KV pool 100 % of 100 B, graph pool 100 % of 64 B, other 0 % of 8 B"
    assert found.by_class() == text


def test_classes_of_several_processes_are_summed() -> None:
    one = Coverage(8, 4, (), 0, classes=(ClassCoverage("KV pool", 8, 4),), large=LargeGuards(2, 200, 20, 10))
    two = Coverage(4, 4, (), 0, classes=(ClassCoverage("static inputs", 1, 1), ClassCoverage("KV pool", 3, 3)))
    both = coverage_of([one, two])
    assert both.classes == (ClassCoverage("static inputs", 1, 1), ClassCoverage("KV pool", 11, 7))
    assert both.large == one.large
    assert [row.percent for row in both.classes] == [100, 63]
    newer = added_classes([(ClassCoverage("something newer", 5, 5),), both.classes])
    assert newer[-1].name == "something newer", "a row of a later version is kept"


def test_what_the_guards_of_large_buffers_take() -> None:
    assert LargeGuards().sentence() is None
    some = LargeGuards(2, 160 << 20, 2 << 20, 4 << 20)
    assert some.sentence() == (
        "2 MiB of guards behind 2 large buffers of 160 MiB, which took 4 MiB more memory than the program alone (2.5 %)"
    )
    assert some + some - some == some


@pytest.mark.parametrize(
    ("role", "paths", "frame", "kind"),
    [
        (Role.POOL, ["target.token_to_kv_pool.k_buffer[0]"], None, "graph pool"),
        (Role.FOREIGN, ["target.token_to_kv_pool.k_buffer[3]"], None, "KV pool"),
        (Role.FOREIGN, ["runner.kv_caches[0]"], None, "KV pool"),
        (Role.FOREIGN, ["cache.layers[0].keys", "model.key_cache[1]"], None, "KV pool"),
        (Role.STATIC, ["decode.attn_backend.cuda_graph_kv_indices"], None, "static inputs"),
        (Role.STATIC, ["draft.kv_indptr"], None, "static inputs"),
        (Role.STATIC, ["target.req_to_token_pool.req_to_token"], None, "static inputs"),
        (Role.STATIC, ["target.attn_backend.workspace_buffer"], None, "workspaces"),
        (Role.STATIC, ["wrapper._int_workspace_buffer"], None, "workspaces"),
        (Role.FOREIGN, ["model.layers.0.self_attn.qkv_proj.weight"], None, "weights"),
        (Role.FOREIGN, ["logits_weighting"], None, "other"),
        (Role.FOREIGN, [], ("/x/sglang/srt/mem_cache/memory_pool.py", "_create_buffers"), "KV pool"),
        (Role.FOREIGN, [], ("/x/vllm/v1/worker/gpu_model_runner.py", "_allocate_kv_cache_tensors"), "KV pool"),
        (Role.FOREIGN, [], ("/x/transformers/cache_utils.py", "lazy_initialization"), "KV pool"),
        (Role.FOREIGN, [], ("/x/program.py", "_create_buffers"), "other"),
        (Role.FOREIGN, [], None, "other"),
        (Role.STATIC, [], None, "static inputs"),
    ],
)
def test_the_class_of_a_buffer(role: Role, paths: list[str], frame: tuple[str, str] | None, kind: str) -> None:
    stack = (Frame(frame[0], 7, frame[1]),) if frame is not None else ()
    assert str(classified(Buffer(1, 4096, 64, role, stack=stack), paths)) == kind


def test_lines_of_a_report() -> None:
    def lines(coverage: Coverage) -> list[str]:
        return [line.plain for line in coverage_lines(coverage)]

    ordinary = (ClassCoverage("static inputs", 60, 60), ClassCoverage("graph pool", 40, 40))
    guarded = "coverage: guarded exactly against out-of-bounds writes:"
    partly = (ordinary[0], ClassCoverage("graph pool", 40, 20))
    for classes, share in ((ordinary, 100), (partly, 50)):
        text = f"{guarded} static inputs 100 % of 60 B, graph pool {share} % of 40 B; 0 records dropped"
        assert lines(Coverage(100, 60 + 40 * share // 100, (), 0, classes=classes)) == [text]
    pool = Coverage(8, 8, (), 0, classes=(ClassCoverage("KV pool", 8, 8),), large=LargeGuards(1, 100, 10, 0))
    first, second = lines(pool)
    assert first == f"{guarded} KV pool 100 % of 8 B; 0 records dropped"
    assert second.startswith("coverage: 10 B of guards behind 1 large buffer of 100 B, which took 0 B more memory than")
