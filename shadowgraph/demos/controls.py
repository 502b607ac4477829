"""Silent controls: correct programs that look like bugs. Any finding on them is a false positive."""

from __future__ import annotations

from typing import Any

import torch

from shadowgraph.demos.case import Case, require
from shadowgraph.demos.device import Buffers


def pool_sharing(device: Any, debugger: Any, fixed: bool, carve: int) -> None:
    """Two graphs share a pool on purpose: the second uses memory that the first freed."""
    source = torch.arange(64.0, device=device.device)
    pool = device.pool()
    first, second = device.graph(), device.graph()
    addresses = []
    with device.capture(first, pool):
        scratch = source * 2
        addresses.append(scratch.data_ptr())
        out_first = scratch + 1
        del scratch
    with device.capture(second, pool):
        scratch = source * 3
        addresses.append(scratch.data_ptr())
        out_second = scratch + 1
        del scratch
    require(addresses[0] == addresses[1], "the second graph reuses the first one's block")
    for _ in range(3):
        first.replay()
        second.replay()
    require(bool((out_first == source * 2 + 1).all() and (out_second == source * 3 + 1).all()), "both graphs are right")


def kv_append(device: Any, debugger: Any, fixed: bool, carve: int) -> None:
    """A KV cache that the graph appends to, read afterwards by an eager prefill."""
    with debugger.guard():
        buffers = Buffers(device.device)
        cache = buffers.zeros((8, 4), torch.float32)
        position = buffers.zeros((1,), torch.int64)
        key = buffers.of([[1.0, 2.0, 3.0, 4.0]], torch.float32)
    debugger.name("kv", {"cache": cache, "position": position})
    graph = device.graph()
    with device.capture(graph):
        cache.index_copy_(0, position, key)
        seen = cache.sum()
    for step in range(4):
        position.fill_(step)
        key.add_(1)
        graph.replay()
        prefill = (cache @ cache.T).sum()  # an eager kernel's read, not a host read
        require(bool(torch.isfinite(prefill + seen)), "the cache holds numbers")


def semaphore(device: Any, debugger: Any, fixed: bool, carve: int) -> None:
    """A counter that every launch increments and resets."""
    from shadowgraph.demos.kernels import bump

    with debugger.guard():
        lock = Buffers(device.device).zeros((1,), torch.int32)
    debugger.name("lock", lock)
    debugger.protect(lock)
    graph = device.graph()
    device.warm_up(lambda: bump[(4,)](lock, BLOCK=1))
    with device.capture(graph):
        bump[(4,)](lock, BLOCK=1)
    for _ in range(3):
        graph.replay()
    require(int(lock.item()) == 0, "the semaphore is back at zero")


def random_state(device: Any, debugger: Any, fixed: bool, carve: int) -> None:
    """A registered generator whose state moves with every replay."""
    generator = torch.Generator(device=device.device)
    generator.manual_seed(7)
    with debugger.guard():
        noise = Buffers(device.device).zeros((16,), torch.float32)
    graph = device.graph()
    graph.register_generator_state(generator)
    with device.capture(graph):
        noise.uniform_(generator=generator)
    graph.replay()
    before = noise.clone()
    graph.replay()
    require(not torch.equal(before, noise), "replays draw new numbers")


def constant_tables(device: Any, debugger: Any, fixed: bool, carve: int) -> None:
    """Tables that are written once and read by every replay."""
    with debugger.guard():
        table = Buffers(device.device).of([3, 1, 4, 1, 5, 9, 2, 6], torch.int32)
        index = Buffers(device.device).of([0, 2, 4], torch.int64)
    debugger.name("rope", {"table": table, "index": index})
    graph = device.graph()
    with device.capture(graph):
        out = table[index]
    for _ in range(3):
        graph.replay()
        require(out.tolist() == [3, 4, 5] and table.tolist()[0] == 3, "the table is read as it is")


def same_named_inputs(device: Any, debugger: Any, fixed: bool, carve: int) -> None:
    """Two runners share same-named inputs on purpose."""

    class Runner:
        def __init__(self, ids: torch.Tensor) -> None:
            self.input_ids = ids
            self.graph = device.graph()

        def capture(self) -> None:
            with device.capture(self.graph):
                self.out = self.input_ids * 2

    with debugger.guard():
        ids = Buffers(device.device).of([1, 2, 3, 4], torch.int64)
    target, draft = Runner(ids), Runner(ids)
    debugger.name("target", target)
    debugger.name("draft", draft)
    for runner in (target, draft):
        runner.capture()
    for step in range(3):
        for runner in (target, draft):
            with debugger.prepare(runner.graph):
                ids.copy_(torch.tensor([step, 2, 3, 4], device=device.device))
            runner.graph.replay()
            require(runner.out.tolist()[0] == 2 * step, "the runner reads what was prepared")


def shared_workspace(device: Any, debugger: Any, fixed: bool, carve: int) -> None:
    """One float workspace for all wrappers: each graph overwrites the other's values."""

    class Wrapper:
        def __init__(self, workspace: torch.Tensor, scale: float) -> None:
            self._float_workspace_buffer, self.scale = workspace, scale

        def run(self, query: torch.Tensor) -> torch.Tensor:
            torch.mul(query, self.scale, out=self._float_workspace_buffer[: query.numel()])
            return self._float_workspace_buffer[: query.numel()] + 1

    with debugger.guard():
        buffers = Buffers(device.device)
        workspace, query = buffers.zeros((256,), torch.float32), buffers.of([1.0, 2.0, 3.0, 4.0], torch.float32)
    wrappers = [Wrapper(workspace, 2.0), Wrapper(workspace, 3.0)]
    debugger.name("wrappers", wrappers)
    graphs = [device.graph() for _ in wrappers]
    outs = []
    for wrapper, graph in zip(wrappers, graphs, strict=True):
        with device.capture(graph):
            outs.append(wrapper.run(query))
    for _ in range(2):
        for graph in graphs:
            graph.replay()
    require(outs[0].tolist() == [3, 5, 7, 9] and outs[1].tolist() == [4, 7, 10, 13], "both wrappers are right")


