"""Programs that run without the debugger run with it: unusual operators, memory that moves, tensors without memory."""

from __future__ import annotations

import gc
import os
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support import warm
from torch._higher_order_ops import while_loop
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention.flex_attention import flex_attention

import shadowgraph as sg
from shadowgraph.common.errors import FreedInputError
from shadowgraph.engines.numpy_engine import NumpyEngine
from shadowgraph.graphs.dispatch.tensors import is_plain
from shadowgraph.model.buffers import Ledger
from shadowgraph.tracking.foreign import drop_stale, still_there, track_foreign

LARGE = 1 << 22  # bytes; from here on the allocator gives memory back to the system at once


def sparse() -> torch.Tensor:
    return torch.sparse_coo_tensor(torch.tensor([[0, 1], [1, 0]]), torch.tensor([1.0, 2.0]), (2, 2))


def cond() -> torch.Tensor:
    return torch.cond(torch.tensor(True), lambda x: x + 1, lambda x: x - 1, (torch.ones(2),))


def loop() -> torch.Tensor:
    return while_loop(lambda i: i < 3, lambda i: (i + 1,), (torch.tensor(0),))[0]


def flex() -> torch.Tensor:
    x = torch.arange(64.0).reshape(1, 1, 4, 16) / 64
    return flex_attention(x, x, x)


def sparse_out() -> torch.Tensor:
    out = sparse()
    torch.add(sparse(), sparse(), out=out)
    return out.to_dense()


def csr_resize() -> torch.Tensor:
    return torch.tensor(sparse().to_sparse_csr().resize_(3, 2).shape)


def traced() -> torch.Tensor:
    graph = make_fx(lambda x: (x + 1) * torch.ones(2) + torch.tensor([1.0, 2.0]))(torch.ones(2))
    return torch.tensor([len(graph.graph.nodes), *graph(torch.zeros(2)).tolist()])


@pytest.mark.parametrize("guarding", [False, True])
@pytest.mark.parametrize("program", [cond, loop, flex, sparse_out, csr_resize, traced], ids=lambda p: p.__name__)
@pytest.mark.filterwarnings("ignore")
def test_runs_as_without_the_debugger(program: Callable[[], torch.Tensor], guarding: bool) -> None:
    expected = program()
    with sg.debug(backend="host") as debugger:
        if guarding:
            with debugger.guard():
                result = program()
        else:
            result = program()
        faults = debugger.report(quiet=True).facts.faults
    assert torch.equal(result, expected)
    assert not faults


def no_memory() -> list[Any]:
    from torch._subclasses import FakeTensorMode
    from torch.testing._internal.two_tensor import TwoTensor

    with FakeTensorMode():
        fake = torch.ones(2)
    return [fake, torch._to_functional_tensor(torch.ones(2)), TwoTensor(torch.ones(2), torch.ones(2)), sparse()]


def test_tensors_that_stand_for_memory_are_not_plain() -> None:
    class Named(torch.Tensor):
        pass

    for tensor in no_memory():
        assert not is_plain(tensor), type(tensor)
    for tensor in (torch.ones(2), torch.nn.Parameter(torch.ones(2)), torch.ones(2).as_subclass(Named)):
        assert is_plain(tensor), type(tensor)
    seen = []
    torch.vmap(lambda x: (seen.append(is_plain(x)), x)[1])(torch.ones(2, 2))
    assert seen == [False]


CRASHED = {
    "fake": """
        from torch._subclasses import FakeTensorMode
        with debugger.guard(), FakeTensorMode():
            made = torch.ones(2) + 1
        assert type(made).__name__ == "FakeTensor"
    """,
    "cycle": """
        class Owner: pass
        owner = Owner()
        owner.me, owner.tensor = owner, torch.zeros(LARGE, dtype=torch.uint8)
        debugger.invariant(owner.tensor, "nondecreasing")
        del owner
        gc.collect()
        debugger.check()
    """,
    "emptied": """
        tensor = torch.zeros(LARGE, dtype=torch.uint8)
        debugger.protect(tensor)
        graph, output = sg.HostGraph(), torch.zeros(4)
        with sg.host_graph(graph):
            output.add_(1)
        graph.replay()
        tensor.untyped_storage().resize_(0)
        graph.replay()
    """,
    "grown": """
        tensor = torch.zeros(LARGE, dtype=torch.uint8)
        debugger.watch(tensor, "tensor")
        graph, output = sg.HostGraph(), torch.zeros(4)
        with sg.host_graph(graph):
            output.add_(1)
        graph.replay()
        between = torch.empty(LARGE, dtype=torch.uint8)
        tensor.resize_(4 * LARGE)
        graph.replay()
    """,
    "emptied in the graph": """
        tensor = torch.zeros(LARGE, dtype=torch.uint8)
        debugger.protect(tensor)
        graph, output = sg.HostGraph(), torch.zeros(4)
        with sg.host_graph(graph):
            output.add_(1)
            graph.call(lambda: tensor.untyped_storage().resize_(0))
        graph.replay()
    """,
    "shared": """
        tensor = torch.zeros(LARGE, dtype=torch.uint8)
        debugger.invariant(tensor, "nondecreasing")
        tensor.share_memory_()
        debugger.check()
    """,
    "emptied, then checked": """
        tensor = torch.zeros(LARGE, dtype=torch.uint8)
        debugger.invariant(tensor, "nondecreasing")
        tensor.untyped_storage().resize_(0)
        debugger.check()
    """,
}


