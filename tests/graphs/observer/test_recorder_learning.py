"""What a capture takes from an earlier one, and teaches later ones: only of the operators before the two parted."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType

import pytest
import torch
from observer.recording_bench import CapturingDriver

from shadowgraph.common.internal_errors import internal_errors
from shadowgraph.graphs.observer import recorder as recorder_module
from shadowgraph.graphs.observer.library import Library
from shadowgraph.graphs.observer.recording import Recording, Taught


class Runner:
    """Captures by the same code, each taught by those before it."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.taught: tuple[Taught, ...] = ()
        self.count = 0

    def captures(self, function: Callable[[torch.Tensor, bool], None], *ways: bool) -> list[Recording]:
        """By one line, as in a loop over batch sizes."""
        x = torch.ones(4)
        return [self.capture(partial(function, x, way)) for way in ways]

    def capture(self, run: Callable[[], object]) -> Recording:
        self.count += 1
        with CapturingDriver().recording(self.library, taught=self.taught) as recorder:
            run()
        more, made = recorder.teaches(f"graph#{self.count}"), recorder.recording()
        recorder.release()
        self.taught = (*self.taught, more) if more is not None else self.taught
        return made


def lines(made: Recording, function: Callable[..., object]) -> list[int | None]:
    """The line within a function that each operator has; None for none."""
    first = inspect.getsourcelines(function)[1]
    found = [[each for each in node.launch.stack if each.function == function.__name__] for node in made.nodes()]
    return [each[0].line - first if each else None for each in found]


def learnt_from(made: Recording) -> list[str]:
    return [node.launch.learnt_from for node in made.nodes()]


def parting(x: torch.Tensor, extra: bool) -> None:
    for _ in range(10):
        x.add_(1)
    if extra:
        x.neg_()
    x.mul_(2)
    x.sub_(1)
    x.abs_()


ADDS = [2] * 10


def test_no_stack_is_taught_of_an_operator_after_those_that_agreed(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second capture has no stack of its own for `sub_`; the first one's operator of that number is another."""
    calls: list[int] = []
    original = recorder_module.gather

    def gather() -> object:
        calls.append(1)
        if len(calls) == 14 + 3:  # all of the first capture, then those of operators 0, 10 and 11
            raise ValueError("ours")
        return original()

    monkeypatch.setattr(recorder_module, "gather", gather)
    before = internal_errors.total
    first, later, last = Runner(library).captures(parting, True, False, False)
    assert internal_errors.total - before == 1
    assert lines(first, parting) == [*ADDS, 4, 5, 6, 7]
    assert lines(later, parting) == [*ADDS, 5, None, 7]
    assert lines(last, parting) == [*ADDS, 5, 6, 7]


def test_each_line_names_the_graph_that_it_was_seen_in(library: Library) -> None:
    _, later, last = Runner(library).captures(parting, True, False, False)
    assert learnt_from(later) == ["", *["graph#1"] * 9, "", "", ""]
    assert learnt_from(last) == ["", *["graph#1"] * 9, *["graph#2"] * 3]
    assert lines(last, parting) == [*ADDS, 5, 6, 7]


def long_tail(x: torch.Tensor, extra: bool) -> None:
    for _ in range(20):
        x.add_(1)
    if extra:
        x.sub_(1)
    for _ in range(40):
        x.mul_(1)
        x.div_(1)


@pytest.mark.parametrize("ways", [(True, False, False, True, False), (False, True, True, False)])
def test_what_agreed_stays_learnt_however_much_follows(library: Library, ways: tuple[bool, ...]) -> None:
    """Stacks behind the operator that differs are compared with none of the earlier capture's."""
    for extra, made in zip(ways, Runner(library).captures(long_tail, *ways), strict=True):
        assert lines(made, long_tail) == [2] * 20 + [4] * extra + [6, 7] * 40
    assert learnt_from(made)[1] == "graph#1"


def test_an_operator_that_runs_while_another_gets_its_stack(library: Library) -> None:
    """As in a signal handler, or in a second thread, between any two calls."""
    x, inside, ran = torch.ones(4), torch.ones(4), list[str]()

    def profile(frame: FrameType, event: str, argument: object) -> None:
        if frame.f_code is recorder_module._Stacks.keep.__code__ and event in ("c_call", "c_return"):
            sys.setprofile(None)
            ran.append(event)
            inside.neg_()
            sys.setprofile(profile)

    def program() -> None:
        sys.setprofile(profile)
        x.add_(1)
        x.mul_(2)
        sys.setprofile(None)

    made = Runner(library).capture(program)
    found = [(node.launch.name, node.launch.stack[0].function) for node in made.nodes()]
    assert ran, "invalid: nothing ran meanwhile"
    assert {each for each in found if "neg" not in each[0]} == {
        ("aten.add_.Tensor", "program"), ("aten.mul_.Tensor", "program"),
    }  # fmt: skip
    assert {function for name, function in found if "neg" in name} == {"profile"}
