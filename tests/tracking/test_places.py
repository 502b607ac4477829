"""Names found when they are needed: variables of modules and frames, without keeping anything alive."""

from __future__ import annotations

import gc
import sys
import threading
import types
import weakref
from collections.abc import Iterator

import pytest
import torch

import shadowgraph as sg
from shadowgraph import Debugger
from shadowgraph.model.buffers import Buffer
from shadowgraph.tracking.variable_names import VariableNames


class Holder:
    def __init__(self) -> None:
        self.parts = {"table": torch.zeros(8)}

    def named_inside(self, debugger: Debugger) -> str:
        return name_of(debugger, self.parts["table"])


@pytest.fixture
def debugger() -> Iterator[Debugger]:
    with sg.debug(guard_eager="all") as made:
        yield made


def buffer_of(debugger: Debugger, tensor: torch.Tensor) -> Buffer:
    (found,) = [buffer for buffer in debugger.buffers if buffer.start == tensor.data_ptr()]
    return found


def name_of(debugger: Debugger, tensor: torch.Tensor) -> str:
    found = buffer_of(debugger, tensor)
    del tensor
    VariableNames(debugger.names).find(found)
    return debugger.names.name_of(found)[0]


def test_a_variable_of_a_frame_names_a_buffer(debugger: Debugger) -> None:
    runner = Holder()
    found = buffer_of(debugger, runner.parts["table"])
    VariableNames(debugger.names).find(found)
    assert debugger.names.name_of(found)[0] == 'runner.parts["table"]'


def test_self_is_called_by_its_class(debugger: Debugger) -> None:
    assert "Holder.parts" in Holder().named_inside(debugger)


def test_a_global_of_the_module_that_allocated_comes_first(debugger: Debugger) -> None:
    module = types.ModuleType("allocating")
    module.__file__ = "/somewhere/allocating.py"
    sys.modules["allocating"] = module
    try:
        exec(compile("import torch\nserver = [torch.ones(6)]", module.__file__, "exec"), vars(module))
        found = buffer_of(debugger, module.server[0])
        VariableNames(debugger.names).find(found)
        assert debugger.names.name_of(found)[0] == "server[0]"
    finally:
        del sys.modules["allocating"]


def test_frames_of_other_threads_are_searched(debugger: Debugger) -> None:
    ready, done = threading.Event(), threading.Event()
    places = []

    def work(elsewhere: list[torch.Tensor]) -> None:
        places.append(elsewhere[0].data_ptr())
        ready.set()
        done.wait(60)

    thread = threading.Thread(target=work, args=([torch.ones(5)],))
    thread.start()
    ready.wait(60)
    (found,) = [buffer for buffer in debugger.buffers if buffer.start == places[0]]
    VariableNames(debugger.names).find(found)
    done.set()
    thread.join()
    assert debugger.names.name_of(found)[0] == "elsewhere[0]"


def test_a_buffer_without_a_variable_keeps_its_line(debugger: Debugger) -> None:
    found = buffer_of(debugger, torch.ones(9))
    VariableNames(debugger.names).find(found)
    assert debugger.names.name_of(found)[0].startswith("float32[9] from test_places.py:")


def test_nothing_is_kept_alive(debugger: Debugger) -> None:
    runner: Holder | None = Holder()
    held = weakref.ref(runner)
    assert runner is not None
    found = buffer_of(debugger, runner.parts["table"])
    VariableNames(debugger.names).find(found)
    runner = None
    gc.collect()
    assert held() is None
    assert not found.alive


def test_callers_keep_no_variable_beyond_their_end(debugger: Debugger) -> None:
    """Not even until the garbage collector comes."""

    def look() -> Buffer:
        kept = Holder()
        found = buffer_of(debugger, kept.parts["table"])
        VariableNames(debugger.names).find(found)
        return found

    gc.collect()
    gc.disable()
    try:
        assert not look().alive
    finally:
        gc.enable()


def test_half_of_the_time_is_kept_for_findings(debugger: Debugger) -> None:
    runner = Holder()
    found = buffer_of(debugger, runner.parts["table"])
    finder = VariableNames(debugger.names)
    finder._left = finder._kept
    finder.find_new([found])
    assert not debugger.names.name_of(found)[1]
    finder.find(found)
    assert debugger.names.name_of(found)[0] == 'runner.parts["table"]'


def test_no_time_no_names(debugger: Debugger) -> None:
    runner = Holder()
    found = buffer_of(debugger, runner.parts["table"])
    VariableNames(debugger.names, seconds=0).find(found)
    assert not debugger.names.name_of(found)[1]


def test_each_new_buffer_is_tried_once(debugger: Debugger) -> None:
    finder = VariableNames(debugger.names)
    found = buffer_of(debugger, torch.ones(9))
    finder.find_new([found])
    late = [found]  # a variable that leads to it, too late for a second search
    finder.find_new(late)
    assert not debugger.names.name_of(found)[1]


def test_two_objects_under_one_variable_keep_names_of_their_own(debugger: Debugger) -> None:
    finder = VariableNames(debugger.names)
    both = [Holder(), Holder()]
    found = [buffer_of(debugger, each.parts["table"]) for each in both]
    for runner, buffer in zip(list(both), found, strict=True):
        holders, both = both, []  # `runner` alone leads to it
        finder.find(buffer)
        both = holders
        del holders, runner
    names = [debugger.names.name_of(buffer)[0] for buffer in found]
    assert len(set(names)) == 2
    assert all(debugger.names.name_of(buffer)[1] for buffer in found)


def test_a_former_name_counts_once_the_buffer_is_gone(debugger: Debugger) -> None:
    finder = VariableNames(debugger.names)
    runner = Holder()
    found = buffer_of(debugger, runner.parts["table"])
    finder.note_former([found])
    assert not debugger.names.name_of(found)[1], "while it lives, whoever leads to it when asked names it"
    runner.parts.clear()
    assert not found.alive
    assert debugger.names.name_of(found)[0] == 'runner.parts["table"]'
