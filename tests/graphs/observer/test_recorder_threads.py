"""Recordings beside threads of C++, at the end of the interpreter, and what must never wait for the interpreter's lock.

Each in a process of its own, since what goes wrong here hangs or aborts.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.native_threads import native_library

PREFACE = """
import ctypes, sys, threading, time
import torch
from shadowgraph.graphs.observer import building
from shadowgraph.graphs.observer.library import loaded
from shadowgraph.graphs.observer.recorder import CaptureRecorder, Question

library = loaded(building.library())
with_lock, without = ctypes.PyDLL(sys.argv[1]), ctypes.CDLL(sys.argv[1])
for calls in (with_lock, without):
    calls.native_asked.restype = calls.native_ran.restype = ctypes.c_uint64
    calls.native_run.argtypes = calls.native_run_in_thread.argtypes = [ctypes.c_uint64]
question = Question(ctypes.cast(without.native_ask, ctypes.c_void_p).value, False)

def recorder(device="cpu", keep=False):
    return CaptureRecorder(library, 7, torch.device(device), question, keep)
"""


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return native_library(tmp_path_factory)


def run(program: str, native: Path, cache: Path) -> str:
    """What a program prints, in a process that ends as it should and in time."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    environment.pop("CXX", None)
    done = subprocess.run(
        [sys.executable, "-c", PREFACE + program, str(native)],
        capture_output=True, text=True, timeout=120, env=environment, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


def test_a_thread_of_cpp_never_asks_for_the_interpreters_lock(native: Path, cache: Path) -> None:
    """The caller holds the lock while it waits for the thread: neither its stream nor a stack is asked of Python."""
    said = run(
        """
with_lock.native_streams()
made = recorder("cuda:0")
with_lock.native_run_in_thread(40)
made.stop()
print(len(made._words(4)), len(made._stacks.traces), hex(with_lock.native_asked()))
""",
        native, cache,
    )  # fmt: skip
    assert said == "41 0 0x5000", "all operators, none of which has a stack; the handle of the thread's own stream"


def test_operators_go_on_while_the_interpreter_ends(native: Path, cache: Path) -> None:
    """A thread that asks for the interpreter's lock then is ended in the middle of an operator, which aborts."""
    said = run(
        """
class Late:  # ends when the interpreter is ending
    def __del__(self, calls=with_lock, sleep=time.sleep, now=time.monotonic):
        before, until = calls.native_ran(), now() + 20
        while calls.native_ran() < before + 1000 and now() < until:
            sleep(0.001)  # leaves the lock to the other thread
        print(calls.native_ran() >= before + 1000)
        calls.native_halt()

def work():
    made = recorder()
    without.native_run(1 << 40)

threading.Thread(target=work, daemon=True).start()
while without.native_ran() < 100:
    time.sleep(0.001)
sys.modules["late"] = Late()
""",
        native, cache,
    )  # fmt: skip
    assert said == "True", "the thread waits for the lock for ever"


def test_no_recording_begins_once_the_interpreter_is_about_to_end(native: Path, cache: Path) -> None:
    """Such as a capture in a handler of the program's that runs after ours: a dispatch mode notes it."""
    said = run(
        """
import atexit

def late():
    try:
        recorder()
    except RuntimeError as error:
        print(error, library.captures.shadowgraph_captures_known())

from shadowgraph.graphs.observer import library as loading
atexit.register(late)
atexit.unregister(loading._end_captures)
atexit.register(loading._end_captures, library.captures.shadowgraph_captures_over)  # runs before it
torch.ones(4).add_(1)
before = recorder()
before.stop()
before.release()
""",
        native, cache,
    )  # fmt: skip
    assert said == "the capture cannot be recorded in C++ 0"


def test_a_recording_that_lives_until_the_interpreter_ends(native: Path, cache: Path) -> None:
    said = run(
        """
class Late:
    def __init__(self, made):
        self.made = made
    def __del__(self):
        self.made.stop()
        self.made.release()
        print("late")

made = recorder(keep=True)
torch.ones(4).add_(1)
sys.modules["late"] = Late(made)
sys.modules["later"] = recorder(keep=True)
del made
""",
        native, cache,
    )  # fmt: skip
    assert said == "late"


def test_no_storage_is_kept_with_the_recordings_lock_held(native: Path, cache: Path) -> None:
    """A storage that only Python holds takes the interpreter's lock when it gets an owner more, and the thread that has
    that lock may be waiting for the recording's."""
    said = run(
        """
over, place = threading.Event(), []

def work():
    taught = ()
    for _ in range(2):  # the second time most operators need no stack, and so no lock for it
        tensors = [torch.ones(4) for _ in range(64)]  # which no capture keeps
        storages = [x.untyped_storage() for x in tensors]
        place[:] = [CaptureRecorder(library, 7, torch.device("cpu"), question, True, taught)]
        without.native_move((ctypes.c_void_p * 64)(*(x._cdata for x in tensors)), ctypes.c_uint64(64))
        taught = (place[0].teaches("graph#1"),)
    over.set()

thread = threading.Thread(target=work, daemon=True)
thread.start()
while not place:
    time.sleep(0.001)
while not over.is_set():
    for _ in range(1000):
        place[0].open  # with the interpreter's lock
thread.join()
place[0].stop()
print(len(place[0]._stacks.traces), end=" ")
print(len(place[0]._words(4)))
""",
        native, cache,
    )  # fmt: skip
    assert said == "4 64"


def test_a_recording_ends_where_its_nodes_cannot_be_asked_for(native: Path, cache: Path) -> None:
    """Else it is on for good: sixteen may be at a time, and each operator of the program asks all of them."""
    said = run(
        """
for _ in range(40):
    made = recorder()
    without.native_refuse(True)
    made.stop()
    made.release()
    without.native_refuse(False)
asked, failures = without.native_asks(), library.failures.value
torch.ones(4).add_(1)
print(without.native_asks() - asked, failures)
""",
        native, cache,
    )  # fmt: skip
    assert said == "0 40"