def net_zero_positions(device: Any, debugger: Any, fixed: bool, carve: int) -> None:
    """Positions that a graph increments in each step and restores at its end."""
    with debugger.guard():
        positions = Buffers(device.device).of([19, 20, 11, 12], torch.int64)
    debugger.name("draft", {"positions": positions})
    debugger.protect(positions)
    graph = device.graph()
    with device.capture(graph):
        for _ in range(3):
            positions.add_(1)
        out = positions * 1
        positions.sub_(3)
    for _ in range(3):
        graph.replay()
        require(positions.tolist() == [19, 20, 11, 12] and out.tolist()[0] == 22, "the change is taken back")


def same_values(device: Any, debugger: Any, fixed: bool, carve: int) -> None:
    """An in-graph rewrite with the same values as before."""
    with debugger.guard():
        indptr = Buffers(device.device).of([0, 4, 8, 12], torch.int32)
        lens = Buffers(device.device).of([4, 4, 4], torch.int32)
    debugger.name("attn", {"kv_indptr": indptr, "lens": lens})
    debugger.protect(indptr)
    graph = device.graph()
    with device.capture(graph):
        indptr[1:].copy_(lens.cumsum(0))
    for _ in range(3):
        require(indptr.cpu().tolist() == [0, 4, 8, 12], "the plan reads what it expects")
        graph.replay()


def dont_care_padding(device: Any, debugger: Any, fixed: bool, carve: int) -> None:
    """Padded rows hold values that no code reads; the rule is declared for the real rows only."""
    from shadowgraph.checks.invariants.rules import index_range

    with debugger.guard():
        slots = Buffers(device.device).of([0, 1, 2, 3], torch.int64)
        table = Buffers(device.device).of([[1.0], [2.0], [3.0], [4.0]], torch.float32)
    debugger.name("batch", {"req_pool_indices": slots, "table": table})
    debugger.invariant(slots[:2], index_range(0, 4))
    graph = device.graph()
    with device.capture(graph):
        out = table[slots[:2]]
    for step in range(3):
        with debugger.prepare(graph):
            slots.copy_(torch.tensor([step, step + 1, -1, 99], device=device.device))
        graph.replay()
        require(out.tolist()[0] == [step + 1.0], "the real rows are right")


def counter(device: Any, debugger: Any, fixed: bool, carve: int) -> None:
    """A counter that the graph advances and the host reads back."""
    with debugger.guard():
        positions = Buffers(device.device).of([3, 5, 9], torch.int32)
    debugger.name("state", {"positions": positions})
    graph = device.graph()
    with device.capture(graph):
        positions.add_(1)
    seen = [positions.cpu().tolist()]
    for _ in range(3):
        graph.replay()
        seen.append(positions.cpu().tolist())
    require(seen[-1] == [6, 8, 12], "the counter moves by one a replay")


def shrinking_batches(device: Any, debugger: Any, fixed: bool, carve: int) -> None:
    """Batch 8, then 2, then 8 with shrinking lengths over one indptr: its tail is legitimately stale."""
    with debugger.guard():
        indptr = Buffers(device.device).of([8 * i for i in range(9)], torch.int32)
    debugger.name("attn", {"kv_indptr": indptr})
    graphs, outs = {}, {}
    for batch in (8, 2):
        graphs[batch] = device.graph()
        with device.capture(graphs[batch]):
            outs[batch] = indptr[1 : batch + 1] - indptr[:batch]
    for batch, length in ((8, 9), (2, 40), (8, 3), (2, 1), (8, 2)):
        with debugger.prepare(graphs[batch]):
            values = torch.arange(batch + 1, dtype=torch.int32, device=device.device) * length
            indptr[: batch + 1].copy_(values)
            require(indptr[: batch + 1].cpu().tolist()[-1] == batch * length, "the plan reads its own lengths")
        graphs[batch].replay()
        require(outs[batch].tolist() == [length] * batch, "the graph reads its own lengths")


_CONTROLS = (
    ("pool-sharing", "graphs that share a pool on purpose", pool_sharing),
    ("kv-append", "a KV cache appended in-graph and read by an eager prefill", kv_append),
    ("semaphore", "a semaphore that resets itself", semaphore),
    ("random-state", "registered random state", random_state),
    ("constant-tables", "constant tables that are never rewritten", constant_tables),
    ("same-named-inputs", "same-named inputs shared by two runners", same_named_inputs),
    ("shared-workspace", "one float workspace shared by wrappers", shared_workspace),
    ("net-zero", "positions added to and subtracted from in one graph", net_zero_positions),
    ("same-values", "an in-graph rewrite with the same values", same_values),
    ("dont-care", "padding that is declared not to matter", dont_care_padding),
    ("counter", "an in-graph counter that is read back", counter),
    ("shrinking-batches", "batch 8, then 2, then 8 over one indptr", shrinking_batches),
)

CASES = tuple(Case(id=f"C-{name}", title=title, report="control", program=run) for name, title, run in _CONTROLS)
