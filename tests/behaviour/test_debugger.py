"""The debugger's life: options, sync, pause, faults of ours and of the program, memory that runs out."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import torch
from programs import guarded, only, overflow, poke, reader_of
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import shadowgraph as sg
from shadowgraph.checks.out_of_bounds.check import OutOfBounds
from shadowgraph.graphs.events import listeners
from shadowgraph.tracking.allocator import HostAllocator, host_allocator
from shadowgraph.tracking.arena import HostArena


def untouched() -> bool:
    """Whether nothing of ours is left in the process."""
    methods = all(name not in vars(torch.Tensor) for name in ("numpy", "cpu", "tolist"))
    return not _get_current_dispatch_mode_stack() and not listeners and methods and host_allocator().policy is None


def test_everything_is_undone() -> None:
    assert untouched()
    with sg.debug() as debugger:
        assert sg.current() is debugger
        assert not untouched()
    assert sg.current() is None
    assert untouched()


def test_an_exception_of_the_program_passes_unchanged() -> None:
    error = ValueError("mine")
    with pytest.raises(ValueError, match="mine") as caught, sg.debug() as debugger:
        table = guarded(debugger, 4)
        overflow(table)
        with debugger.guard(), debugger.prepare():
            raise error
    assert caught.value is error
    assert untouched()
    assert len(debugger.findings) == 1, "what was found before is kept"


def test_an_exception_in_a_capture_leaves_the_debugger_working() -> None:
    with sg.debug() as debugger:
        table = guarded(debugger, 4)
        graph = sg.HostGraph()
        with pytest.raises(RuntimeError, match="mine"), sg.host_graph(graph):
            table.add_(1)
            raise RuntimeError("mine")
        assert table.tolist() == [0, 0, 0, 0]
        graph, _kept = reader_of(table)
        overflow(table)
        graph.replay()
    assert only(debugger.findings).phase == "prepare"


def test_our_own_fault_is_counted_and_the_program_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("ours")

    with sg.debug() as debugger:
        table = guarded(debugger, 4)
        graph, output = reader_of(table)
        monkeypatch.setattr(OutOfBounds, "parts", broken)
        table.fill_(3)
        graph.replay()
        assert output.tolist() == [6, 6, 6, 6]
        monkeypatch.undo()
        overflow(table)
        graph.replay()
        report = debugger.report(quiet=True)
    assert len(report.facts.findings) == 1
    assert any("ours" in fault for fault in report.facts.faults)
    assert "internal error of shadowgraph, 1 time (the program went on)" in str(report)


def test_sync_raises_at_the_launch() -> None:
    with pytest.raises(sg.FindingsError, match="wrote 4 bytes past the end"), sg.debug(sync=True) as debugger:
        table = guarded(debugger, 4)
        overflow(table, 0)
        overflow(table)
        pytest.fail("the launch before should have raised")
    assert untouched()
    assert only(debugger.findings).detected_at == "launch"


def test_sync_raises_at_the_node() -> None:
    with sg.debug(sync=True) as debugger:
        table, after = guarded(debugger, 4), guarded(debugger, 1)
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            overflow(table)
            after.add_(1)
        with pytest.raises(sg.FindingsError, match="in replay 1"):
            graph.replay()
        assert after.item() == 0, "the node after the guilty one did not run"


def test_a_replay_that_raises_does_not_end_the_checking() -> None:
    def fail() -> None:
        raise OSError("mine")

    with sg.debug() as debugger:
        table = guarded(debugger, 4)
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            table.add_(1)
            graph.call(fail)
        with pytest.raises(OSError, match="mine"):
            graph.replay()
        overflow(table)
        assert only(debugger.check()).past_end == 4


def test_pause_and_resume() -> None:
    with sg.debug() as debugger:
        table = guarded(debugger, 4)
        graph, _kept = reader_of(table)
        debugger.pause()
        overflow(table)
        graph.replay()
        assert debugger.check() == ()
        debugger.resume()
        graph.replay()
        assert debugger.check() == (), "what happened meanwhile is not judged"
        overflow(table)
        graph.replay()
    assert only(debugger.findings).replay == 3


def test_what_was_broken_before_a_pause_is_found_at_it() -> None:
    with sg.debug() as debugger:
        table = guarded(debugger, 4)
        overflow(table)
        debugger.pause()
        assert len(debugger.findings) == 1


def test_unknown_options_and_things() -> None:
    said = r"no option 'gard' \(did you mean far_guard\?\); options are: backend"
    with pytest.raises(sg.UsageError, match=said), sg.debug(gard=1):
        pass
    with pytest.raises(sg.UsageError, match="backend must be one of host, cuda"), sg.debug(backend="tpu"):
        pass
    with sg.debug() as debugger:
        for thing in ("kv_indptr", None, torch.zeros(0), torch.zeros(3).to_sparse(), torch.zeros(2, device="meta")):
            with pytest.raises(sg.UnknownBufferError):
                debugger.protect(thing)  # type: ignore[arg-type]
        with pytest.raises(sg.UsageError, match="active already"), sg.debug():
            pass
    assert untouched()


def test_install_and_uninstall() -> None:
    debugger = sg.install()
    try:
        assert sg.install() is debugger
        with pytest.raises(sg.UsageError, match="active already"):
            sg.install(sync=True)
    finally:
        sg.uninstall()
        sg.uninstall()
    assert untouched()


def test_options_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHADOWGRAPH_NEAR_GUARD", "1K")
    with sg.debug() as debugger:
        assert debugger.settings.near_guard == 1024
        assert debugger.buffers == () or all(buffer.serial for buffer in debugger.buffers)


def test_guard_in_another_thread() -> None:
    made: list[torch.Tensor] = []
    with sg.debug() as debugger:

        def work() -> None:
            outside = torch.zeros(4, dtype=torch.int32)
            made.extend([guarded(debugger, 4), outside])

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        inside, outside = made
        arena = host_allocator().arena
        assert arena.holds(inside.data_ptr())
        assert not arena.holds(outside.data_ptr())
        poke(inside, 16, 4)
        assert only(debugger.check()).past_end == 4


def test_guard_memory_runs_out_by_degrees() -> None:
    with sg.debug(guard_memory=10_000, near_guard=256) as debugger:
        tables = [guarded(debugger, 400_000, dtype=torch.uint8) for _ in range(14)]
        facts = debugger.report(quiet=True).facts
        assert facts.guards_shrunk > 0
        assert facts.guards_dropped > 0
        poke(tables[0], 400_000, 4)
        assert only(debugger.check()).past_end == 4, "small guards still guard"
        assert "no memory for more" in str(debugger.report(quiet=True))


def test_no_memory_for_a_guarded_buffer_leaves_it_where_torch_put_it(monkeypatch: pytest.MonkeyPatch) -> None:
    small = HostAllocator(HostArena(1 << 30))
    small.arena.take(small.arena.size - 4096)
    monkeypatch.setattr("shadowgraph.monitor.backends.host_allocator", lambda: small)
    with sg.debug() as debugger:
        table = guarded(debugger, 1 << 20)
        assert not small.arena.holds(table.data_ptr())
        table.fill_(3)
        facts = debugger.report(quiet=True).facts
    assert facts.guards_dropped >= 1
    assert facts.faults == {}
    with sg.debug() as debugger:
        pass
    assert debugger.facts().guards_dropped == 0, "another debugger's"


def test_watch_tells_who_changes_a_tensor() -> None:
    with sg.debug() as debugger:
        values = guarded(debugger, 8)
        debugger.name("values", values)
        watch = debugger.watch(values[2:6])
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            values[:4].add_(1)
        values.fill_(3)
        graph.replay()
        poke(values, 0, 4)  # outside what is watched
        graph.replay()
        with debugger.prepare(graph):
            values[5].fill_(0)
    seen = [(c.phase, c.replay, c.writer, c.node, c.first, c.last) for c in watch.changes]
    assert seen == [
        (None, None, "aten.fill_.Scalar", None, 0, 15),
        ("replay", 1, "aten.add_.Tensor", 0, 0, 7),
        ("replay", 2, "aten.add_.Tensor", 0, 0, 7),
        ("prepare", None, "aten.fill_.Scalar", None, 12, 15),
    ]
    assert debugger.findings == ()
    assert "watch values: 4 changes" in str(debugger.report(quiet=True))


def test_a_write_seen_once_hides_no_later_change() -> None:
    with sg.debug() as debugger:
        values = guarded(debugger, 8)
        watch = debugger.watch(values)
        steps = iter((1, 2, 3))
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            graph.call(lambda: poke(values, 4, 1, next(steps)))
        for _ in range(3):
            values[0] = 5  # seen, and eager
            graph.replay()
    unseen = [(c.phase, c.replay, c.first) for c in watch.changes if c.writer is None]
    assert unseen == [("replay", 1, 4), ("replay", 2, 4), ("replay", 3, 4)]


def test_memory_that_changes_elsewhere_costs_no_new_shadow() -> None:
    with sg.debug() as debugger:
        values = guarded(debugger, 8)
        debugger.protect(values)
        graph, _kept = reader_of(values)
        graph.replay()
        work = debugger.monitor
        before, version = work.shadows.of(graph.model, work._declared), work.context.ledger.version
        _other = guarded(debugger, 8)
        assert work.context.ledger.version != version
        assert work.shadows.of(graph.model, work._declared) is before
        debugger.protect(_other)
        assert work.shadows.of(graph.model, work._declared) is not before


def test_a_watched_change_by_an_unseen_writer() -> None:
    with sg.debug() as debugger:
        values = guarded(debugger, 8)
        watch = debugger.watch(values)
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            graph.call(poke, values, 4, 4)
        graph.replay()
    assert [(c.phase, c.replay, c.writer, c.first) for c in watch.changes] == [("replay", 1, None, 4)]


def test_suppressed_by_fingerprint(tmp_path: object) -> None:
    def run(**options: object) -> sg.Debugger:
        with sg.debug(**options) as debugger:
            table = guarded(debugger, 4)
            debugger.name("table", table)
            overflow(table)
        return debugger

    first = only(run().findings)
    again = only(run().findings)
    assert first.fingerprint == again.fingerprint
    path = tmp_path / "known.txt"  # type: ignore[operator]
    path.write_text(f"# known\n{first.fingerprint}  table, issue 12\n")
    debugger = run(suppressions=str(path))
    assert debugger.findings == ()
    assert "suppressed: 1 finding, 1 sighting\n" in str(debugger.report(quiet=True))
    with pytest.raises(sg.ShadowgraphError, match="cannot read suppressions"):
        run(suppressions=str(path) + ".missing")


def test_pointers_keep_their_alignment_and_tensors_their_size() -> None:
    with sg.debug() as debugger:
        for shape in ((3,), (5, 7), (1,), (1000,)):
            table = guarded(debugger, *shape, dtype=torch.float32)
            assert table.data_ptr() % 512 == 0
            assert table.storage_offset() == 0
            assert table.untyped_storage().nbytes() == 4 * table.numel()
            assert table.view(-1).shape == (table.numel(),)


def test_stopped_by_another_thread() -> None:
    with sg.debug():
        thread = threading.Thread(target=sg.uninstall)
        thread.start()
        thread.join()
        assert sg.current() is None
        assert torch.ones(2).add_(1).tolist() == [2, 2]
    assert untouched(), "the mode leaves the stack with the block"


def test_stopped_by_another_thread_and_begun_again() -> None:
    first = sg.install()
    thread = threading.Thread(target=sg.uninstall)
    thread.start()
    thread.join()
    with sg.debug() as debugger:
        assert len(_get_current_dispatch_mode_stack()) == 1
        table = guarded(debugger, 4)
        overflow(table)
        first.stop()
    assert only(debugger.findings).past_end == 4
    assert untouched()


def test_a_block_does_not_end_the_debugger_of_another_thread() -> None:
    begun: list[sg.Debugger] = []

    def restart() -> None:
        sg.uninstall()
        begun.append(sg.install())

    with sg.debug():
        thread = threading.Thread(target=restart)
        thread.start()
        thread.join()
    try:
        assert sg.current() is begun[0]
    finally:
        sg.uninstall()
    assert untouched()


@pytest.mark.parametrize("thing", [5, "kv_indptr", None, 1.5, b"", torch.Tensor])
def test_what_can_hold_no_tensor_cannot_be_named(thing: object) -> None:
    with sg.debug() as debugger, pytest.raises(sg.UnknownBufferError, match="needs an object that holds tensors") as e:
        debugger.name("x", thing)
    assert "\n" not in str(e.value)


def test_an_object_without_tensors_yet_is_named() -> None:
    class Holder:
        table: torch.Tensor

    holder = Holder()
    with sg.debug() as debugger:
        assert debugger.name("holder", holder) == 0
        with pytest.raises(sg.UnknownBufferError, match="found no tensor in this list; name it once it holds some"):
            debugger.name("empty", [])  # it is not walked again
        holder.table = guarded(debugger, 4)
        overflow(holder.table)
    assert only(debugger.findings).buffer.name == "holder.table"


def test_walks_with_gaps_are_told() -> None:
    with sg.debug() as debugger:
        assert "names:" not in str(debugger.report(quiet=True))
        deep: list[object] = []
        for _ in range(20):
            deep = [deep]
        debugger.name("deep", deep)
        debugger.name("deep", deep)
        report = debugger.report(quiet=True)
    assert (report.facts.names_unread, report.facts.names_cut_short) == (0, 1)
    assert "names: 0 objects could not be read, 1 walk cut short" in str(report)


def test_a_finalizer_that_wants_the_allocator_waits_for_the_names() -> None:
    with sg.debug() as debugger:
        held = [guarded(debugger, 4)]
        buffers = len(debugger.buffers)
        with debugger.names._lock.section:
            held.clear()
            assert len(debugger.buffers) == buffers, "not while the names are locked"
        assert len(debugger.buffers) == buffers - 1


def test_a_debugger_is_freed_with_its_last_reference() -> None:
    """And what its backend has on a device with it: not by a collection in the middle of somebody's capture."""

    def watch() -> dict[str, weakref.ref[object]]:
        with sg.debug(watch_eager="sampled") as debugger:
            with debugger.guard():
                table = torch.zeros(8)
            graph = sg.HostGraph()
            with sg.host_graph(graph):
                table.add_(1)
            graph.replay()
            debugger.check()
            held = {"debugger": debugger, "backend": debugger._backend, "mode": debugger.eager_mode}
            held |= {"supervisor": debugger.monitor, "engine": debugger.monitor.context.engine}
            return {name: weakref.ref(one) for name, one in held.items()}

    gc.collect()
    gc.disable()
    try:
        assert [name for name, ref in watch().items() if ref() is not None] == []
    finally:
        gc.enable()
