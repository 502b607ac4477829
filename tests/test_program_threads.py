"""Which threads may run code of the program."""

from __future__ import annotations

import _thread
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from textwrap import dedent
from types import FunctionType

import pytest

from shadowgraph.common.program_threads import other_threads


@contextmanager
def running(thread: threading.Thread, go: threading.Event) -> Iterator[None]:
    thread.start()
    try:
        yield
    finally:
        go.set()
        thread.join(10)


def of_module(name: str, function: Callable[..., object]) -> Callable[..., object]:
    """A function whose code another module has, by its globals."""
    assert isinstance(function, FunctionType)
    made = FunctionType(function.__code__, {**globals(), "__name__": name}, closure=function.__closure__)
    made.__module__ = name
    return made


def test_none_but_this_one() -> None:
    assert other_threads() == []


@pytest.mark.parametrize("daemon", [True, False])
def test_a_thread_of_the_program(daemon: bool) -> None:
    go = threading.Event()
    with running(threading.Thread(target=go.wait, name="planner", daemon=daemon), go):
        assert other_threads() == ["planner"]
    assert other_threads() == []


def test_the_main_thread_counts_for_another_one() -> None:
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(other_threads).result() == ["MainThread"]


def test_an_idle_worker_and_a_timer() -> None:
    with ThreadPoolExecutor(1, thread_name_prefix="pool") as pool:
        pool.submit(int).result()
        assert other_threads() == ["pool_0"]
    timer = threading.Timer(60, print)
    timer.start()
    try:
        assert len(other_threads()) == 1
    finally:
        timer.cancel()
        timer.join()


def test_a_thread_without_an_object() -> None:
    began, go, ended = threading.Event(), threading.Event(), threading.Event()

    def run() -> None:
        began.set()
        go.wait()
        ended.set()

    ident = _thread.start_new_thread(run, ())
    assert began.wait(10)
    assert other_threads() == [f"thread {ident}"]
    go.set()
    assert ended.wait(10)


SERVICES = [
    "torch._inductor.compile_worker.subproc_pool",
    "shadowgraph.wrap.status.server",
    "ipykernel.heartbeat",
    "IPython.core.history",
    "tqdm._monitor",
    "_pytest",
]
PROGRAM = ["ipykernel.subshell", "tqdmish", "concurrent.futures.thread", "__main__"]


@pytest.mark.parametrize(
    ("module", "counts"), [*((name, False) for name in SERVICES), *((name, True) for name in PROGRAM)]
)
@pytest.mark.parametrize("by", ["its class", "its function", "its timer"])
def test_threads_of_services(module: str, counts: bool, by: str) -> None:
    began, go = threading.Event(), threading.Event()

    def wait() -> None:
        began.set()
        go.wait()

    made = of_module(module, wait)
    if by == "its class":
        thread = type("Service", (threading.Thread,), {"__module__": module, "run": lambda _: wait()})()
    elif by == "its function":
        thread = threading.Thread(target=made)
    else:
        thread = threading.Timer(0, made)
    with running(thread, go):
        assert began.wait(10)
        assert bool(other_threads()) is counts


def test_a_kernel_of_a_notebook_has_none() -> None:
    pytest.importorskip("ipykernel")
    manager = pytest.importorskip("jupyter_client.manager")
    kernel, client = manager.start_new_kernel()
    said: list[str] = []
    try:
        client.execute_interactive(
            dedent("""
                import threading
                from shadowgraph.common.program_threads import other_threads
                print(threading.active_count() > 1, other_threads())
            """),
            output_hook=lambda message: said.append(message["content"].get("text", "")),
            timeout=60,
        )
    finally:
        client.stop_channels()
        kernel.shutdown_kernel(now=True)
    assert "True []\n" in said


def test_it_holds_no_frame() -> None:
    """A frame that is kept would keep the variables of a thread's callers alive."""
    code = """
        import gc, weakref
        from shadowgraph.common.program_threads import other_threads
        class Held: pass
        def run():
            held = Held()
            gc.disable()
            assert other_threads() == []
            return weakref.ref(held)
        assert run()() is None
    """
    subprocess.run([sys.executable, "-c", dedent(code)], check=True)
