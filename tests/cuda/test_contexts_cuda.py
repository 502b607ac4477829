"""Launches from threads that have no device, calls that the driver refuses, and launch queues that are full.

What needs a process of its own runs in a child, as one of the functions called `child_...`.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers_cuda import capture, fill, guarded, only, overflow, warm_kernels

import shadowgraph as sg
from shadowgraph.engines.losses import CudaCallError

pytestmark = pytest.mark.gpu

HERE = Path(__file__).resolve().parent
BUFFERS = 64


def run_child(name: str, timeout: float = 120) -> str:
    """Run a child function to its end; what it printed."""
    paths = [str(HERE), str(HERE.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    code = f"import test_contexts_cuda as here; here.child_{name}()"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-X", "faulthandler", "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-4000:]
    return done.stdout


# -- threads without a device ------------------------------------------------------------------------------------------


def frees_in_a_plain_thread(device: int) -> None:
    with torch.cuda.device(device), sg.debug(backend="cuda") as debugger:
        warm_kernels()
        with debugger.guard():
            held = [torch.zeros(4096, dtype=torch.int32, device=f"cuda:{device}") for _ in range(BUFFERS)]
            table = torch.zeros(64, dtype=torch.int32, device=f"cuda:{device}")
        graph, _ = capture(lambda: fill(table))
        graph.replay()

        def frees() -> None:
            while held:
                held.pop()

        thread = threading.Thread(target=frees)
        thread.start()
        thread.join(60)
        with debugger.guard():  # takes the freed blocks
            again = [torch.zeros(4096, dtype=torch.int32, device=f"cuda:{device}") for _ in range(BUFFERS)]
        graph.replay()
        assert debugger.check() == ()
        overflow(table)
        graph.replay()
        found = only(debugger.check())
        assert (found.code, found.past_end) == ("SG101", 4)
        assert debugger.facts().faults == {}
        assert debugger._work.lost is None
        del again


def child_frees_on_the_first_device() -> None:
    frees_in_a_plain_thread(0)
    print("fine")


def child_frees_on_the_second_device() -> None:

    frees_in_a_plain_thread(1)
    flags, active = ctypes.c_uint(), ctypes.c_int(-1)
    assert not ctypes.CDLL("libcuda.so.1").cuDevicePrimaryCtxGetState(0, ctypes.byref(flags), ctypes.byref(active))
    print("context on device 0:", active.value)


def test_a_plain_thread_frees_guarded_tensors() -> None:
    assert run_child("frees_on_the_first_device") == "fine\n"


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_on_a_second_gpu_too_and_no_context_is_made_on_the_first() -> None:
    assert run_child("frees_on_the_second_device") == "context on device 0: 0\n"


# -- calls that the driver refuses -------------------------------------------------------------------------------------


def test_a_refused_launch_is_a_fault_and_checking_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    warm_kernels()
    with sg.debug(backend="cuda", checks="launches") as debugger:
        table = guarded(debugger, 64)
        graph, _ = capture(lambda: fill(table))
        graph.replay()
        prepared = debugger._work.context.engine._launcher._prepared[0].launcher  # type: ignore[attr-defined]
        with monkeypatch.context() as patch:
            patch.setattr(prepared, "_function", type(prepared._function)(0))
            graph.replay()
        assert debugger._work.lost is None
        assert sum(debugger.facts().faults.values()) >= 1
        overflow(table)
        graph.replay()
        graph.replay()
        assert only(debugger.check()).code == "SG101"


def test_what_was_refused_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with sg.debug(backend="cuda") as debugger:
        guarded(debugger, 64)
        debugger.check()
        engine = debugger._work.context.engine
        launcher = engine._launcher._prepared[0].launcher  # type: ignore[attr-defined]
        monkeypatch.setattr(launcher, "_function", type(launcher._function)(0))
        with pytest.raises(CudaCallError, match="refuses a launch"):
            engine.check("refused", debugger._work.guards())
        assert engine._queue.idle  # type: ignore[attr-defined]


# -- full queues -------------------------------------------------------------------------------------------------------


def python_callback(seconds: float, ran: list[float]) -> Any:
    """A host callback that takes some time and needs the interpreter's lock."""

    def called(_: int | None) -> None:
        time.sleep(seconds)
        ran.append(time.perf_counter())

    return ctypes.CFUNCTYPE(None, ctypes.c_void_p)(called)


def child_full_queue() -> None:
    """A host callback in Python stands before more launches than a stream's queue holds."""
    faulthandler.dump_traceback_later(60, exit=True)
    warm_kernels()
    ran: list[float] = []
    callback = python_callback(0.5, ran)
    driver = ctypes.CDLL("libcuda.so.1")
    with sg.debug(backend="cuda") as debugger:
        table = guarded(debugger, 64)
        graph, _ = capture(lambda: fill(table))
        graph.replay()
        torch.cuda.synchronize()
        for _ in range(3):
            stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
            assert not driver.cuLaunchHostFunc(stream, callback, None)
            for _ in range(1200):  # each with two checks of ours
                graph.replay()
            torch.cuda.synchronize()
        assert len(ran) == 3, "invalid: the callback did not run"
        assert debugger.check() == ()
        assert debugger.facts().faults == {}
    print("fine")


def child_callback_in_the_graph() -> None:
    """The callback is a node of a large graph: a check of ours is launched right behind it."""
    faulthandler.dump_traceback_later(60, exit=True)
    warm_kernels()
    ran: list[float] = []
    callback = python_callback(0.01, ran)
    driver = ctypes.CDLL("libcuda.so.1")
    with sg.debug(backend="cuda") as debugger:
        table = guarded(debugger, 64)

        def body() -> None:
            for part in range(4):
                stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
                assert not driver.cuLaunchHostFunc(stream, callback, None), part
                for _ in range(1000):
                    table.add_(1)

        graph, _ = capture(body)
        for _ in range(20):
            graph.replay()
            torch.cuda.synchronize()
            graph.replay()
        torch.cuda.synchronize()
        assert len(ran) == 160, "invalid: the callbacks did not run"
        assert debugger.check() == ()
    print("fine")


@pytest.mark.parametrize("name", ["full_queue", "callback_in_the_graph"])
def test_a_python_callback_in_the_queue_does_not_wait_for_us(name: str) -> None:
    assert run_child(name) == "fine\n"
