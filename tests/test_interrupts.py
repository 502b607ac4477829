"""What a program's signal handler raises reaches the program, also where it comes up in a finalizer of ours."""

from __future__ import annotations

import _thread
import ast
import functools
import re
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import shadowgraph as sg
from shadowgraph.common import interrupts
from shadowgraph.common.internal_errors import error_barrier, internal_errors
from shadowgraph.model.buffers import Ledger
from shadowgraph.tracking.captures import Captures

ROUNDS = 200


class Expired(Exception):
    """What a handler of the program raises."""


@pytest.fixture
def alarm() -> Iterator[Callable[[float], None]]:
    before = signal.getsignal(signal.SIGALRM)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds) and None
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


class Handler:
    def __init__(self) -> None:
        self.calls = 0

    def ring(self, number: int, frame: object) -> None:
        self.calls += 1
        raise Expired("time is up", 7)


def allocate(until: float) -> None:
    while time.monotonic() < until:
        torch.zeros(16)  # guarded, so that its end is a finalizer's work


def wait(seconds: float) -> None:
    """Time for an exception that is raised once more: the thread that does this may get the processor late."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.001)


def test_views_of_memory_import_nothing() -> None:
    """An alarm in the middle of NumPy's lazy import of `numpy.ctypeslib` leaves NumPy in endless recursion."""
    program = (
        "import sys; from shadowgraph.tracking.memory import raw_bytes; import torch\n"
        "before = set(sys.modules); held = torch.arange(4, dtype=torch.uint8)\n"
        "assert raw_bytes(held.data_ptr(), 4).tolist() == [0, 1, 2, 3]\n"
        "print(sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_no_alarm_is_lost_among_finalizers(alarm: Callable[[float], None]) -> None:
    handler, caught = Handler(), 0
    signal.signal(signal.SIGALRM, handler.ring)
    with sg.debug() as debugger, debugger.guard():
        for at in range(ROUNDS):
            try:
                alarm(0.002 + at * 1e-5)
                allocate(time.monotonic() + 0.05)
                wait(2)
            except Expired as error:
                caught += error.args == ("time is up", 7)
        assert debugger.facts().faults == {}
    assert handler.calls == ROUNDS
    assert caught >= ROUNDS - 2, "torch and Python drop some too; one in 25 was lost"


class Interrupting:
    """Raises where a handler might: as the call at `at`, of those since `sys.setprofile`, begins, or one in C ends."""

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self, frame: object, event: str, given: object) -> None:
        if event not in ("call", "c_return"):
            return
        self.left -= 1
        if self.left == 0:
            sys.setprofile(None)
            raise Expired


def interrupted(work: Callable[[], object], at: int) -> BaseException | None:
    """What comes out of `work`, with its traceback and so with its frames, or None where it has fewer calls."""
    try:
        sys.setprofile(Interrupting(at))
        work()
    except Expired as error:
        return error
    finally:
        sys.setprofile(None)
    return None


@pytest.mark.parametrize("name", ["ledger", "captures"])
def test_no_lock_stays_held_wherever_a_handler_raises(name: str) -> None:
    ledger, counted, kept = Ledger(), Captures(), list[BaseException]()
    work = {"ledger": lambda: ledger.at(64), "captures": lambda: counted.between(int)}[name]
    while (error := interrupted(work, len(kept) + 1)) is not None:
        kept.append(error)
        assert not ledger._lock._lock._is_owned()
        assert not counted._lock.locked()
    assert kept, "the calls of the work itself"


def test_no_generator_holds_a_lock_for_its_caller() -> None:
    """One that is interrupted between its `yield` and the caller's block keeps the lock for as long as it lives."""
    held = list[str]()
    for path in Path(sg.__file__).parent.rglob("*.py"):
        for function in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(function, ast.FunctionDef) or not any(
                "contextmanager" in ast.unparse(decorator) for decorator in function.decorator_list
            ):
                continue
            held += [
                f"{path.name}: {function.name}: {ast.unparse(item.context_expr)}"
                for block in ast.walk(function)
                if isinstance(block, ast.With) and any(isinstance(node, ast.Yield) for node in ast.walk(block))
                for item in block.items
                if re.search(r"lock|section|within|reading|mutex", ast.unparse(item.context_expr))
            ]
    assert held == []


def dropped(error: BaseException, where: object) -> sys.UnraisableHookArgs:
    return type("Dropped", (), {"exc_value": error, "object": where, "exc_type": type(error), "err_msg": None})()  # type: ignore[return-value]


class _Thing:
    pass


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    """What goes on to the hook that was there before."""
    seen: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", seen.append)
    interrupts.install()
    yield seen
    interrupts.uninstall()
    assert sys.unraisablehook == seen.append


@pytest.mark.parametrize(
    "finalizer",
    [
        weakref.finalize(_Thing(), print),
        vars(weakref.WeakSet())["_remove"],
        vars(weakref.WeakKeyDictionary())["_remove"],
    ],
)
def test_an_interrupt_in_our_finalizer_is_raised_a_moment_later(passed: list[object], finalizer: object) -> None:
    with pytest.raises(KeyboardInterrupt) as raised:
        sys.unraisablehook(dropped(KeyboardInterrupt("by hand"), finalizer))
        end = time.monotonic() + 5
        while time.monotonic() < end:
            pass
    assert raised.value.args == ("by hand",)
    assert passed == []


@pytest.mark.parametrize("error", [ValueError("a fault of a finalizer's own"), SystemExit(3)])
def test_what_no_handler_raised_is_dropped_as_before(passed: list[object], error: BaseException) -> None:
    try:
        raise error
    except BaseException:
        args = dropped(error, weakref.finalize(_Thing(), print))
    sys.unraisablehook(args)
    assert passed == [args]


