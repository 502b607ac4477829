"""A launcher in C++ does what the one in Python does: same rows, same arguments to the original, same results."""

from __future__ import annotations

import gc
import inspect
import sys
import threading
import weakref
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch

from shadowgraph.common.internal_errors import internal_errors
from shadowgraph.graphs import launch_rows
from shadowgraph.graphs.events import Listener, listeners
from shadowgraph.graphs.launch_rows import note_in_python, written_in_cpp
from shadowgraph.graphs.observer.library import Library
from shadowgraph.graphs.triton import cuda
from shadowgraph.model.graphs import Launch
from shadowgraph.model.launch_log import LaunchLog
from shadowgraph.model.launch_log_reader import LoggedLaunch, contents_of
from shadowgraph.model.launches import IndexRule
from shadowgraph.tracking import launch_recording, passing
from shadowgraph.tracking import novelty as sizes
from shadowgraph.tracking.stores import StoreLog

Run = Callable[..., Any]
Call = Callable[[Any], Any]
IN_PYTHON, IN_CPP = False, True


def body(x: Any, y: Any) -> None:
    """What a kernel's object has as `fn`."""


vars(body)["arg_names"] = "x", "y"


class Subclass(torch.Tensor):
    pass


class Kernel:
    """A launcher that launches nothing; `calls` has what it was called with."""

    params = SimpleNamespace(name="x"), SimpleNamespace(name="y")

    def __init__(self) -> None:
        self.fn = body
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def run(self, *args: Any, **kwargs: Any) -> Any:
        self.calls.append((args, kwargs))
        return "result", len(self.calls)


