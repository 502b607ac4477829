"""SG116 on real programs: memory that keeps its address and loses its contents."""

from __future__ import annotations

import ctypes
import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from captures import graph_over, silent, uses_floats
from programs import guarded, only, reader_of

import shadowgraph as sg
from shadowgraph.checks.contents_lost.check import ContentsLost
from shadowgraph.common.errors import FindingsError
from shadowgraph.integrations.memory_saver import adapter
from shadowgraph.model.ranges import ByteRange


def drop(*tensors: torch.Tensor) -> None:
    """What a resume leaves: other memory at the same addresses, which no write of the program is seen to make."""
    for tensor in tensors:
        ctypes.memset(tensor.data_ptr(), 0, tensor.nbytes)


class Saver:
    """The surface of torch_memory_saver's class, over memory of the host: a pause drops it at once."""

    def __init__(self, **regions: list[torch.Tensor]) -> None:
        self.regions = regions
        self.backed: set[str] = set()
        self._impl = SimpleNamespace(_mem_pools={})

    def place(self) -> list[dict[str, Any]]:
        """The segments, as torch's snapshot has them."""
        found = []
        for number, (tag, tensors) in enumerate(self.regions.items()):
            pool = SimpleNamespace(id=(0, number + 1))
            self._impl._mem_pools[tag, tag in self.backed, False] = pool
            found += [
                {"segment_pool_id": pool.id, "address": each.data_ptr(), "total_size": each.nbytes} for each in tensors
            ]
        return found

    def pause(self, tag: str | None = None) -> str:
        for each, tensors in self.regions.items():
            if tag in (None, each) and each not in self.backed:
                drop(*tensors)
        return "paused"

    def resume(self, tag: str | None = None) -> str:
        return "resumed"


def cycle(memory: Saver, tag: str | None = None) -> None:
    memory.pause(tag)
    memory.resume(tag)


@pytest.fixture
def saver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Saver]]:
    package, entry = ModuleType(adapter.PACKAGE), ModuleType(f"{adapter.PACKAGE}.entrypoint")
    entry.TorchMemorySaver = Saver  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, package.__name__, package)
    monkeypatch.setitem(sys.modules, entry.__name__, entry)
    assert adapter.attach()

    def make(backed: str = "", **regions: list[torch.Tensor]) -> Saver:
        made = Saver(**regions)
        made.backed |= {backed}
        segments = made.place()
        monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: segments)
        return made

    yield make
    adapter.detach()


def table(debugger: sg.Debugger) -> torch.Tensor:
    made = uses_floats(debugger, 64)
    made.copy_(torch.arange(1.0, 65.0))
    return made


def read_table(debugger: sg.Debugger) -> tuple[torch.Tensor, sg.HostGraph]:
    """A table, and a graph that has read it."""
    made = table(debugger)
    graph, _ = reader_of(made)
    graph.replay()
    return made, graph


def test_a_table_that_was_not_made_again(saver: Callable[..., Saver]) -> None:
    with sg.debug(backend="host") as debugger:
        rope, weights, x = table(debugger), table(debugger), uses_floats(debugger, 64)
        debugger.name("model", {"rope": rope, "weights": weights})
        graph = graph_over(lambda: (x * weights, x + rope))
        graph.replay()
        memory = saver(weights=[rope, weights])
        assert (memory.pause("weights"), memory.resume("weights")) == ("paused", "resumed")
        weights.copy_(torch.arange(1.0, 65.0))  # reloaded; the table is not
        graph.replay()
        graph.replay()
        found = only(debugger.findings)
        text = str(debugger.report(quiet=True))
    assert (found.code, found.severity, found.confidence) == ("SG116", "error", "high")
    assert (found.phase, found.graph, found.replay, found.occurrences) == ("replay", graph.model.name, 2, 1)
    assert found.buffer.name == 'model["rope"]'
    assert (found.bytes.first, found.bytes.last, found.bytes.count) == (0, 255, 256)
    assert (found.culprit.name, found.culprit.node) == ("aten.add.Tensor", 1)
    assert (found.detail.how, found.detail.compared) == ('torch_memory_saver pause("weights")', True)
    assert found.detail.stack[0].function == "test_a_table_that_was_not_made_again"
    said = 'aten.add.Tensor (node 1) reads model["rope"] (float32[64]), which lost its contents in torch_memory_saver'
    assert f'SG116 contents lost: {said} pause("weights") and was not written since, in replay 2 of' in text
    assert 'lost       in torch_memory_saver pause("weights")\n' in text


def test_its_fixed_twin_makes_it_again(saver: Callable[..., Saver]) -> None:
    with sg.debug(backend="host") as debugger:
        rope, graph = read_table(debugger)
        cycle(saver(weights=[rope]))
        rope.copy_(torch.arange(1.0, 65.0))
        graph.replay()
        assert silent(debugger)