def test_nor_is_that_our_business_in_somebody_elses_callback(passed: list[object]) -> None:
    args = dropped(KeyboardInterrupt(), print)
    sys.unraisablehook(args)
    time.sleep(0.01)
    assert passed == [args]


def test_a_hook_above_ours_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "unraisablehook", print)
    interrupts.install()
    theirs = sys.unraisablehook
    above: Callable[[object], None] = lambda args: theirs(args)  # type: ignore[arg-type]  # noqa: E731
    sys.unraisablehook = above
    interrupts.uninstall()
    assert sys.unraisablehook is above
    sys.unraisablehook = theirs
    interrupts.uninstall()
    assert sys.unraisablehook is print


class Particular(Exception):
    """One whose class wants more than it keeps in `args`."""

    def __init__(self, code: int, *, why: str) -> None:
        super().__init__(code)
        self.why = why


def partial(what: str, number: int, frame: object) -> None:
    raise ValueError(what)


class _Called:
    def __call__(self, number: int, frame: object) -> None:
        raise ValueError("called")


def once(*given: object) -> None:
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    raise TimeoutError("late")


def particular(number: int, frame: object) -> None:
    raise Particular(3, why="so")


@pytest.fixture
def usual() -> Iterator[None]:
    """What is done about a signal is as before afterwards."""
    before = signal.getsignal(signal.SIGUSR1)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize(
    ("handler", "wanted"),
    [
        (functools.partial(partial, "given"), ValueError("given")),
        (_Called(), ValueError("called")),
        (once, TimeoutError("late")),
        (particular, Particular(3, why="so")),
    ],
)
@pytest.mark.usefixtures("usual", "passed")
def test_whatever_a_handler_is_and_raises(handler: Callable[..., None], wanted: Exception) -> None:
    signal.signal(signal.SIGUSR1, handler)
    total = internal_errors.total
    with pytest.raises(type(wanted)) as raised:
        with error_barrier("test"):
            signal.raise_signal(signal.SIGUSR1)
        end = time.monotonic() + 5
        while time.monotonic() < end:
            pass
    assert (raised.value.args, vars(raised.value)) == (wanted.args, vars(wanted))
    assert internal_errors.total == total


@pytest.mark.usefixtures("passed")
def test_an_interrupt_that_came_up_in_another_thread_is_no_signals(passed: list[object]) -> None:
    args = dropped(KeyboardInterrupt(), weakref.finalize(_Thing(), print))
    thread = threading.Thread(target=sys.unraisablehook, args=(args,))
    thread.start()
    thread.join()
    time.sleep(0.01)
    assert passed == [args]


def unlucky(*_: object) -> None:
    raise RuntimeError("can't start new thread")


@pytest.mark.usefixtures("usual", "passed")
def test_what_cannot_be_raised_again_is_a_fault_and_breaks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_thread, "start_new_thread", unlucky)
    signal.signal(signal.SIGUSR1, once)
    total = internal_errors.total
    with error_barrier("test"):
        signal.raise_signal(signal.SIGUSR1)
    assert internal_errors.total == total + 1


def test_an_interrupt_that_comes_back_at_once_is_not_taken_for_a_fault(
    passed: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    start, times = _thread.start_new_thread, []

    def hasty(raise_: Callable[..., None], given: tuple[type[BaseException]]) -> int:
        times.append(given[0])
        if len(times) == 1:
            raise given[0]
        return start(raise_, given)

    monkeypatch.setattr(_thread, "start_new_thread", hasty)
    finalizer = weakref.finalize(_Thing(), print)
    with pytest.raises(KeyboardInterrupt) as raised:
        sys.unraisablehook(dropped(KeyboardInterrupt("by hand"), finalizer))
        end = time.monotonic() + 5
        while time.monotonic() < end:
            pass
    assert (raised.value.args, passed, len(times)) == (("by hand",), [], 2)


@pytest.mark.usefixtures("usual", "passed")
def test_nor_is_it_swallowed_where_a_fault_would_be(monkeypatch: pytest.MonkeyPatch) -> None:
    def hasty(_: Callable[..., None], given: tuple[type[BaseException]]) -> int:
        raise given[0]

    monkeypatch.setattr(_thread, "start_new_thread", hasty)
    signal.signal(signal.SIGUSR1, once)
    with pytest.raises(TimeoutError, match="late"), error_barrier("test"):
        signal.raise_signal(signal.SIGUSR1)


@pytest.mark.parametrize(("error", "name"), [(SystemExit(3), "code"), (OSError(5, "gone"), "errno")])
def test_what_is_in_no_dictionary_is_kept(error: BaseException, name: str) -> None:
    made = interrupts._again(error)()
    assert (type(error).__name__, made.args) == (type(made).__name__, error.args)
    assert getattr(made, name) == getattr(error, name)
    assert isinstance(made, type(error))


def test_a_hook_that_replaced_ours_is_not_taken_for_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", print)
    interrupts.install()  # as within a test of pytest's, which puts its own hook back afterwards
    monkeypatch.setattr(sys, "unraisablehook", seen.append)
    interrupts.uninstall()
    interrupts.install()
    assert sys.unraisablehook != seen.append
    ours = sys.unraisablehook
    interrupts.install()
    assert sys.unraisablehook is ours
    args = dropped(ValueError(), weakref.finalize(_Thing(), print))
    sys.unraisablehook(args)
    assert seen == [args]
    interrupts.uninstall()
    assert sys.unraisablehook == seen.append
