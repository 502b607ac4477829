"""Captures that are recorded in C++: the same operators, tensors and owners of nodes as a dispatch mode notes."""

from __future__ import annotations

import gc
import inspect
import os
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from observer.recording_bench import GRAPH, CapturingDriver, recorded
from torch.utils._python_dispatch import TorchDispatchMode

from shadowgraph.graphs.dispatch.schemas import schema_of
from shadowgraph.graphs.dispatch.tensors import named_tensors, tensors_in
from shadowgraph.graphs.observer.library import Library
from shadowgraph.graphs.observer.recorder import CaptureRecorder
from shadowgraph.graphs.observer.recording import Recording
from shadowgraph.model.views import TensorView

Told = tuple[str, list[tuple[str, str, TensorView]]]


@pytest.fixture
def driver() -> CapturingDriver:
    return CapturingDriver()


class Noted(TorchDispatchMode):
    """What a dispatch mode sees of operators that are no views, as `CaptureMode` tells it."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[Told] = []
        self.kept: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        self.kept.append((args, kwargs, results))
        schema = schema_of(func)
        if func.is_view or schema.pure_view:
            return results
        inputs = [(name, t) for name, t in named_tensors(schema.names, args, kwargs or {}) if t.numel()]
        known = {t.untyped_storage().data_ptr() for _, t in inputs}
        pointers = [(name, schema.access(name).value, TensorView.of(t)) for name, t in inputs]
        fresh = [t for t in tensors_in(results) if t.numel() and t.untyped_storage().data_ptr() not in known]
        self.told.append((schema.name, pointers + [("result", "write", TensorView.of(t)) for t in fresh]))
        return results


def told(recording: Recording) -> list[Told]:
    nodes = [node.launch for node in recording.nodes()]
    return [(launch.name, [(p.argument, p.access.value, p.view) for p in launch.pointers]) for launch in nodes]


def arithmetic(x: torch.Tensor) -> None:
    x.add_(1).mul_(x.t().clone()).clamp_(min=0)
    torch.add(x, x, out=torch.empty_like(x))


def layers(x: torch.Tensor) -> None:
    y = torch.nn.functional.linear(x, torch.ones(4, 4))
    y = torch.nn.functional.layer_norm(y.reshape(2, 8), (8,)).transpose(0, 1).contiguous()
    torch.nn.functional.scaled_dot_product_attention(*[y.reshape(1, 1, 4, 4)] * 3)


def lists(x: torch.Tensor) -> None:
    x.index_put_((torch.tensor([0, 1]), torch.tensor([1, 0])), torch.zeros(2))
    torch.cat([x, x[1:]]).split([2, 5])
    torch._foreach_add_([x, x.clone()], 1.0)
    torch.sort(x)


def conversions(x: torch.Tensor) -> None:
    y = x.to(torch.bfloat16)
    y.copy_(x)
    x.expand(3, 4, 4).sum(0)
    torch.nn.functional.batch_norm(x, torch.zeros(4), torch.ones(4), training=True)


@pytest.mark.parametrize("program", [arithmetic, layers, lists, conversions])
def test_the_same_operators_and_tensors_as_a_dispatch_mode(library: Library, program: Callable[..., None]) -> None:
    """Two runs on the same input; tensors that each run makes are elsewhere, and are numbered as they come."""
    x = torch.arange(16.0).reshape(4, 4).contiguous()
    with torch.no_grad():
        mode = Noted()
        with mode:
            program(x)
        expected = anonymous(mode.told, x)
        driver = CapturingDriver()
        with driver.recording(library) as recorder:
            program(x)
        assert anonymous(told(recorder.recording()), x) == expected
        recorder.release()
    assert expected


def anonymous(operators: list[Told], known: torch.Tensor) -> list[Any]:
    """With storages numbered as they come, but for that of `known`."""
    places = {known.untyped_storage().data_ptr(): 0}
    found = []
    for name, pointers in operators:
        rows = []
        for argument, access, view in pointers:
            place = places.setdefault(view.storage_address, len(places))
            offset = view.address - view.storage_address
            rows.append((argument, access, place, offset, view.storage_nbytes, view.shape, view.stride, view.dtype))
        found.append((name, rows))
    return found


def test_each_operator_has_the_line_that_called_it(library: Library) -> None:
    x = torch.zeros(4)

    def body() -> None:
        x.add_(1)
        x.relu_()

    first = inspect.getsourcelines(body)[1]
    nodes = recorded(library, body).nodes()
    assert [(n.launch.stack[0].line, n.launch.stack[0].function) for n in nodes] == [
        (first + 1, "body"), (first + 2, "body"),
    ]  # fmt: skip


def test_what_the_capture_made_is_told_by_address(library: Library) -> None:
    x, kept = torch.ones(4, 2), list[torch.Tensor]()
    made = recorded(library, lambda: kept.extend((x + 1, torch.empty(3, dtype=torch.int64), x.view(8))))
    assert {address: form[:2] for address, form in made.items()} == {
        kept[0].data_ptr(): (torch.float32, (4, 2)),
        kept[1].data_ptr(): (torch.int64, (3,)),
    }
    assert [node.launch.name for node in made.nodes()] == ["aten.add.Tensor"], "an allocation leaves no node"


# -- nodes ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def launching() -> Any:
    """An operator of the program's whose body the test gives."""
    body: list[Callable[[], None]] = []

    @torch.library.custom_op("shadowgraph_test::launching", mutates_args={"x"})
    def launching(x: torch.Tensor) -> None:
        body[0]()
        x.add_(1)

    def run(x: torch.Tensor, inside: Callable[[], None]) -> None:
        body[:] = [inside]
        launching(x)

    return run


