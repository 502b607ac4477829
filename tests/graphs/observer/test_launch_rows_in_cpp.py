"""Rows of launches from C++ are those from Python, whatever is launched, in every thread and after a fork."""

from __future__ import annotations

import gc
import os
import struct
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from shadowgraph.common.internal_errors import internal_errors
from shadowgraph.graphs import launch_rows
from shadowgraph.graphs.launch_rows import note_in_python, written_in_cpp
from shadowgraph.graphs.observer.library import Library
from shadowgraph.graphs.observer.observer import OperatorObserver
from shadowgraph.model import launch_log_format as form
from shadowgraph.model.launch_log import LaunchLog, SharedText
from shadowgraph.model.launch_log_reader import LoggedLaunch, contents_of
from shadowgraph.tracking import launch_recording

Note = Callable[..., None]


class Kernel:
    def __init__(self, name: str) -> None:
        self.__name__ = name


class Subclass(torch.Tensor):
    pass


class Elsewhere(TorchFunctionMode):
    """Has another address for each tensor, as a mode of the program's may."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return 4096 if getattr(func, "__name__", "") == "data_ptr" else func(*args, **(kwargs or {}))


@pytest.fixture
def note(library: Library) -> Note:
    made = written_in_cpp(library)
    assert made is not None
    return made


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> LaunchLog:
    return follow(monkeypatch, dirty())


def follow(monkeypatch: pytest.MonkeyPatch, log: LaunchLog) -> LaunchLog:
    monkeypatch.setattr(launch_recording, "current", log)
    return log


def dirty(redact: bool = False) -> LaunchLog:
    """A log whose ring went round once: rows are written over whole."""
    log = LaunchLog.anonymous(redact)
    for _ in range(form.ROWS):
        log.launch(1, 1, 0xFFFF, (7, 7, 7), [(1 << 40, 99)] * form.POINTERS)
    return log


def hook(writer: Note, launch: tuple[Any, ...]) -> None:
    writer(*launch)


def launches(log: LaunchLog, after: int = form.ROWS) -> list[LoggedLaunch]:
    return [row for row in contents_of(log.memory).since(after) if isinstance(row, LoggedLaunch)]


def names(log: LaunchLog) -> list[str]:
    return [row.kernel for row in launches(log)]


def written(
    monkeypatch: pytest.MonkeyPatch, writer: Note, *given: tuple[Any, ...]
) -> tuple[bytes, int, dict[str, int]]:
    """The bytes of a log, what was lost, and the faults that were counted."""
    log, before = follow(monkeypatch, dirty()), internal_errors.counts
    for launch in given:
        hook(writer, launch)
    counts = {key: number - before.get(key, 0) for key, number in internal_errors.counts.items()}
    return bytes(log.memory), log.lost, {key: number for key, number in counts.items() if number}


kernel, other = Kernel("kernel"), Kernel("another")
ONE, WEIGHT, VIEW = torch.zeros(4), torch.nn.Parameter(torch.zeros(2)), torch.zeros(9)[3:7]
COPY = torch._lazy_clone(torch.zeros(4))
NO_GRID = lambda meta: (1,)  # noqa: E731
TENSORS: dict[str, tuple[Any, ...]] = {
    "none": (),
    "tensors and others": (ONE, 3, None, "text", VIEW, 2.5, [ONE], WEIGHT),
    "a subclass": (ONE.as_subclass(Subclass), ONE),
    "empty": (torch.empty(0), ONE[4:]),
    "on no device": (torch.zeros(4, device="meta"),),
    "seven": (*[ONE[at:] for at in range(4)], WEIGHT, VIEW, ONE),
    "six": (*[ONE[at:] for at in range(4)], WEIGHT, VIEW),
    "sparse": (ONE, torch.zeros(3).to_sparse()),
    "functional": (torch._to_functional_tensor(torch.zeros(3)), ONE),
    "nested": (torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]), ONE),
    "strided far": (torch.zeros(64).as_strided((2, 2), (30, 3), 5),),
    "conjugate": (torch.zeros(2, dtype=torch.complex64).conj(),),
}
GRIDS: list[Any] = [
    *[(), (5,), (5, 6), (5, 6, 7), (1, 2, 3, 4), [1, 2], None, NO_GRID, (True, 2), (0, 0, 0)],
    *[(1 << 32, 1), (0xFFFFFFFF, 1, 1), (-1, 2), (1 << 70,), (np.int64(3), 4), (2.0, 1), ("x",), (torch.tensor(3),)],
]
STREAMS: list[Any] = [0, 7, True, -1, (1 << 64) - 1, 1 << 64, None, np.int64(9), "stream"]


def assert_same(monkeypatch: pytest.MonkeyPatch, note: Note, *given: tuple[Any, ...]) -> int:
    """The number of rows, the same from both writers."""
    expected, found = (written(monkeypatch, writer, *given) for writer in (note_in_python, note))
    assert found[1:] == expected[1:]
    assert found[0] == expected[0]
    return len(launches(launch_recording.current))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", TENSORS)
@pytest.mark.parametrize("mode", [nullcontext, Elsewhere])
def test_rows_of_any_tensors_are_the_same(
    note: Note, monkeypatch: pytest.MonkeyPatch, name: str, mode: Callable[[], AbstractContextManager[object]]
) -> None:
    given = TENSORS[name]
    keywords = {str(at): each for at, each in enumerate(given)}
    with mode():
        rows = assert_same(
            monkeypatch, note, (kernel, given, {}, (1,)), (other, (), keywords, (1, 2), 5), (kernel, given, keywords)
        )
    assert rows == 3 or (name in ("sparse", "nested") and mode is nullcontext)


def test_rows_of_any_grid_and_stream_are_the_same(note: Note, monkeypatch: pytest.MonkeyPatch) -> None:
    given = [(kernel, (ONE,), {"out": VIEW}, grid, stream) for grid in GRIDS for stream in STREAMS]
    assert assert_same(monkeypatch, note, *given) > len(given) // 2


def test_a_copy_that_is_made_later_has_the_address_that_its_method_gives(note: Note, log: LaunchLog) -> None:
    late = torch._lazy_clone(ONE)
    note(kernel, (late,), {})
    assert launches(log)[-1].pointers == ((late.data_ptr(), 0),)
    assert late.data_ptr() != ONE.data_ptr()


def test_both_writers_share_one_order(note: Note, log: LaunchLog) -> None:
    for _ in range(50):
        hook(note, (kernel, (ONE,), {}, (1,)))
        hook(note_in_python, (other, (ONE,), {}, (1,)))
    assert [row.number for row in launches(log)] == list(range(form.ROWS + 1, form.ROWS + 101))
    assert names(log) == ["kernel", "another"] * 50


@pytest.mark.parametrize("depth", [0, 1, 90])
def test_the_line_is_that_of_the_program_behind_frames_of_libraries(
    note: Note, monkeypatch: pytest.MonkeyPatch, depth: int
) -> None:
    source = "def down(call, left):\n    return down(call, left - 1) if left else call()\n"
    space: dict[str, Any] = {}
    exec(compile(source, os.path.join(torch.__path__[0], "library.py"), "exec"), space)
    found = []
    for writer in (note_in_python, note):
        log = follow(monkeypatch, dirty())
        for _ in range(2):  # the second time all is known
            library_hook = eval(compile("lambda call, launch: call(*launch)", torch.__file__, "eval"))
            space["down"](lambda hooked=library_hook, one=writer: hooked(one, (kernel, (), {})), depth)
        found.append([row.site for row in launches(log)])
    assert found[0] == found[1]
    assert [(site.function, site.file) for site in found[1] if site] == [("<lambda>", __file__)] * 2


def test_where_all_frames_are_of_libraries_there_is_no_line(note: Note, log: LaunchLog) -> None:
    space: dict[str, Any] = {"note": note, "kernel": kernel}
    exec(compile("def call(): note(kernel, (), {})", torch.__file__, "exec"), space)
    thread = threading.Thread(target=space["call"])
    thread.start()
    thread.join()
    assert [(row.kernel, row.site) for row in launches(log)] == [("kernel", None)]


def test_each_line_has_its_own_row(note: Note, log: LaunchLog) -> None:
    for _ in range(2):
        note(kernel, (), {})
        note(kernel, (), {}), note(kernel, (), {})  # one line, two instructions
    lines = [row.site.line for row in launches(log) if row.site]
    assert len(lines) == 6
    assert lines[0] + 1 == lines[1] == lines[2]
    assert lines[:3] == lines[3:]


def test_another_log_begins_anew_and_the_old_one_is_written_no_more(
    note: Note, log: LaunchLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    note(kernel, (), {}, (2, 3))
    gone = Kernel("gone")
    held = weakref.ref(gone)
    note(gone, (), {})
    del gone
    assert held() is not None, "so that its address stays its own"
    log.remove()
    second = follow(monkeypatch, dirty())
    second.kernel("shifts the numbers")
    note(kernel, (), {}, (4,))
    assert held() is None
    monkeypatch.setattr(launch_recording, "current", None)
    note(kernel, (), {}, (9,))
    assert [(row.kernel, row.grid) for row in launches(log)] == [("kernel", (2, 3, 1)), ("gone", (0, 0, 0))]
    assert [(row.kernel, row.grid) for row in launches(second)] == [("kernel", (4, 1, 1))]
    assert {row.site.function for row in launches(second) if row.site} == {
        "test_another_log_begins_anew_and_the_old_one_is_written_no_more"
    }


def test_a_kernel_whose_address_comes_again_is_another(library: Library, log: LaunchLog) -> None:
    note = written_in_cpp(library, 2)
    assert note is not None
    seen: set[int] = set()
    again = 0
    for number in range(200):
        made = Kernel(f"kernel {number}")
        again += id(made) in seen
        seen.add(id(made))
        note(made, (), {})
        del made
    assert again, "precondition"
    assert names(log) == [f"kernel {number}" for number in range(200)]


def test_the_end_of_a_kernel_may_launch(library: Library, log: LaunchLog, monkeypatch: pytest.MonkeyPatch) -> None:
    note = written_in_cpp(library, 3)
    assert note is not None
    ends = 0

    class Launching(Kernel):
        def __del__(self) -> None:
            nonlocal ends
            ends += 1
            note(Kernel(f"end of {self.__name__}"), (ONE,), {})

    for number in range(100):
        note(Launching(f"{number}"), (ONE,), {})
    second = follow(monkeypatch, dirty())
    note(kernel, (), {})
    gc.collect()
    assert ends == 100
    assert len([name for log in (log, second) for name in names(log) if name.startswith("end of")]) == 100
    assert [name for name in names(log) if not name.startswith("end of")] == [str(number) for number in range(100)]


# -- events --------------------------------------------------------------------------------------------------------

GIVEN: list[Any] = [
    (),
    [],
    (1,),
    [1, 2, 3],
    list(range(10)),
    tuple(range(10)),
    list(range(11)),
    [1, -2],
    [1 << 63],
    "ab",
    3,
]
NUMBERS = [0, 1, (1 << 64) - 1, 1 << 64, -1, True, np.int64(3), None, 2.0]


def events_of(log: LaunchLog) -> bytes:
    """All bytes but the times, which are close to now."""
    content = bytearray(log.memory)
    for row in range(form.ROWS):
        place = form.ROWS_AT + row * form.ROW
        if int.from_bytes(content[place + form.ROW - 8 : place + form.ROW], "little") > form.ROWS:
            (when,) = struct.unpack_from("<d", content, place + form.TAIL_AT)
            assert abs(time.time() - when) < 60
            content[place + form.TAIL_AT : place + form.TAIL_AT + 8] = bytes(8)
    return bytes(content)


@pytest.mark.parametrize("redact", [False, True])
def test_rows_of_events_are_the_same(library: Library, monkeypatch: pytest.MonkeyPatch, redact: bool) -> None:
    found = []
    for put in (None, library.event_rows()):
        monkeypatch.setattr(LaunchLog, "put_event", put)
        log = dirty(redact)
        said = SharedText(form.RowKind.PLAN, f"{form.OPEN} requests", f"; {form.OPEN} entries")
        for given in GIVEN:
            log.note_shared(said, 7, 8, given)
        for number in NUMBERS:
            log.replay_passes(number, 5)  # type: ignore[arg-type]
            log.replay(5, number, False, failed=True)  # type: ignore[arg-type]
            log.note_shared(said, number, 1, (1, number))  # type: ignore[arg-type]
        log.capture(3, True)
        log.capture(3, False)
        found.append((log.lost, log.newest, events_of(log)))
    assert found[0][:2] == found[1][:2]
    assert found[0][2] == found[1][2]


def test_a_row_of_an_event_is_written_by_the_library_alone_where_it_fits(
    library: Library, log: LaunchLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = library.event_rows()
    assert put(log.address, log.rows, 6, 1, 2, 1, [3, 4])
    assert put(log.address, log.rows, 6, 1, 2, 0, ())
    before = log.newest
    for given in [
        (6, -1, 2, 1, ()),
        (6, 1, 2, "1", ()),
        (600, 1, 2, 1, ()),
        (6, 1, 2, 1, 3),
        (6, 1, 2, 1, [-1]),
        (6, 1),
    ]:
        assert not put(log.address, log.rows, *given)
    log.replay(1, 2, begins=True)
    assert (log.newest, log.lost) == (before + 1, 0), "what did not fit took no number"


# -- threads and processes ----------------------------------------------------------------------------------------


class Named(Kernel):
    """Whose name takes Python, so that another thread runs meanwhile."""

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def __name__(self) -> str:  # type: ignore[override]
        return "".join([each for each in self.name for _ in range(1)])


@pytest.mark.usefixtures("switching")
@pytest.mark.parametrize("texts", [3, 8192])
def test_threads_get_rows_of_their_own(library: Library, monkeypatch: pytest.MonkeyPatch, texts: int) -> None:
    note = written_in_cpp(library, texts)
    assert note is not None
    log, before = follow(monkeypatch, LaunchLog.anonymous()), internal_errors.total
    each, threads = 500, 8
    idents: dict[int, str] = {}

    def work(me: int) -> None:
        idents[threading.get_ident()] = f"thread {me}"
        kernels, tensor = [Named(f"thread {me} kernel {at}") for at in range(5)], torch.zeros(me + 1)
        together.wait()
        for at in range(each):
            note(kernels[at % 5], (tensor,), {}, (me, at))
        assert all(held.name for held in kernels)
        together.wait()

    together = threading.Barrier(threads)
    running = [threading.Thread(target=work, args=(me,)) for me in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    rows = launches(log, 0)
    assert internal_errors.total == before
    assert [row.number for row in rows] == list(range(1, each * threads + 1))
    for row in rows:
        me, at = row.grid[:2]
        assert row.kernel == f"thread {me} kernel {at % 5}"
        assert idents[row.thread] == f"thread {me}"
        assert row.site is not None
        assert row.site.function == "work"


@pytest.mark.usefixtures("switching")
def test_logs_that_change_under_threads_get_no_rows_of_others(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = written_in_cpp(library, 2)
    assert note is not None
    logs = [follow(monkeypatch, LaunchLog.anonymous()) for _ in range(2)]
    for at, log in enumerate(logs):  # a number of one log is another text in the other
        for extra in range(at * 7):
            log.kernel("x" * (extra + 1))
    over, before = threading.Event(), internal_errors.total

    def work(me: int) -> None:
        while not over.is_set():
            for at in range(4):
                note(Named(f"kernel {me} {at}"), (ONE,), {}, (me, at))

    running = [threading.Thread(target=work, args=(me,)) for me in range(4)]
    for thread in running:
        thread.start()
    for turn in range(400):
        launch_recording.current = logs[turn % 2]
        note(Named("kernel 9 9"), (), {}, (9, 9))
    over.set()
    for thread in running:
        thread.join()
    assert internal_errors.total == before
    for log in logs:
        rows = launches(log, max(0, log.newest - form.ROWS + 100))
        assert len(rows) > 100
        assert all(row.kernel == f"kernel {row.grid[0]} {row.grid[1]}" for row in rows)


def test_a_forked_child_writes_into_its_own_log(note: Note, log: LaunchLog) -> None:
    note(kernel, (), {}, (1,))
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            log.leave()
            note(kernel, (), {}, (2,))  # before the debugger has seen the fork: nowhere
            own = launch_recording.current = LaunchLog.anonymous()
            note(other, (ONE,), {}, (3,))
            note(kernel, (ONE,), {}, (4,))
            os.write(write, repr([(row.number, row.kernel, row.grid[0]) for row in launches(own, 0)]).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    with os.fdopen(read) as told:
        assert told.read() == repr([(1, "another", 3), (2, "kernel", 4)])
    note(kernel, (), {}, (5,))
    assert [row.grid[0] for row in launches(log)] == [1, 5]


def test_a_process_that_ends_while_it_launches(cached: Path) -> None:
    program = textwrap.dedent("""
        import atexit, threading, torch
        from shadowgraph.graphs import launch_rows
        from shadowgraph.graphs.observer import building
        from shadowgraph.graphs.observer.library import loaded
        from shadowgraph.model.launch_log import LaunchLog, SharedText
        from shadowgraph.tracking import launch_recording

        def kernel(): pass

        launch_rows._use(loaded(building.library()))
        note, launch_recording.current = launch_rows.note, LaunchLog.anonymous()
        assert note is not launch_rows.note_in_python

        def forever(tensor=torch.zeros(4)):
            while True:
                note(kernel, (tensor,), {}, (1,))

        class AtEnd:
            def __del__(self, note=note, kernel=kernel):
                note(kernel, (), {}, (1,))

        kept = AtEnd()
        kept.itself = kept
        atexit.register(note, kernel, (), {})
        threading.Thread(target=forever, daemon=True).start()
        note(kernel, (), {})
        print("ends")
    """)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ends\n", "")


# -- faults --------------------------------------------------------------------------------------------------------


def test_faults_are_counted_and_the_launch_goes_on(note: Note, log: LaunchLog) -> None:
    before, lost = internal_errors.total, log.lost
    faulty: list[tuple[Any, ...]] = [
        (object(), (), {}),  # it has no name
        (kernel, (torch.zeros(3).to_sparse(),), {}),
        (kernel, [ONE], {}),
        (kernel, (), ()),
        (kernel, ()),
    ]
    for number, launch in enumerate(faulty, 1):
        theirs = KeyError("theirs")
        try:
            raise theirs
        except KeyError:
            note(*launch)
            handled = sys.exc_info()[1]
        assert handled is theirs, "what the program handles stays so"
        assert internal_errors.total == before + number, launch
    assert launches(log) == []
    note(kernel, (ONE,), {})
    assert (names(log), log.lost) == (["kernel"], lost)
    assert any("row of a launch: AttributeError" in key for key in internal_errors.counts)


@pytest.mark.parametrize("in_cpp", [True, False])
def test_what_is_no_error_goes_to_the_program(note: Note, log: LaunchLog, in_cpp: bool) -> None:
    class Interrupted:
        @property
        def __name__(self) -> str:  # type: ignore[override]
            raise KeyboardInterrupt

    writer = note if in_cpp else note_in_python
    before = internal_errors.total
    with pytest.raises(KeyboardInterrupt):
        writer(Interrupted(), (), {})
    assert internal_errors.total == before


def test_a_report_that_fails_stays_ours(
    library: Library, log: LaunchLog, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(error: Exception) -> None:
        raise RuntimeError("ours") from error

    unraisable = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    monkeypatch.setattr(launch_rows, "_failed", fails)
    note = written_in_cpp(library)
    assert note is not None
    note(object(), (), {})
    assert [str(each.exc_value) for each in unraisable] == ["ours"]


def test_nothing_is_kept_but_what_is_remembered(note: Note, log: LaunchLog) -> None:
    tensor, stream, far = torch.zeros(4), 1 << 40, 1 << 41
    keywords, given = {"out": tensor}, (tensor, WEIGHT)

    def work() -> None:
        for _ in range(300):
            note(kernel, given, keywords, (1, 2), stream)
            note(kernel, given, keywords, (far, far), stream)
            note(kernel, given, keywords, NO_GRID, -1)

    watched = (kernel, given, keywords, tensor, stream, far, NO_GRID, work.__code__, None, log)
    work()
    before = [sys.getrefcount(each) for each in watched]
    work()
    after = [sys.getrefcount(each) for each in watched]
    assert all(abs(now - then) < 50 for now, then in zip(after, before, strict=True)), (before, after)


# -- where it is used ----------------------------------------------------------------------------------------------


def test_hooks_call_it_once_the_library_is_loaded(cached: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_rows, "note", note_in_python)
    monkeypatch.setattr(LaunchLog, "put_event", None)
    observer = OperatorObserver()
    observer.when_loaded(launch_rows._use)
    assert launch_rows.note is note_in_python
    observer.start()
    assert observer.wait(60), observer.sentence()
    observer.stop()
    assert type(launch_rows.note).__name__ == "builtin_function_or_method"
    assert type(LaunchLog.put_event).__name__ == "builtin_function_or_method"
    later: list[Library] = []
    observer.when_loaded(later.append)
    assert later == [observer._library]


def test_a_use_that_fails_leaves_the_observer_on(cached: Path) -> None:
    def fails(library: Library) -> None:
        raise RuntimeError("use")

    observer, before = OperatorObserver(), internal_errors.total
    observer.when_loaded(fails)
    observer.start()
    assert observer.wait(60), observer.sentence()
    assert internal_errors.total == before + 1
    observer.when_loaded(fails)
    assert internal_errors.total == before + 2
    observer.stop()


def test_a_library_with_another_layout_is_not_used(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    from shadowgraph.graphs.observer import library as module

    monkeypatch.setattr(launch_rows, "note", note_in_python)
    monkeypatch.setattr(LaunchLog, "put_event", None)
    monkeypatch.setattr(module, "_LAUNCH_ROW", (*module._LAUNCH_ROW[:-1], 99))
    launch_rows._use(library)
    assert launch_rows.note is note_in_python
    assert LaunchLog.put_event is None