def test_a_region_with_a_backup_loses_nothing(saver: Callable[..., Saver]) -> None:
    with sg.debug(backend="host") as debugger:
        rope, graph = read_table(debugger)
        cycle(saver(backed="weights", weights=[rope]), "weights")
        graph.replay()
        assert silent(debugger)


def test_another_tag_loses_nothing(saver: Callable[..., Saver]) -> None:
    with sg.debug(backend="host") as debugger:
        rope, other, x = table(debugger), table(debugger), uses_floats(debugger, 64)
        graph = graph_over(lambda: x + rope)
        graph.replay()
        cycle(saver(weights=[rope], kv_cache=[other]), "kv_cache")
        graph.replay()
        assert silent(debugger)


def test_a_restoration_that_is_not_seen(saver: Callable[..., Saver]) -> None:
    with sg.debug(backend="host") as debugger:
        rope, graph = read_table(debugger)
        before = ctypes.string_at(rope.data_ptr(), rope.nbytes)
        cycle(saver(weights=[rope]), "weights")
        ctypes.memmove(rope.data_ptr(), before, rope.nbytes)
        graph.replay()
        assert silent(debugger)


def test_what_the_graph_writes_before_it_reads(saver: Callable[..., Saver]) -> None:
    with sg.debug(backend="host") as debugger:
        x, scratch = table(debugger), table(debugger)
        graph = graph_over(lambda: (scratch.copy_(x), scratch + 1))
        graph.replay()
        cycle(saver(workspace=[scratch]), "workspace")
        graph.replay()
        assert silent(debugger)


@pytest.mark.parametrize("in_time", [True, False])
def test_what_another_graph_writes(saver: Callable[..., Saver], in_time: bool) -> None:
    with sg.debug(backend="host") as debugger:
        x, between = table(debugger), table(debugger)
        producer = graph_over(lambda: between.copy_(x))
        consumer = graph_over(lambda: between + 1)
        producer.replay()
        consumer.replay()
        cycle(saver(workspace=[between]), "workspace")
        if in_time:
            producer.replay()
        consumer.replay()
        if in_time:
            assert silent(debugger)
            return
        found = only(debugger.findings)
    assert (found.code, found.graph, found.culprit.name) == ("SG116", consumer.model.name, "aten.add.Tensor")


def test_another_graph_writes_anew_after_each_loss(
    saver: Callable[..., Saver], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ContentsLost, "wants_known_writes", False)  # as on a device: nodes are not told one by one
    with sg.debug(backend="host") as debugger:
        x, between, unused = table(debugger), table(debugger), table(debugger)
        producer = graph_over(lambda: between.copy_(x))
        consumer = graph_over(lambda: between + 1)
        graph_over(lambda: unused + 1)  # never replayed: its read is awaited to the end
        memory = saver(workspace=[between, unused])
        for _ in range(2):
            cycle(memory, "workspace")
            x.add_(1)
            producer.replay()
            consumer.replay()
        assert silent(debugger)
        cycle(memory, "workspace")
        consumer.replay()
        assert only(debugger.findings).graph == consumer.model.name


@pytest.mark.parametrize("prefill", [True, False])
def test_a_cache_that_fills_again_row_by_row(saver: Callable[..., Saver], prefill: bool) -> None:
    """Which rows the graph reads is not known: one that was written speaks for all."""
    with sg.debug(backend="host") as debugger:
        cache, rows = uses_floats(debugger, 8, 4), guarded(debugger, 2, dtype=torch.int64)
        cache.fill_(1)
        graph = graph_over(lambda: cache[rows].sum(1))
        graph.replay()
        cycle(saver(kv_cache=[cache]), "kv_cache")
        if prefill:
            cache[0].fill_(2)
        graph.replay()
        if prefill:
            assert silent(debugger)
            return
        found = only(debugger.findings)
    assert (found.code, found.culprit.name) == ("SG116", "aten.index.Tensor")


def test_only_half_of_it_was_written_again(saver: Callable[..., Saver]) -> None:
    with sg.debug(backend="host") as debugger:
        rope, graph = read_table(debugger)
        cycle(saver(weights=[rope]), "weights")
        rope[32:].copy_(torch.arange(33.0, 65.0))
        graph.replay()
        found = only(debugger.findings)
    assert (found.bytes.first, found.bytes.last, found.bytes.count) == (0, 127, 128)


def test_a_debugger_that_ended_during_the_pause(saver: Callable[..., Saver], monkeypatch: pytest.MonkeyPatch) -> None:
    with sg.debug(backend="host") as debugger:
        rope, x = table(debugger), uses_floats(debugger, 64)
        graph_over(lambda: x + rope)
        memory = saver(weights=[rope])
        memory.pause("weights")
    observed: list[str] = []
    monkeypatch.setattr(debugger.monitor.observation, "observe_all", lambda: observed.append("resumed"))
    assert (memory.resume("weights"), observed) == ("resumed", [])