def launch(driver: CapturingDriver, count: int = 1) -> None:
    driver.nodes += count


def owners(made: Recording) -> list[tuple[tuple[int, ...], Any]]:
    """Newest nodes at each mark, and the launch that owns them."""
    nodes = made.nodes()
    return [(newest, nodes[made.launches[o]].launch.name if o in made.launches else o) for newest, o in made.log]


def test_nodes_belong_to_the_operator_that_ran_meanwhile(
    library: Library, driver: CapturingDriver, launching: Any
) -> None:
    x = torch.zeros(4)
    with driver.recording(library) as recorder:
        launching(x, lambda: launch(driver, 2))
        x.add_(1)
        launching(x, lambda: launch(driver))
    made = recorder.recording()
    assert owners(made) == [((2,), "shadowgraph_test.launching.default"), ((3,), "shadowgraph_test.launching.default")]
    own = ["aten.add_.Tensor", "shadowgraph_test.launching.default"]  # what its body calls, then what is left of it
    assert [node.launch.name for node in made.nodes()] == [*own, "aten.add_.Tensor", *own]
    assert recorder.strays == 0


def test_a_launch_inside_of_an_operator_is_its_own(library: Library, driver: CapturingDriver, launching: Any) -> None:
    x = torch.zeros(4)
    with driver.recording(library) as recorder:

        def inside() -> None:
            launch(driver)
            number = recorder.begin()
            launch(driver)
            recorder.end(number)
            launch(driver)

        launching(x, inside)
    made = recorder.recording()
    nodes, inner = made.nodes(), 2
    (own,) = [n for n, at in made.launches.items() if nodes[at].launch.name == "shadowgraph_test.launching.default"]
    assert made.log == [((1,), own), ((2,), inner), ((3,), own)]


def test_nodes_that_no_launch_made_are_counted_and_given_to_what_a_tracer_saw(
    library: Library, driver: CapturingDriver
) -> None:
    x = torch.zeros(4)
    with driver.recording(library) as recorder:
        launch(driver)
        assert recorder.advanced() is not None
        recorder.mark("a C function", ())
        assert recorder.advanced() is None
        launch(driver)
        x.add_(1)
        launch(driver)
    assert recorder.recording().log == [((1,), "a C function"), ((2,), None)]
    assert recorder.strays == 2, "one before the operator, one at the end"


