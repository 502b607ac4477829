"""The steady state on a device: the mode leaves the thread, and what an operator breaks meanwhile is found."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from helpers_cuda import capture, guarded, only
from torch.utils._python_dispatch import _get_current_dispatch_mode

import shadowgraph as sg
from shadowgraph.monitor.sampling import observation

pytestmark = pytest.mark.gpu
QUIET, WINDOW, PERIOD = 8, 6, 12
SPILL = r"""extern "C" __global__ void spill(int* x, int count) { x[count] = 7; }"""


@pytest.fixture
def debugger(monkeypatch: pytest.MonkeyPatch) -> Iterator[sg.Debugger]:
    for name, value in (
        ("QUIET", QUIET),
        ("WINDOW", WINDOW),
        ("PERIOD", PERIOD),
        ("LONGEST", 1),
        ("LOOKS_APART", (1, 1)),
    ):
        monkeypatch.setattr(observation, name, value)
    with sg.debug(backend="cuda", watch_eager="sampled") as made:
        yield made


@pytest.fixture
def spill() -> Iterator[object]:
    """An operator whose kernel nobody but the dispatcher sees; it writes one element behind what it was given."""
    import cupy as cp

    kernel = cp.RawKernel(SPILL, "spill")
    kernel.compile()

    def run(x: torch.Tensor) -> None:
        stream = cp.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream)
        kernel((1,), (1,), (cp.uint64(x.data_ptr()), cp.int32(x.numel())), stream=stream)

    library = torch.library.Library("naps_cuda", "DEF")
    library.define("spill(Tensor(a!) x) -> ()")
    library.impl("spill", run, "CUDA")
    yield torch.ops.naps_cuda.spill
    library._destroy()


def is_watched() -> bool:
    return _get_current_dispatch_mode() is not None


def test_a_clean_program_that_refreshes_unseen_is_silent(debugger: sg.Debugger) -> None:
    lens, indptr = guarded(debugger, 4), guarded(debugger, 5)
    debugger.name("indptr", indptr)
    graph, total = capture(lambda: indptr[1:].copy_(lens.cumsum(0)).sum())
    watched = []
    for at in range(QUIET + 4 * (WINDOW + PERIOD)):
        lens.copy_(torch.arange(at, at + 4, dtype=torch.int32))
        indptr.zero_()
        indptr[1:] = lens.cumsum(0)  # the host's own, which passes unseen for most replays
        assert indptr.tolist()[-1] == 4 * at + 6
        graph.replay()
        assert int(total) == 10 * at + 10
        watched.append(is_watched())
    assert watched.count(False) == 4 * PERIOD + 1, "the last one begins a steady period"
    assert debugger.check() == ()
    assert debugger.facts().faults == {}


def test_what_an_operator_breaks_in_a_nap_is_named_when_it_happens_again(debugger: sg.Debugger, spill: object) -> None:
    table = guarded(debugger, 64)
    graph, _ = capture(lambda: table.sum())
    for _ in range(QUIET + 2):
        graph.replay()
    assert not is_watched()
    for _ in range(6):
        spill(table)  # type: ignore[operator]
        graph.replay()
        torch.cuda.synchronize()
    found = only(debugger.check())
    assert (found.code, found.past_end, found.phase) == ("SG101", 4, "prepare")
    assert (found.culprit.name, found.culprit.status) == ("naps_cuda.spill.default", "confirmed")
    assert is_watched()