class Strict(Kernel):
    """Needs a grid, as Triton's does."""

    def run(self, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        return super().run(*args, grid=grid, warmup=warmup, **kwargs)


class Failing(Kernel):
    def run(self, *args: Any, **kwargs: Any) -> Any:
        raise args[0]


class Hears(Listener):
    """Which launches began and ran, by name of the kernel."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []

    def launch_begins(self, launch: Launch, rules: tuple[IndexRule, ...]) -> None:
        self.heard.append(("begins", launch.name))

    def launch_ran(self, launch: Launch, stores: StoreLog | None) -> None:
        self.heard.append(("ran", launch.name))


class Outcome(NamedTuple):
    """What calls led to, without what differs from run to run."""

    result: Any
    calls: list[tuple[list[int], list[tuple[str, int]]]]  # ids of arguments, and of keywords in their order
    rows: list[tuple[Any, ...]]
    heard: list[tuple[str, str]]
    novel: list[str]
    faults: dict[str, int]


INLINES = sys.version_info < (3, 12)  # such a Python calls a function of its own that is called by name without asking


class Called:
    """A method that is called as Triton calls its own: with arguments that it has packed."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def __get__(self, kernel: object, kind: type) -> Run:
        return partial(self.run, kernel) if kernel is not None else self.run


def not_in_python() -> int:
    raise AssertionError("this launch was noted in Python")


def hooked(
    patch: pytest.MonkeyPatch, library: Library, kind: type[Kernel], in_cpp: bool, compiled: bool = False
) -> Kernel:
    """A kernel of a class whose launcher is replaced."""
    note = written_in_cpp(library) if in_cpp else note_in_python
    assert note is not None
    patch.setattr(launch_rows, "note", note)
    patch.setattr(launch_rows, "_library", library if in_cpp else None)
    wrap = cuda._wrap_inductor if compiled else cuda._wrap_run
    run = wrap(kind.run)
    assert hasattr(run, "_launcher") is in_cpp
    if in_cpp and not compiled:
        patch.setattr(launch_rows, "stream", not_in_python)
    made: Kernel = type(kind.__name__, (kind,), {"run": Called(run) if in_cpp and INLINES else run})()
    return made


def followed(patch: pytest.MonkeyPatch) -> LaunchLog:
    log = LaunchLog.anonymous()
    patch.setattr(launch_recording, "current", log)
    return log


def novelty(patch: pytest.MonkeyPatch, ends: bool = False) -> list[str]:
    """Begin anew with sizes; returns where reasons are added. One may end the passing."""
    told: list[str] = []

    def watch(reason: str) -> None:
        told.append(reason)
        passing.on = passing.on and not ends

    patch.setattr(sizes, "current", sizes.Novelty(lambda: True, watch))
    return told


def rows_of(log: LaunchLog) -> list[LoggedLaunch]:
    return [row for row in contents_of(log.memory).since(0) if isinstance(row, LoggedLaunch)]


class Bench:
    """Makes the same calls through both launchers."""

    def __init__(self, library: Library) -> None:
        self.library = library

    def outcome(
        self, call: Call, in_cpp: bool, kind: type[Kernel] = Kernel, compiled: bool = False, on: bool = True,
        ends: bool = False,
    ) -> Outcome:  # fmt: skip
        with pytest.MonkeyPatch.context() as patch:
            kernel = hooked(patch, self.library, kind, in_cpp, compiled)
            log, told, hears, before = followed(patch), novelty(patch, ends), Hears(), internal_errors.counts
            patch.setattr(passing, "on", on)
            patch.setattr(launch_rows, "_judged", launch_rows._Judged(None))
            listeners.append(hears)
            try:
                result = call(kernel)
            except BaseException as error:
                result = type(error), str(error)
            finally:
                listeners.remove(hears)
            after = internal_errors.counts
        calls = [
            ([*map(id, args)], [(name, id(value)) for name, value in kwargs.items()]) for args, kwargs in kernel.calls
        ]
        faults = {key: count - before.get(key, 0) for key, count in after.items() if count != before.get(key, 0)}
        return Outcome(result, calls, [row[1:-1] for row in rows_of(log)], hears.heard, told, faults)

    def same(self, call: Call, **how: Any) -> Outcome:
        expected, found = (self.outcome(call, in_cpp, **how) for in_cpp in (IN_PYTHON, IN_CPP))
        assert found == expected
        return found


@pytest.fixture
def bench(library: Library) -> Bench:
    return Bench(library)


ONE, TWO, WEIGHT = torch.zeros(4), torch.zeros(9)[3:7], torch.nn.Parameter(torch.zeros(2))
DERIVED = ONE.as_subclass(Subclass)
GRID, LARGER, NUMBER = (4, 5), (400, 5), 1 << 40
GRIDS: dict[str, Any] = {
    "one": (5,),
    "two": GRID,
    "three": (5, 6, 7),
    "none": None,
    "function": lambda meta: (1,),
    "list": [5, 6],
    "zero": (0, 1, 1),
}
KEYWORDS = {"grid": GRID, "warmup": False}


def fresh(given: dict[str, Any]) -> dict[str, Any]:
    """The same with names that are not interned."""
    return {"".join([*name]): value for name, value in given.items()}


CALLS: dict[str, tuple[Call, int]] = {
    "positional": (lambda kernel: kernel.run(ONE, 3, TWO, grid=GRID, warmup=False), 2),
    "by keyword": (lambda kernel: kernel.run(grid=GRID, x=ONE, warmup=False, y=TWO, n=NUMBER), 2),
    "both": (lambda kernel: kernel.run(ONE, None, warmup=False, out=TWO, grid=GRID, num_warps=4), 2),
    "a subclass": (lambda kernel: kernel.run(DERIVED, ONE, grid=GRID, warmup=False, y=DERIVED), 1),
    "a parameter": (lambda kernel: kernel.run(WEIGHT, grid=GRID, warmup=False), 1),
    "no tensors": (lambda kernel: kernel.run(grid=GRID, warmup=False), 0),
    "seven": (lambda kernel: kernel.run(*[ONE] * 5, grid=GRID, warmup=False, x=TWO, y=ONE), 6),
    "through the class": (lambda kernel: partial(type(kernel).run)(kernel, ONE, grid=GRID, warmup=False), 1),
    "without warmup": (lambda kernel: kernel.run(ONE, grid=GRID), 1),
    "without a grid": (lambda kernel: kernel.run(ONE, warmup=False), 1),
    "unpacked": (lambda kernel: kernel.run(*(ONE, TWO), **KEYWORDS), 2),
    "a bound method": (lambda kernel: [method := kernel.run, method(ONE, **KEYWORDS)][1], 1),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_launch_that_passes_is_noted_and_goes_to_the_original(bench: Bench, name: str) -> None:
    call, pointers = CALLS[name]
    found = bench.same(call)
    assert found.result == ("result", 1)
    assert len(found.calls) == 1
    ((kernel, site, _, _, given),) = found.rows
    assert (kernel, len(given), found.heard, found.faults) == ("body", pointers, [], {})
    assert site.file == __file__


@pytest.mark.parametrize("grid", GRIDS)
def test_any_grid_gives_the_same_row(bench: Bench, grid: str) -> None:
    given = GRIDS[grid]
    found = bench.same(lambda kernel: kernel.run(ONE, grid=given, warmup=False))
    assert (len(found.rows), found.faults, found.heard) == (1, {}, [])
    assert len(found.novel) == (type(given) is tuple)


def test_a_warmup_is_not_noted(bench: Bench) -> None:
    found = bench.same(lambda kernel: [kernel.run(ONE, grid=GRID, warmup=True), kernel.run(grid=LARGER, warmup=1)])
    assert (found.rows, found.novel, found.heard, len(found.calls)) == ([], [], [], 2)


def test_what_does_not_pass_goes_to_the_hook_that_describes_it(bench: Bench) -> None:
    found = bench.same(lambda kernel: kernel.run(ONE, TWO, grid=GRID, warmup=False, n=NUMBER), on=False)
    assert (found.rows, found.heard, found.faults) == ([], [("begins", "body"), ("ran", "body")], {})
    assert len(found.novel) == 1, "sizes are learnt, observed or not"
    assert found.result == ("result", 1)


def test_missing_arguments_raise_as_ever(bench: Bench) -> None:
    for on in (True, False):
        found = bench.same(lambda kernel: kernel.run(ONE, warmup=False), kind=Strict, on=on)
        assert found.result[0] is TypeError
        assert "grid" in found.result[1]


@pytest.mark.parametrize("error", [ValueError("theirs"), KeyboardInterrupt(), StopIteration(3), SystemExit(2)])
@pytest.mark.parametrize("on", [True, False])
def test_exceptions_of_the_original_go_through_unchanged(
    library: Library, monkeypatch: pytest.MonkeyPatch, error: BaseException, on: bool
) -> None:
    kernel = hooked(monkeypatch, library, Failing, IN_CPP)
    log, before = followed(monkeypatch), internal_errors.total
    monkeypatch.setattr(passing, "on", on)
    with pytest.raises(type(error)) as caught:
        kernel.run(error, grid=GRID, warmup=False)
    assert caught.value is error
    assert caught.value.__context__ is None
    assert (len(rows_of(log)), internal_errors.total) == (on, before)


def test_what_the_program_handles_stays_so(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, theirs = hooked(monkeypatch, library, Kernel, IN_CPP), KeyError("theirs")
    followed(monkeypatch)
    monkeypatch.setattr(passing, "on", True)
    try:
        raise theirs
    except KeyError:
        kernel.run(ONE, **KEYWORDS)
        assert sys.exc_info()[1] is theirs


# -- sizes ---------------------------------------------------------------------------------------------------------


def launches(*grids: Any) -> Call:
    return lambda kernel: [kernel.run(ONE, grid=grid, warmup=False) for grid in grids]


def test_a_larger_grid_is_reported_once(bench: Bench) -> None:
    found = bench.same(launches(GRID, GRID, LARGER, GRID, LARGER, (4, 500)))
    assert len(found.novel) == 3
    assert len(found.rows) == 6


def test_a_grid_that_ends_the_passing_is_described(bench: Bench) -> None:
    found = bench.same(launches(GRID, LARGER), ends=True)
    assert len(found.novel) == 2
    assert found.rows == []
    assert found.heard == [("begins", "body"), ("ran", "body")] * 2


def test_a_known_grid_asks_python_no_more(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def ask(kernel: object, grid: object) -> bool:
        asked.append(grid)
        return grid != LARGER

    monkeypatch.setattr(launch_rows, "see_grid", ask)
    kernel = hooked(monkeypatch, library, Kernel, IN_CPP)
    followed(monkeypatch), novelty(monkeypatch)
    monkeypatch.setattr(passing, "on", True)
    for _ in range(3):
        launches(GRID, LARGER)(kernel)
    assert asked == [GRID, LARGER, LARGER, LARGER], "one that was not judged is asked for again"


def test_kernels_have_sizes_of_their_own(bench: Bench) -> None:
    def call(kernel: Any) -> None:
        another = type(kernel)()
        for _ in range(2):
            kernel.run(grid=GRID, warmup=False), another.run(grid=GRID, warmup=False)

    assert len(bench.same(call).novel) == 2


def test_another_novelty_starts_anew(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = hooked(monkeypatch, library, Kernel, IN_CPP)
    monkeypatch.setattr(passing, "on", True)
    followed(monkeypatch)
    monkeypatch.setattr(sizes, "current", None)
    told: list[str] = []
    held = []
    for count in (1, 2):
        sizes.current = sizes.Novelty(lambda: True, told.append)
        held.append(weakref.ref(sizes.current))
        launches(GRID, GRID)(kernel)
        assert len(told) == count
    gc.collect()
    assert [each() is None for each in held] == [True, False], "only the latest one is kept"
    sizes.current = None
    launches(LARGER)(kernel)
    assert len(told) == 2


# -- compiled code -------------------------------------------------------------------------------------------------

COMPILED: dict[str, Call] = {
    "plain": lambda kernel: kernel.run(ONE, 3, TWO, stream=7),
    "without a stream": lambda kernel: kernel.run(ONE),
    "a large stream": lambda kernel: kernel.run(ONE, stream=(1 << 64) - 1),
    "tensors by keyword": lambda kernel: kernel.run(ONE, stream=7, out=TWO),
    "no benchmark": lambda kernel: kernel.run(ONE, stream=7, benchmark_run=False),
    "a grid": lambda kernel: kernel.run(ONE, stream=7, grid=GRID),
    "a stream that does not fit": lambda kernel: kernel.run(ONE, stream="text"),
}


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_code_that_passes_is_noted(bench: Bench, name: str) -> None:
    found = bench.same(COMPILED[name], compiled=True)
    assert (len(found.calls), found.heard, found.result) == (1, [], ("result", 1))
    assert len(found.rows) == (name != "a stream that does not fit")
    if name == "plain":
        assert [(row[2], row[3], len(row[4])) for row in found.rows] == [(7, (0, 0, 0), 2)]


def test_a_benchmark_of_compiled_code_is_not_noted(bench: Bench) -> None:
    found = bench.same(lambda kernel: kernel.run(ONE, stream=7, benchmark_run=True), compiled=True)
    assert (found.rows, found.heard, len(found.calls)) == ([], [], 1)


def test_compiled_code_that_does_not_pass_is_described(bench: Bench) -> None:
    found = bench.same(COMPILED["plain"], compiled=True, on=False)
    assert (found.rows, found.heard) == ([], [("begins", "body"), ("ran", "body")])


# -- faults of ours ------------------------------------------------------------------------------------------------


def test_a_launch_that_cannot_be_noted_runs(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = hooked(monkeypatch, library, Kernel, IN_CPP)
    log, before = followed(monkeypatch), internal_errors.total
    monkeypatch.setattr(passing, "on", True)
    kernel.fn = None  # type: ignore[assignment]
    assert kernel.run(torch.zeros(3).to_sparse(), **KEYWORDS) == ("result", 1)
    del kernel.fn  # the kernel itself has no name
    assert kernel.run(ONE, **KEYWORDS) == ("result", 2)
    assert (rows_of(log), internal_errors.total) == ([], before + 2)


def test_without_a_log_nothing_is_noted(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, before = hooked(monkeypatch, library, Kernel, IN_CPP), internal_errors.total
    monkeypatch.setattr(passing, "on", True)
    monkeypatch.setattr(launch_recording, "current", None)
    assert kernel.run(ONE, **KEYWORDS) == ("result", 1)
    assert internal_errors.total == before


def test_a_novelty_that_interrupts_is_the_programs(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(kernel: object, grid: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(launch_rows, "see_grid", interrupted)
    kernel = hooked(monkeypatch, library, Kernel, IN_CPP)
    followed(monkeypatch), novelty(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        kernel.run(ONE, **KEYWORDS)
    assert kernel.calls == []


# -- references and threads ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("on", [True, False])
@pytest.mark.parametrize("compiled", [True, False])
def test_no_reference_is_lost_or_kept(
    library: Library, monkeypatch: pytest.MonkeyPatch, on: bool, compiled: bool
) -> None:
    class Forgetting(Kernel):
        def run(self, *args: Any, **kwargs: Any) -> Any:
            return None

    kernel, tensor, stream, grids = (
        hooked(monkeypatch, library, Forgetting, IN_CPP, compiled),
        ONE,
        1 << 50,
        (GRID, LARGER),
    )
    followed(monkeypatch), novelty(monkeypatch)
    monkeypatch.setattr(passing, "on", on)

    def work() -> None:
        for grid in grids * 500:
            kernel.run(tensor, grid=grid, warmup=False, stream=stream, out=tensor)
            kernel.run(tensor, grid=grid, warmup=True, benchmark_run=True)

    capsule = vars(type(kernel).run)["_launcher"]
    watched = (kernel, type(kernel), tensor, stream, *grids, body, capsule, sizes.current, None, work.__code__)
    work()
    before = [sys.getrefcount(each) for each in watched]
    work()
    after = [sys.getrefcount(each) for each in watched]
    assert all(abs(now - then) < 50 for now, then in zip(after, before, strict=True)), (before, after)


def test_a_launcher_that_is_gone_keeps_nothing(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    def original(kernel: Any, *args: Any, **kwargs: Any) -> None: ...
    def seen(kernel: Any, *args: Any, **kwargs: Any) -> None: ...

    monkeypatch.setattr(launch_rows, "note", written_in_cpp(library))
    monkeypatch.setattr(launch_rows, "_library", library)

    def run(*args: Any, **kwargs: Any) -> None: ...

    held = [weakref.ref(original), weakref.ref(seen), weakref.ref(run)]
    made = launch_rows.quickened(run, original, seen)
    partial(made, Kernel())(grid=GRID, warmup=False)
    del original, seen, run
    assert all(each() is not None for each in held)
    del made
    assert [each() for each in held] == [None] * 3


def test_a_launcher_may_be_replaced_while_it_launches(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    class Replacing(Kernel):
        def run(self, *args: Any, **kwargs: Any) -> Any:
            if kwargs.get("last"):
                return args
            type(self).run = Kernel.run  # type: ignore[method-assign]
            gc.collect()
            return super().run(*args, **kwargs)

    kernel = hooked(monkeypatch, library, Replacing, IN_CPP)
    followed(monkeypatch)
    for on in (True, False):
        monkeypatch.setattr(passing, "on", on)
        assert kernel.run(ONE, **KEYWORDS)[0] == "result"


@pytest.mark.usefixtures("switching")
def test_threads_launch_at_once(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, log = hooked(monkeypatch, library, Kernel, IN_CPP), followed(monkeypatch)
    monkeypatch.setattr(passing, "on", True)
    monkeypatch.setattr(launch_rows, "_judged", launch_rows._Judged(None))
    told, before, each, threads = novelty(monkeypatch), internal_errors.total, 500, 8
    together, over = threading.Barrier(threads + 1), threading.Event()
    wrong: list[Any] = []

    def work(me: int) -> None:
        mine, tensor = type(kernel)(), torch.zeros(me + 1)
        together.wait()
        for at in range(each):
            mine.run(tensor, grid=(me + 1, at % 7 + 1), warmup=False, n=at)
        if [(args[0] is tensor, kwargs["n"]) for args, kwargs in mine.calls] != [(True, at) for at in range(each)]:
            wrong.append(me)

    def change() -> None:
        together.wait()
        while not over.is_set():
            told.extend(novelty(monkeypatch))

    running = [threading.Thread(target=work, args=(me,)) for me in range(threads)]
    changing = threading.Thread(target=change)
    for thread in (*running, changing):
        thread.start()
    for thread in running:
        thread.join()
    over.set()
    changing.join()
    rows = rows_of(log)
    assert (wrong, internal_errors.total) == ([], before)
    assert [row.number for row in rows] == list(range(1, each * threads + 1))
    by_thread: dict[int, set[tuple[int, tuple[tuple[int, int], ...]]]] = {}
    for row in rows:
        by_thread.setdefault(row.thread, set()).add((row.grid[0], row.pointers))
    assert sorted(len(found) for found in by_thread.values()) == [1] * threads


# -- where it is placed --------------------------------------------------------------------------------------------


def test_tritons_launcher_is_called_in_cpp_once_the_library_is_loaded(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    jit = pytest.importorskip("triton.runtime.jit")
    monkeypatch.setattr(launch_rows, "note", note_in_python)
    monkeypatch.setattr(launch_rows, "_library", None)
    monkeypatch.setattr(LaunchLog, "put_event", None)
    before = vars(jit.JITFunction)["run"]
    cuda.install()
    try:
        run = vars(jit.JITFunction)["run"]
        assert not hasattr(run, "_launcher")
        launch_rows._use(library)
        assert vars(jit.JITFunction)["run"] is run
        assert hasattr(run, "_launcher")
    finally:
        cuda.uninstall()
    assert vars(jit.JITFunction)["run"] is before


# -- as the launcher in Python does ------------------------------------------------------


def test_the_signature_can_be_asked_for(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = hooked(monkeypatch, library, Kernel, IN_CPP, compiled=True)
    assert "warmup" not in inspect.signature(kernel.run).parameters


def test_a_program_may_save_and_restore_it(bench: Bench) -> None:
    def call(kernel: Any) -> Any:
        kind = type(kernel)
        saved = kind.run
        kind.run = lambda self, *args, **kwargs: saved(self, *args, **kwargs)
        kind.run = saved
        return partial(kernel.run)(ONE, **KEYWORDS)

    assert bench.same(call).result == ("result", 1)


@pytest.mark.parametrize("warmup", [True, False])
def test_names_that_are_not_interned_are_found(bench: Bench, warmup: bool) -> None:
    given = fresh({"grid": GRID, "warmup": warmup})
    assert len(bench.same(lambda kernel: kernel.run(ONE, **given)).rows) == (not warmup)


def test_names_of_compiled_code_that_are_not_interned_are_found(bench: Bench) -> None:
    given = fresh({"stream": 7})
    assert bench.same(lambda kernel: kernel.run(ONE, **given), compiled=True).rows[0][2] == 7


@pytest.mark.parametrize("grid", [(1, 2, 3, 4), (1 << 32, 1), (True, 2)])
def test_a_grid_that_does_not_fit_gives_the_same_row(bench: Bench, grid: tuple[int, ...]) -> None:
    assert len(bench.same(launches(grid)).rows) == 1


@pytest.mark.parametrize("false", [None, 0])
def test_anything_false_is_no_warmup_and_no_benchmark(bench: Bench, false: Any) -> None:
    assert len(bench.same(lambda kernel: kernel.run(ONE, grid=GRID, warmup=false)).rows) == 1
    compiled = bench.same(lambda kernel: kernel.run(ONE, stream=7, benchmark_run=false), compiled=True)
    assert len(compiled.rows) == 1


def test_a_grid_of_more_extents_is_another(bench: Bench) -> None:
    bench.same(launches((4,), (4, 1, 1)))
