"""What must not go wrong around a recording: exceptions of signal handlers, lifetimes, TorchScript, other layouts."""

from __future__ import annotations

import gc
import signal
import sys
import time
import weakref
from collections.abc import Callable, Iterator

import pytest
import torch
from observer.recording_bench import CapturingDriver, recorded

from shadowgraph.common import interrupts
from shadowgraph.common.internal_errors import internal_errors
from shadowgraph.graphs.observer import building
from shadowgraph.graphs.observer import recorder as recorder_module
from shadowgraph.graphs.observer.library import Library, loaded
from shadowgraph.graphs.observer.recorder import CaptureRecorder
from shadowgraph.graphs.observer.recording import Recording, Taught

Operator = Callable[[torch.Tensor, Callable[[], object]], torch.Tensor]


@pytest.fixture
def library(cached: object) -> Iterator[Library]:
    found = loaded(building.library())
    before, failures = found.captures.shadowgraph_captures_known(), found.failures.value
    yield found
    gc.collect()
    assert found.captures.shadowgraph_captures_known() <= before, "a recording is left"
    assert found.failures.value == failures


@pytest.fixture
def driver() -> CapturingDriver:
    return CapturingDriver()


@pytest.fixture(scope="module")
def composite() -> Operator:
    """An operator that consists of others, which a function of the test's calls."""
    body: list[Callable[[], object]] = []
    operators = torch.library.Library("shadowgraph_test", "FRAGMENT")
    operators.define("made_of(Tensor x) -> Tensor")

    def made_of(x: torch.Tensor) -> torch.Tensor:
        body[0]()
        return x.mul(2)

    operators.impl("made_of", made_of, "CompositeImplicitAutograd")

    def run(x: torch.Tensor, inside: Callable[[], object]) -> torch.Tensor:
        body[:] = [inside]
        made: torch.Tensor = torch.ops.shadowgraph_test.made_of(x)
        return made

    run.library = operators  # type: ignore[attr-defined]
    return run


# -- exceptions -------------------------------------------------------------------------------------------------


class Expired(Exception):
    """What a handler of the program raises."""