def test_nodes_are_nobodys_where_the_driver_could_not_tell(
    library: Library, driver: CapturingDriver, launching: Any
) -> None:
    x = torch.zeros(4)
    with driver.recording(library) as recorder:

        def inside() -> None:
            launch(driver)
            driver.code = 1

        launching(x, inside)
        driver.code = 0
        x.add_(1)
    made = recorder.recording()
    assert [owner for _, owner in made.log] == [None]
    assert len(made.nodes()) == 2


# -- which operators --------------------------------------------------------------------------------------------


def test_only_operators_on_a_stream_that_captures(library: Library, driver: CapturingDriver) -> None:
    x = torch.zeros(4)
    with driver.recording(library) as recorder:
        driver.graph = 0
        x.add_(1)
        driver.graph = GRAPH + 1  # the body of a conditional node
        x.mul_(2)
        driver.graph = GRAPH
        x.sub_(3)
    assert [name for name, _ in told(recorder.recording())] == ["aten.mul_.Tensor", "aten.sub_.Tensor"]
    x.div_(4)


def test_no_operator_of_another_thread(library: Library, driver: CapturingDriver) -> None:
    x = torch.zeros(4)
    with driver.recording(library) as recorder:
        thread = threading.Thread(target=lambda: x.add_(1))
        thread.start()
        thread.join()
    assert told(recorder.recording()) == []


def test_wrappers_of_tensors_are_seen_through(library: Library) -> None:
    x = torch.ones(3, 4)
    assert [name for name, _ in told(recorded(library, lambda: torch.vmap(torch.sin)(x)))] == ["aten.sin.default"]


