"""Names in SG105: the tensor that was written goes by names of its own, never by those of a storage that was made over
the same bytes for the tensor before it."""

from __future__ import annotations

import ctypes

import pytest
import torch
from captures import silent
from pools import Piece, source, weak
from programs import only

import shadowgraph as sg
from shadowgraph.checks.pool_clobber.facts import ClobberDetail

pytestmark = pytest.mark.parametrize("layout", ["isolate", "faithful"])


def by_address(tensor: torch.Tensor) -> torch.Tensor:
    array = (ctypes.c_char * (tensor.numel() * tensor.element_size())).from_address(tensor.data_ptr())
    return torch.frombuffer(array, dtype=tensor.dtype).view(tensor.shape)


MADE = {"frombuffer": by_address, "set_": weak}


class Engine:
    """A draft graph whose output is kept by its address, and a verify graph that gets its block."""

    def __init__(self) -> None:
        self.pool, self.given = sg.graph_pool_handle(), source()
        self.hidden: torch.Tensor | None = None
        self.logits: torch.Tensor | None = None

    def build(self, made: str, keeps: bool) -> None:
        self.draft, self.verify = sg.HostGraph(), sg.HostGraph()
        with sg.host_graph(self.draft, pool=self.pool):
            output = self.given * 2
        self.hidden, address = MADE[made](output), output.data_ptr()
        del output
        with sg.host_graph(self.verify, pool=self.pool):
            logits = self.given * 3
            self.total = logits.sum()
            if keeps:
                self.logits = logits
        assert logits.data_ptr() == address, "invalid: another block"

    def step(self) -> None:
        self.draft.replay()
        self.verify.replay()
        assert self.hidden is not None
        self.hidden.sum()


def names_told(debugger: sg.Debugger) -> tuple[str, str]:
    """Names of the tensor that was read, and of the one that was written."""
    found = only(debugger.findings)
    assert (found.code, found.severity, found.culprit.name) == ("SG105", "error", "aten.mul.Tensor")
    assert isinstance(found.detail, ClobberDetail)
    assert debugger.facts().faults == {}
    assert f"writes {found.detail.by.name} over {found.buffer.name}" in found.message
    return found.buffer.name, found.detail.by.name


@pytest.mark.parametrize("made", MADE)
def test_a_tensor_that_the_program_holds_under_a_name(layout: str, made: str) -> None:
    with sg.debug(layout=layout) as debugger:
        engine = Engine()
        debugger.name("engine", engine)
        engine.build(made, keeps=True)
        engine.step()
        assert names_told(debugger) == ("engine.hidden", "engine.logits")


@pytest.mark.parametrize("made", MADE)
def test_a_tensor_that_ended_with_its_capture(layout: str, made: str) -> None:
    with sg.debug(layout=layout) as debugger:
        engine = Engine()
        debugger.name("engine", engine)
        engine.build(made, keeps=False)
        engine.step()
        _, by = names_told(debugger)
    assert by.startswith("float32[64] from test_pool_clobber_names.py:")


@pytest.mark.parametrize("made", MADE)
def test_names_that_are_read_once(layout: str, made: str) -> None:
    """A dictionary is not walked again: its tensors belong to what had their bytes when they were made."""
    with sg.debug(layout=layout, variable_names=False) as debugger:
        engine = Engine()
        engine.build(made, keeps=True)
        debugger.name("kept", {"hidden": engine.hidden})
        engine.step()
        assert names_told(debugger)[1].startswith("float32[64] from test_pool_clobber_names.py:")


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("made", MADE)
def test_names_of_variables(layout: str, made: str, keeps: bool) -> None:
    with sg.debug(layout=layout) as debugger:
        e = Engine()
        e.build(made, keeps)
        e.step()
        read, by = names_told(debugger)
    assert read == "e.hidden"
    assert by == "e.logits" if keeps else by.startswith("float32[64] from test_pool_clobber_names.py:")


def test_names_of_two_weak_outputs_in_one_block(layout: str) -> None:
    with sg.debug(layout=layout) as debugger:
        pool = sg.graph_pool_handle()
        first, second = Piece(source(), 2, pool), Piece(source(), 3, pool)
        assert second.output.data_ptr() == first.output.data_ptr(), "invalid: another block"
        debugger.name("a", first)
        debugger.name("second", second)
        first.replay()
        second.replay()
        first.output.tolist()
        assert names_told(debugger) == ("a.output", "second.output")


def test_its_fixed_twin(layout: str) -> None:
    """The output is read before the other graph replays."""
    with sg.debug(layout=layout) as debugger:
        engine = Engine()
        debugger.name("engine", engine)
        engine.build("set_", keeps=True)
        for _ in range(3):
            engine.draft.replay()
            assert engine.hidden is not None
            assert torch.equal(engine.hidden, engine.given * 2)
            engine.verify.replay()
        assert silent(debugger)
        debugger.names.refresh(anew=True)
        paths = {owner.path for group in debugger.names.groups() for owner in group}
    assert {"engine.hidden", "engine.logits"} <= paths, "they have the same bytes"