@pytest.fixture
def interrupting(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A signal comes while Python takes the stack of the second operator."""
    calls: list[int] = []
    before = signal.getsignal(signal.SIGUSR1)

    def gather() -> object:
        calls.append(1)
        if len(calls) == 2:
            signal.raise_signal(signal.SIGUSR1)
        return original()

    original = recorder_module.gather
    monkeypatch.setattr(recorder_module, "gather", gather)
    interrupts.install()
    yield
    interrupts.uninstall()
    signal.signal(signal.SIGUSR1, before)


def wait(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.001)


@pytest.mark.parametrize("raised", [Expired("time is up"), KeyboardInterrupt(), SystemExit(3)], ids=repr)
def test_what_a_signal_handler_raises_during_a_stack_reaches_the_program(
    library: Library, driver: CapturingDriver, interrupting: None, raised: BaseException
) -> None:
    def handler(number: int, frame: object) -> None:
        raise raised

    signal.signal(signal.SIGUSR1, handler)
    x, faults = torch.zeros(4), internal_errors.total
    with driver.recording(library) as recorder:
        with pytest.raises(type(raised)) as caught:
            x.add_(1)
            x.add_(2)
            wait(5)
        x.add_(4)
    assert caught.value.args == raised.args
    assert (x.tolist(), internal_errors.total) == ([7.0] * 4, faults), "the operators ran, and it is no fault of ours"
    assert [bool(node.launch.stack) for node in recorder.recording().nodes()] == [True, False, True]
    recorder.release()


def test_what_is_raised_before_the_first_line_of_the_callback_reaches_the_program(
    library: Library, driver: CapturingDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python may run a handler where nothing can catch what it raises: it goes to `sys.unraisablehook`."""
    before = signal.getsignal(signal.SIGUSR1)

    def handler(number: int, frame: object) -> None:
        raise Expired("time is up")

    def keep(self: object, number: int) -> int:
        signal.raise_signal(signal.SIGUSR1)
        return -1

    keep.__module__ = recorder_module.__name__
    monkeypatch.setattr(recorder_module._Stacks, "keep", keep)
    signal.signal(signal.SIGUSR1, handler)
    interrupts.install()
    try:
        x = torch.zeros(4)
        with driver.recording(library) as recorder, pytest.raises(Expired, match="time is up"):
            x.add_(1)
            wait(5)
    finally:
        interrupts.uninstall()
        signal.signal(signal.SIGUSR1, before)
    assert x.tolist() == [1.0] * 4
    recorder.release()


def test_an_exception_on_its_way_stays(library: Library, driver: CapturingDriver) -> None:
    """Operators run while an exception is handled, in destructors too."""
    x = torch.zeros(4)

    class Ending:
        def __del__(self) -> None:
            x.add_(1)

    with driver.recording(library) as recorder:
        with pytest.raises(ZeroDivisionError):
            ending = Ending()
            1 / (0 * len([ending]))
        del ending
    assert len(recorder.recording().nodes()) == 1
    recorder.release()


def test_a_fault_of_ours_is_counted_and_the_operator_has_no_line(
    library: Library, driver: CapturingDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gather() -> object:
        raise ValueError("ours")

    monkeypatch.setattr(recorder_module, "gather", gather)
    before, x = internal_errors.total, torch.zeros(4)
    (node,) = recorded(library, lambda: x.add_(1)).nodes()
    assert (node.launch.name, node.launch.stack) == ("aten.add_.Tensor", ())
    assert internal_errors.total - before == 1


# -- lifetimes --------------------------------------------------------------------------------------------------


def test_a_recording_may_end_while_it_takes_a_stack(
    library: Library, driver: CapturingDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[CaptureRecorder] = []
    original = recorder_module.gather

    def gather() -> object:
        held.clear()
        gc.collect()
        return original()

    with driver.recording(library) as recorder:
        held.append(recorder)
        monkeypatch.setattr(recorder_module, "gather", gather)
        x = torch.zeros(4)
        recorder.release()
        del recorder
        x.add_(1)
    assert not held


def test_what_was_recorded_does_not_keep_the_recorder(library: Library, driver: CapturingDriver) -> None:
    """It lives as long as the graph; its names, stacks and owners are all that it needs."""
    with driver.recording(library) as recorder:
        driver.nodes += 1
        recorder.mark("a C function", ())
        torch.zeros(4).add_(1)
    made, alive = recorder.recording(), weakref.ref(recorder)
    recorder.release()
    del recorder
    assert alive() is None
    assert ([owner for _, owner in made.log], len(made.nodes())) == (["a C function"], 2)


def test_a_recording_may_end_inside_of_an_operator(
    library: Library, driver: CapturingDriver, composite: Operator
) -> None:
    made = CaptureRecorder(library, 7, torch.device("cpu"), driver.question, True)

    def inside() -> None:
        made.release()
        driver.nodes += 1

    x = composite(torch.ones(4), inside)
    assert x.tolist() == [2.0] * 4


def test_what_is_asked_of_a_recording_that_has_ended(library: Library, driver: CapturingDriver) -> None:
    with driver.recording(library) as recorder:
        torch.zeros(4).add_(1)
    number = recorder.begin()
    recorder.release()
    recorder.end(number)
    recorder.mark("a C function", ())
    recorder.stop()
    recorder.release()
    assert (recorder.begin(), recorder.open, recorder.advanced()) == (0, 0, None)
    assert (list(recorder.inputs()), recorder.recording().nodes(), recorder.teaches("graph#1")) == ([], [], None)


def test_a_recording_that_ends_after_the_modules(
    library: Library, driver: CapturingDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda told: raised.append(told.exc_value))
    with driver.recording(library) as recorder:
        torch.zeros(4)
    for name in [name for name in vars(recorder_module) if not name.startswith("__")]:
        monkeypatch.setattr(recorder_module, name, None)
    del recorder
    assert not raised


def test_no_recording_is_on_after_the_last_one(library: Library, driver: CapturingDriver) -> None:
    """One that could not begin, and those that were never ended, leave room for others."""
    for _ in range(40):
        CaptureRecorder(library, 7, torch.device("cpu"), driver.question, True)
    driver.graph = 0
    with pytest.raises(RuntimeError):
        CaptureRecorder(library, 7, torch.device("cpu"), driver.question, True)


# -- which operators and tensors --------------------------------------------------------------------------------


def told(made: Recording) -> list[tuple[str, list[tuple[str, str]]]]:
    return [(n.launch.name, [(p.argument, p.access.value) for p in n.launch.pointers]) for n in made.nodes()]


def test_what_torchscript_has_on_its_stack_is_no_result(library: Library) -> None:
    """It gives the whole stack after an operator: here `y`, which is there for the next one."""

    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.add(y, torch.mul(x, x))

    compiled = torch.jit.script(program)
    x, y = torch.ones(4), torch.ones(4)
    for _ in range(3):
        compiled(x, y)
    made = recorded(library, lambda: compiled(x, y))
    assert [(name, args) for name, args in told(made) if name.startswith(("aten.mul", "aten.add"))] == [
        ("aten.mul.Tensor", [("self", "read"), ("other", "read"), ("result", "write")]),
        ("aten.add.Tensor", [("self", "read"), ("other", "read"), ("result", "write")]),
    ]
    assert y.data_ptr() not in dict(made)


def test_an_operator_that_consists_of_others_has_its_own_stack(
    library: Library, driver: CapturingDriver, composite: Operator
) -> None:
    """It has no number: its stack is no other operator's."""
    x, taught, stacks = torch.ones(4), tuple[Taught, ...](), list[set[int]]()

    def run() -> None:
        for _ in range(3):
            x.add_(1)
        composite(x, lambda: setattr(driver, "nodes", driver.nodes + 1))

    for _ in range(2):
        with driver.recording(library, taught=taught) as recorder:
            run()
        stacks.append(set(recorder._stacks.by_operator))
        taught = tuple(filter(None, (*taught, recorder.teaches("graph#1"))))
        made = recorder.recording()
        recorder.release()
    assert stacks == [{0, 1, 2, 3}, {0}]
    lines = [(node.launch.name, node.launch.stack[0].function) for node in made.nodes()]
    assert lines[-2:] == [("aten.mul.Tensor", "made_of"), ("shadowgraph_test.made_of.default", "run")]


def sparse(layout: torch.layout) -> torch.Tensor:
    return torch.eye(4).to_sparse(layout=layout)


@pytest.mark.parametrize(
    ("layout", "parts"),
    [
        (torch.sparse_coo, ("indices", "values")),
        (torch.sparse_csr, ("compressed_indices", "plain_indices", "values")),
        (torch.sparse_csc, ("compressed_indices", "plain_indices", "values")),
    ],
)
def test_a_sparse_tensor_is_told_by_its_parts(
    library: Library, driver: CapturingDriver, layout: torch.layout, parts: tuple[str, ...]
) -> None:
    table, x = sparse(layout), torch.ones(4, 4)
    with driver.recording(library, keep=False) as recorder:
        torch.mm(table, x)
    _, pointers = next(each for each in told(recorder.recording()) if "mm" in each[0])
    given = [argument for argument, _ in pointers]
    first = given[0].split(".")[0]
    assert given[: len(parts)] == [f"{first}.{part}" for part in parts]
    assert {access for argument, access in pointers if argument.startswith(first)} == {"read"}
    values = table.values() if layout is not torch.sparse_coo else table._values()
    assert values.untyped_storage().data_ptr() in {tensor.storage for tensor, _ in recorder.inputs()}
    recorder.release()


def test_a_sparse_result_and_a_sparse_tensor_that_is_written(library: Library) -> None:
    table, kept = sparse(torch.sparse_coo).coalesce(), list[torch.Tensor]()
    made = recorded(library, lambda: table.mul_(2))
    written = [argument for _, pointers in told(made) for argument, access in pointers if access != "read"]
    assert any(argument.endswith(".values") for argument in written)
    made = recorded(library, lambda: kept.append(torch.eye(4).to_sparse()))
    parts = {kept[0]._indices().data_ptr(), kept[0]._values().data_ptr()}
    assert parts <= set(made), "what the capture made"


def test_a_nested_tensor_is_told_by_its_buffer(library: Library, driver: CapturingDriver) -> None:
    rows = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)])
    with driver.recording(library, keep=False) as recorder:
        rows.mul_(2)
    name, pointers = told(recorder.recording())[0]
    assert (name.rpartition(".")[0], pointers[0]) == ("aten.mul_", ("self.buffer", "read_write"))
    recorder.release()