@pytest.fixture(scope="module")
def survivors() -> tuple[list[str], str]:
    """Names of the programs above that ended without a finding, and what the process had to say.

    They run in one other process, in which the first one that crashes ends those after it.
    """
    lines = ["import faulthandler, gc, torch, shadowgraph as sg", "faulthandler.enable()", f"LARGE = {LARGE}"]
    for name, program in CRASHED.items():
        lines += [
            "with sg.debug(backend='host') as debugger:",
            textwrap.indent(textwrap.dedent(program), "    "),
            "    facts = debugger.report(quiet=True).facts",
            f"print({name!r} if not facts.findings and not facts.faults else facts, flush=True)",
        ]
    root = str(Path(sg.__file__).parents[1])
    command = [sys.executable, "-c", "\n".join(lines)]
    environment = {**os.environ, "PYTHONPATH": root}
    done = warm.run(command, environment)
    return done.stdout.splitlines(), f"exit status {done.returncode}: {done.stderr[:2000]}"


@pytest.mark.parametrize("name", CRASHED)
def test_survives(name: str, survivors: tuple[list[str], str]) -> None:
    names, said = survivors
    assert name in names, said


@pytest.mark.parametrize(
    "move",
    [
        lambda t: t.share_memory_(),
        lambda t: t.untyped_storage().resize_(0),
        lambda t: t.resize_(1000),
        lambda t: t.set_(torch.zeros(3)),
    ],
    ids=["shared", "emptied", "grown", "replaced"],
)
def test_the_entry_of_memory_that_moved_ends(move: Callable[[torch.Tensor], object]) -> None:
    ledger = Ledger()
    tensor, other = torch.zeros(8), torch.zeros(8)
    buffer, kept = track_foreign(ledger, tensor), track_foreign(ledger, other)
    version = ledger.version
    assert (drop_stale(ledger), ledger.version) == (0, version)
    move(tensor)
    assert not still_there(buffer)
    drop_stale(ledger)
    assert [*ledger] == [kept]
    assert ledger.version > version
    assert still_there(kept)
    assert drop_stale(ledger) == 0


def test_only_the_given_ledger_loses_entries() -> None:
    one, other = Ledger(), Ledger()
    tensor = torch.zeros(8)
    track_foreign(one, tensor)
    entry = track_foreign(other, tensor)
    tensor.share_memory_()
    assert drop_stale(one) == 1
    assert entry.alive
    assert not still_there(entry)


def test_moved_memory_is_entered_anew_where_it_lies_now() -> None:
    ledger = Ledger()
    tensor = torch.zeros(8)
    old = track_foreign(ledger, tensor)
    tensor.untyped_storage().resize_(16)  # same address or not, it is no longer what was entered
    new = track_foreign(ledger, tensor[:4])
    assert new is not old
    assert (new.start, new.nbytes) == (tensor.data_ptr(), 16)
    tensor.untyped_storage().resize_(8)
    gc.collect()
    assert not still_there(new)


def test_the_engine_reads_no_memory_that_has_gone() -> None:
    class Part:
        buffer = track_foreign(Ledger(), gone := torch.zeros(8))

    engine = NumpyEngine(0)
    shadow = engine.shadow([(Part, Part.buffer.range)])
    engine.check("take", (), take=shadow)
    assert shadow.copies is not None
    assert shadow.copies[0] is not None
    Part.gone.untyped_storage().resize_(0)
    engine.check("after", (), compare=shadow)
    assert engine.poll() == []
    engine.check("take", (), take=shadow)
    assert shadow.copies == (None,)


@pytest.mark.parametrize("grow", [lambda t: t.resize_(4 * LARGE), lambda t: t.untyped_storage().resize_(0)])
def test_a_graph_refuses_an_input_that_was_resized(grow: Callable[[torch.Tensor], object]) -> None:
    tensor, graph = torch.zeros(LARGE, dtype=torch.uint8), sg.HostGraph()
    with sg.host_graph(graph):
        tensor.add_(1)
    graph.replay()
    assert int(tensor[-1]) == 1
    grow(tensor)
    with pytest.raises(FreedInputError, match=r"uint8\[4194304\] read by node 0 .* was resized or moved"):
        graph.replay()