def test_a_declared_loss() -> None:
    with sg.debug(backend="host") as debugger:
        rope, graph = read_table(debugger)
        drop(rope)
        debugger.contents_lost(rope, how="sleep(level=2)")
        graph.replay()
        found = only(debugger.findings)
    assert (found.code, found.confidence, found.detail.compared) == ("SG116", "medium", False)
    assert "which lost its contents in sleep(level=2) and was not written since" in found.message


def test_a_declared_loss_that_was_repaired() -> None:
    with sg.debug(backend="host") as debugger:
        rope, graph = read_table(debugger)
        drop(rope)
        debugger.contents_lost(rope)
        rope.fill_(1)
        graph.replay()
        assert silent(debugger)


def test_each_loss_counts_anew(saver: Callable[..., Saver]) -> None:
    with sg.debug(backend="host") as debugger:
        rope, x = table(debugger), uses_floats(debugger, 64)
        graph = graph_over(lambda: x + rope)
        memory = saver(weights=[rope])
        for again in (True, False):
            graph.replay()
            cycle(memory, "weights")
            if again:
                rope.copy_(torch.arange(1.0, 65.0))
        assert debugger.findings == ()
        graph.replay()
        assert only(debugger.findings).replay == 3


@pytest.mark.parametrize("written", [0, 16, 64])
def test_two_losses_before_a_replay(saver: Callable[..., Saver], written: int) -> None:
    """The second one finds what the first one left: values from before the first one count."""
    with sg.debug(backend="host") as debugger:
        rope, graph = read_table(debugger)
        memory = saver(weights=[rope])
        cycle(memory)
        rope[:written].copy_(torch.arange(1.0, 65.0)[:written])
        cycle(memory)
        rope[:written].copy_(torch.arange(1.0, 65.0)[:written])
        graph.replay()
        if written == 64:
            assert silent(debugger)
            return
        found = only(debugger.findings)
    assert (found.code, found.confidence) == ("SG116", "high")
    assert (found.bytes.first, found.bytes.count) == (4 * written, 256 - 4 * written)


def test_a_restoration_after_two_losses_that_is_not_seen(saver: Callable[..., Saver]) -> None:
    with sg.debug(backend="host") as debugger:
        rope, graph = read_table(debugger)
        memory, before = saver(weights=[rope]), ctypes.string_at(rope.data_ptr(), rope.nbytes)
        cycle(memory)
        rope[:16].copy_(torch.arange(1.0, 17.0))
        cycle(memory)
        ctypes.memmove(rope.data_ptr(), before, rope.nbytes)
        graph.replay()
        assert silent(debugger)


def test_a_declared_loss_before_one_that_is_seen(saver: Callable[..., Saver]) -> None:
    """What the bytes held before both is not known."""
    with sg.debug(backend="host") as debugger:
        rope, graph = read_table(debugger)
        drop(rope)
        debugger.contents_lost(rope)
        cycle(saver(weights=[rope]))
        graph.replay()
        found = only(debugger.findings)
    assert (found.code, found.confidence, found.detail.compared) == ("SG116", "medium", False)


def test_memory_that_is_dropped_already_is_not_read_again(
    saver: Callable[..., Saver], monkeypatch: pytest.MonkeyPatch
) -> None:
    with sg.debug(backend="host") as debugger:
        rope, x, cache = table(debugger), table(debugger), table(debugger)
        graph = graph_over(lambda: (x + rope, x + cache))
        graph.replay()
        memory, read = saver(weights=[rope], kv_cache=[cache]), list[list[Any]]()
        engine = debugger.monitor.context.engine
        read_many = engine.read_many
        monkeypatch.setattr(engine, "read_many", lambda ranges: read.append(list(ranges)) or read_many(ranges))
        memory.pause("weights")
        memory.pause()
        assert [[each.start for each in ranges] for ranges in read] == [[rope.data_ptr()], [cache.data_ptr()]]
        memory.resume("kv_cache")
        cache.fill_(1)
        memory.resume()
        graph.replay()
        found = only(debugger.findings)
    assert (found.code, found.culprit.node, found.detail.how) == (
        "SG116",
        0,
        'torch_memory_saver pause("weights")',
    )


def test_checks_that_are_queued_run_before_the_memory_goes(
    saver: Callable[..., Saver], monkeypatch: pytest.MonkeyPatch
) -> None:
    with sg.debug(backend="host") as debugger:
        rope, _ = read_table(debugger)
        memory, held = saver(weights=[rope]), list[float]()
        drain = debugger.monitor.drain
        monkeypatch.setattr(debugger.monitor, "drain", lambda: held.append(float(rope.amax())) or drain())
        memory.pause("weights")
        assert held == [64.0]
        memory.resume("weights")
        assert held == [64.0]


