"""Ways to hold an output of a graph without owning it: for SG105 it counts when that was made."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
import torch
from numpy.ctypeslib import as_array
from pools import ELEMENTS, Piece, source, weak
from programs import only

import shadowgraph as sg

pytestmark = pytest.mark.parametrize("layout", ["isolate", "faithful"])
MADE = {
    "set_": weak,
    "frombuffer": lambda t: torch.frombuffer(
        (ctypes.c_char * 4 * ELEMENTS).from_address(t.data_ptr()), dtype=torch.float32
    ),
    "from_numpy": lambda t: torch.from_numpy(array_at(t.data_ptr())),
    "as_tensor": lambda t: torch.as_tensor(array_at(t.data_ptr())),
    "from_dlpack": lambda t: torch.from_dlpack(array_at(t.data_ptr())),
}


def array_at(address: int) -> np.ndarray[Any, Any]:
    return as_array((ctypes.c_float * ELEMENTS).from_address(address))


@pytest.mark.parametrize("inside", [True, False], ids=["made in the capture", "made after it"])
@pytest.mark.parametrize("made", MADE)
def test_ways_to_hold_memory_weakly(layout: str, made: str, inside: bool) -> None:
    """It is first read when another tensor of the same form has had the block, too."""
    with sg.debug(layout=layout) as debugger:
        pool, given, first = sg.graph_pool_handle(), source(), sg.HostGraph()
        with sg.host_graph(first, pool=pool):
            output = given * 2
            if inside:
                held = MADE[made](output)
                del output
        if not inside:
            held = MADE[made](output)
            del output
        second = Piece(given, 3, pool)
        assert second.output.data_ptr() == held.data_ptr(), "invalid: another block"
        first.replay()
        assert held.sum() == given.sum() * 2
        assert debugger.findings == ()
        second.replay()
        held.sum()
        found = only(debugger.findings)
    assert (found.code, found.graph) == ("SG105", second.graph.model.name)
    assert found.detail.owner == first.model.name


@pytest.mark.parametrize("late", [False, True], ids=["read at once", "read after the other graph"])
@pytest.mark.parametrize("made", MADE)
def test_ways_to_hold_memory_weakly_after_each_replay(layout: str, made: str, late: bool) -> None:
    """Engines keep the address of an output and make a tensor of it when its graph has replayed: it is of that graph,
    though another one has had a tensor there since."""
    with sg.debug(layout=layout) as debugger:
        pool, given, first = sg.graph_pool_handle(), source(), sg.HostGraph()
        with sg.host_graph(first, pool=pool):
            output = given * 2
        kept = MADE[made](output)  # without a replay: the block is the output's
        del output
        second = sg.HostGraph()
        with sg.host_graph(second, pool=pool):
            other = given * 3
            total = other.sum()
            assert other.data_ptr() == kept.data_ptr(), "invalid: another block"
            del other
        for _ in range(3):
            first.replay()
            held = MADE[made](kept)
            if not late:
                assert held.sum() == given.sum() * 2
            second.replay()
            assert total == given.sum() * 3
            if late:
                held.sum()
                break
        if not late:
            assert debugger.findings == ()
            return
        found = only(debugger.findings)
    assert (found.code, found.graph) == ("SG105", second.model.name)
    assert found.detail.owner == first.model.name