def test_below_a_dispatch_mode_of_the_programs_own(library: Library) -> None:
    x = torch.ones(4)

    class Doubling(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return args[0].mul_(2)

    def body() -> None:
        with Doubling():
            x.add_(1)
        x.sub_(1)

    names = [name for name, _ in told(recorded(library, body))]
    assert names == ["aten.mul_.Tensor", "aten.sub_.Tensor"], "what runs, not what the mode was asked for"


def test_an_operator_that_raises(library: Library, driver: CapturingDriver) -> None:
    x = torch.ones(4)
    with driver.recording(library) as recorder:
        with pytest.raises(RuntimeError):
            torch.mm(x, x)
        assert recorder.open == 0
        x.add_(1)
    assert [name for name, _ in told(recorder.recording())][-1] == "aten.add_.Tensor"


def test_one_recording_inside_of_another(library: Library) -> None:
    outer, inner, x = CapturingDriver(), CapturingDriver(), torch.zeros(4)
    inner.graph = 0
    with outer.recording(library) as first:
        x.add_(1)
        outer.graph, inner.graph = 0, GRAPH
        with inner.recording(library) as second:
            x.mul_(2)
        outer.graph, inner.graph = GRAPH, 0
        x.sub_(3)
    assert [name for name, _ in told(first.recording())] == ["aten.add_.Tensor", "aten.sub_.Tensor"]
    assert [name for name, _ in told(second.recording())] == ["aten.mul_.Tensor"]


def test_a_stream_that_does_not_capture_is_refused(library: Library, driver: CapturingDriver) -> None:
    driver.graph = 0
    with pytest.raises(RuntimeError, match="cannot be recorded"):
        CaptureRecorder(library, GRAPH, torch.device("cpu"), driver.question, True)


# -- storages ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [True, False])
def test_tensors_live_until_the_recording_is_released_if_they_are_to_be_kept(
    library: Library, driver: CapturingDriver, keep: bool
) -> None:
    x = torch.ones(4)
    with driver.recording(library, keep) as recorder:
        y = x + 1
        storage = y.untyped_storage()._weak_ref()
        del y
        assert torch.UntypedStorage._expired(storage) is not keep
    recorder.release()
    assert torch.UntypedStorage._expired(storage)
    torch.UntypedStorage._free_weak_ref(storage)


@pytest.mark.parametrize("keep", [True, False])
def test_inputs_are_told_once_and_with_their_storage_while_it_lives(
    library: Library, driver: CapturingDriver, keep: bool
) -> None:
    x, y = torch.ones(4), torch.ones(8)
    address = y.data_ptr()
    with driver.recording(library, keep) as recorder:
        x.add_(y[:4])
        x.add_(x + 1)
        del y
    found = list(recorder.inputs())
    assert [(tensor.storage, tensor.shape) for tensor, _ in found] == [(x.data_ptr(), (4,)), (address, (4,))]
    assert found[0][1] is x.untyped_storage()
    assert (found[1][1] is not None) is keep
    del found
    recorder.release()


def test_a_recording_that_is_dropped_releases_its_tensors(library: Library, driver: CapturingDriver) -> None:
    gc.disable()
    try:
        x = torch.ones(4)
        with driver.recording(library) as recorder:
            x.add_(1)
        storage = weakref.ref(x.untyped_storage())
        del x
        assert storage() is not None, "invalid: it is not kept"
        del recorder
        assert storage() is None
    finally:
        gc.enable()


def test_a_forked_child_goes_on(library: Library, driver: CapturingDriver) -> None:
    x = torch.ones(4)
    with driver.recording(library) as recorder:
        x.add_(1)
        child = os.fork()
        if not child:
            driver.code = 1
            x.add_(1)
            recorder.stop()
            recorder.release()
            os._exit(0 if recorder.open == 0 else 3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        x.add_(1)
    assert len(told(recorder.recording())) == 2


# -- lines of an earlier capture --------------------------------------------------------------------------------


def steps(x: torch.Tensor, extra: bool = False) -> None:
    for _ in range(20):
        x.add_(1)
        x.mul_(2)
    if extra:
        x.neg_()
    x.sub_(1)


def capture(library: Library, run: Callable[[], None], taught: Any = ()) -> tuple[Any, Recording, int]:
    """What a capture teaches, what was recorded, and how many stacks it took."""
    with CapturingDriver().recording(library, taught=taught) as recorder:
        run()
    found = recorder.teaches("graph#1"), recorder.recording(), len(recorder._stacks.traces)
    recorder.release()
    return found


def lines(made: Recording) -> list[tuple[int, str]]:
    return [(node.launch.stack[0].line, node.launch.learnt_from) for node in made.nodes()]


def in_turn(library: Library, runs: list[Callable[[], None]]) -> list[tuple[Any, Recording, int]]:
    """Captures by the same code, each taught by those before it."""
    taught: list[Any] = []
    found = []
    for run in runs:
        found.append(capture(library, run, tuple(taught)))
        taught += [found[-1][0]] if found[-1][0] is not None else []
    return found


def test_the_same_operators_again_take_the_lines_of_the_first(library: Library) -> None:
    x, y = torch.ones(8), torch.ones(4)
    (taught, first, all_stacks), (more, later, stacks) = in_turn(library, [partial_steps(x), partial_steps(y)])
    assert (taught is not None, all_stacks, more) == (True, 41, None)
    assert stacks == 3, "operators 0, 16 and 32"
    assert [line for line, _ in lines(later)] == [line for line, _ in lines(first)]
    assert [graph for _, graph in lines(later)] == ["" if at in (0, 16, 32) else "graph#1" for at in range(41)]
    assert {p.view.shape for node in later.nodes() for p in node.launch.pointers} == {(4,)}, "its own tensors"


def partial_steps(x: torch.Tensor, extra: bool = False) -> Callable[[], None]:
    return lambda: steps(x, extra)


def test_from_where_they_differ_each_operator_has_its_own_line(library: Library) -> None:
    x = torch.ones(4)
    (_, first, _), (more, later, stacks), (none, again, few) = in_turn(
        library, [partial_steps(x), partial_steps(x, True), partial_steps(x, True)]
    )
    assert stacks == 3 + 2
    assert [line for line, _ in lines(later)][:40] == [line for line, _ in lines(first)][:40]
    assert [graph for _, graph in lines(later)][39:] == ["graph#1", "", ""]
    assert more is not None
    assert (none, few) == (None, 3)
    assert [line for line, _ in lines(again)] == [line for line, _ in lines(later)]


def test_the_same_operators_of_other_code_take_no_lines(library: Library) -> None:
    x = torch.ones(4)

    def other() -> None:
        for _ in range(20):
            x.add_(1)
            x.mul_(2)
        x.sub_(1)

    _, (more, later, stacks) = in_turn(library, [partial_steps(x), other])
    assert (more is not None, stacks) == (True, 41)
    assert {graph for _, graph in lines(later)} == {""}
    assert lines(later)[0][0] == inspect.getsourcelines(other)[1] + 2


def forked_steps(x: torch.Tensor, other: bool) -> None:
    """The same operators on two ways, which part after the third."""
    for _ in range(3):
        x.add_(1)
    if other:
        for _ in range(20):
            x.mul_(2)
    else:
        for _ in range(20):
            x.mul_(2)


def test_of_a_capture_that_a_stack_refutes_no_line_is_learnt(library: Library) -> None:
    """The operators between two stacks would have wrong lines: they have none, and teach none."""
    x, first = torch.ones(4), inspect.getsourcelines(forked_steps)[1]
    ways = [partial(forked_steps, x, other) for other in (False, True, True, True)]
    made = [recording for _, recording, _ in in_turn(library, ways)]
    told = [[each.launch.stack[0].line - first if each.launch.stack else None for each in one.nodes()] for one in made]
    own, others = [3] * 3 + [9] * 20, [3] * 3 + [6] * 20
    assert told[0] == own
    assert told[1] == [others[at] if at == 0 or at >= 16 else None for at in range(23)], (
        "none is better than a wrong one"
    )
    assert told[2:] == [others] * 2, "what had no line was seen again"


def test_nothing_learnt_is_left_of_a_recording_whose_kernels_are_others(library: Library) -> None:
    x = torch.ones(4)
    _, (_, made, _) = in_turn(library, [partial_steps(x), partial_steps(x)])
    assert [graph for _, graph in lines(made)] == ["" if at in (0, 16, 32) else "graph#1" for at in range(41)]
    assert made.forget_learnt()
    kept = [at for at, node in enumerate(made.nodes()) if node.launch.stack]
    assert (kept, {node.launch.learnt_from for node in made.nodes()}) == ([0, 16, 32], {""})
    assert not made.forget_learnt()


def test_no_learnt_stack_is_left_of_the_tensors_that_it_made(library: Library) -> None:
    x = torch.ones(4)

    def body() -> None:
        kept = [x + number for number in range(40)]
        assert len({each.data_ptr() for each in kept}) == 40

    _, (_, made, _) = in_turn(library, [body, body])
    assert [trace is not None for _, _, trace in made.values()] == [True] * 40
    assert made.forget_learnt()
    assert sum(trace is not None for _, _, trace in made.values()) == 3, "operators 0, 16 and 32"


def test_of_several_that_taught_the_same_the_latest_is_believed(library: Library) -> None:
    x = torch.ones(4)
    (taught, _, _) = capture(library, partial_steps(x))
    again = taught._replace(traces={at: (trace, "graph#2") for at, (trace, _) in taught.traces.items()})
    _, made, _ = capture(library, partial_steps(x), (taught, again))
    assert {graph for _, graph in lines(made)} <= {"", "graph#2"}


def test_captures_beside_threads_that_run_operators_and_python(library: Library) -> None:
    """Each in its own thread, with a thread that always wants the interpreter's lock."""
    over, found, x = threading.Event(), list[tuple[int, int]](), torch.ones(4)

    def spin() -> None:
        while not over.is_set():
            sum(range(100))

    def work() -> None:
        y = torch.zeros(4)
        while not over.is_set():
            y.add_(1).mul(2)

    def captures() -> None:
        taught: tuple[Any, ...] = ()
        z = torch.ones(4)
        for _ in range(30):
            more, made, stacks = capture(library, partial_steps(z), taught)
            found.append((len(made.nodes()), stacks))
            taught = (*taught, more) if more is not None else taught

    others = [threading.Thread(target=each) for each in (spin, work)]
    capturing = [threading.Thread(target=captures) for _ in range(3)]
    for thread in (*others, *capturing):
        thread.start()
    for thread in capturing:
        thread.join(300)
    over.set()
    for thread in others:
        thread.join()
    assert not any(thread.is_alive() for thread in capturing), "a capture hangs"
    assert sorted(found) == sorted([(41, 41)] * 3 + [(41, 3)] * 87)
    x.add_(1)