def test_a_pause_that_fails_drops_nothing(saver: Callable[..., Saver], monkeypatch: pytest.MonkeyPatch) -> None:
    with sg.debug(backend="host") as debugger:
        rope, graph = read_table(debugger)
        memory = saver(weights=[rope])
        with monkeypatch.context() as failing, pytest.raises(ZeroDivisionError):
            failing.setattr(Saver, "regions", property(lambda _: 1 / 0), raising=False)
            memory.pause()
        memory.resume()
        assert debugger.monitor.checks[ContentsLost].wants_known_writes is False
        rope.add_(1)
        graph.replay()
        assert silent(debugger)


def test_each_graph_is_judged_at_its_own_replay() -> None:
    with sg.debug(backend="host") as debugger:
        rope, first = read_table(debugger)
        second, _ = reader_of(rope)
        drop(rope)
        debugger.contents_lost(rope)
        second.replay()
        rope.fill_(1)
        first.replay()
        found = only(debugger.findings)
    assert (found.code, found.graph) == ("SG116", second.model.name)


def test_a_buffer_that_was_freed_since_is_left_to_sg104() -> None:
    with sg.debug(backend="host") as debugger:
        rope, graph = read_table(debugger)
        debugger.contents_lost(rope)
        del rope
        graph.replay()
        assert only(debugger.findings).code == "SG104"


def test_nothing_is_asked_while_no_debugger_watches(
    saver: Callable[..., Saver], monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, asked = saver(weights=[torch.zeros(4)]), list[None]()
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: asked.append(None) or [])
    assert (memory.pause(), memory.resume()) == ("paused", "resumed")
    assert asked == []


def lose(debugger: sg.Debugger, *tensors: torch.Tensor) -> None:
    """A loss that is told on both sides, as adapters do."""
    ranges = [ByteRange(each.data_ptr(), each.data_ptr() + each.nbytes) for each in tensors]
    lost = debugger.adapter.loses_contents(ranges, "a sleep")
    drop(*tensors)
    lost()


def load(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """What a writer does that is not seen."""
    ctypes.memmove(tensor.data_ptr(), values.data_ptr(), tensor.nbytes)


@pytest.mark.parametrize("loaded", [True, False])
def test_other_weights_that_are_loaded_unseen_between_two_losses(loaded: bool) -> None:
    with sg.debug(backend="host") as debugger:
        weight = uses_floats(debugger, 64)
        weight.copy_(torch.arange(64))
        graph = graph_over(lambda: weight * 2)
        graph.replay()
        others = torch.arange(64.0) + 100
        lose(debugger, weight)
        load(weight, others)
        lose(debugger, weight)
        if loaded:
            load(weight, others)
        graph.replay()
        assert [found.code for found in debugger.findings] == ([] if loaded else ["SG116"])


@pytest.mark.parametrize("second", [slice(32, 64), slice(0, 16)], ids=["the other half", "a part again"])
@pytest.mark.parametrize("restored", ["all", "what was lost last"])
def test_two_losses_of_parts(second: slice, restored: str) -> None:
    with sg.debug(backend="host") as debugger:
        weight = uses_floats(debugger, 64)
        weight.copy_(torch.arange(64) + 1)
        graph = graph_over(lambda: weight * 2)
        graph.replay()
        lose(debugger, weight[:32])
        lose(debugger, weight[second])
        (weight if restored == "all" else weight[second]).copy_(torch.ones(1))
        graph.replay()
        assert [found.code for found in debugger.findings] == ([] if restored == "all" else ["SG116"])


def test_no_debugger_is_kept_for_a_resume_that_is_watched_no_longer(saver: Callable[..., Saver]) -> None:
    with sg.debug(backend="host") as debugger:
        weight = uses_floats(debugger, 64)
        memory = saver(weights=[weight])
        graph_over(lambda: weight * 2)
        memory.pause()
        adapter.detach()
        alive = weakref.ref(debugger)
    del debugger
    gc.collect()
    assert alive() is None


def test_a_finding_of_a_queued_check_is_not_raised_in_a_pause(
    saver: Callable[..., Saver], monkeypatch: pytest.MonkeyPatch
) -> None:
    def found() -> None:
        raise FindingsError("of a check that was queued")

    with sg.debug(backend="host") as debugger:
        weight = uses_floats(debugger, 64)
        weight.copy_(torch.arange(64))
        memory = saver(weights=[weight])
        graph = graph_over(lambda: weight * 2)
        graph.replay()
        with monkeypatch.context() as patch:
            patch.setattr(debugger.monitor, "drain", found)
            memory.pause()
        memory.resume()
        graph.replay()
        assert only(debugger.findings).code == "SG116", "the loss was announced"
        assert debugger.facts().faults == {}
