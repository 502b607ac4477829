"""Attaches to a wrapped process once torch is imported, and has adapters attach to the packages that have one.

Called by the start-up hook, in the importing thread.

Until the program does tensor work, no part of the debugger is loaded: importing torch costs a file with one line. On
the host, the first operator starts the debugger; with a GPU, the first one after the program's own initialisation of
CUDA, so that a process without CUDA stays safe to fork.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from multiprocessing import current_process, util
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from shadowgraph.common.compat import resolved
from shadowgraph.graphs.dispatch import thread_modes
from shadowgraph.integrations import notices
from shadowgraph.wrap.folder.injection_config import InjectionConfig
from shadowgraph.wrap.inject.process import ProcessMonitor

WhenImported = Callable[[str, Callable[[], None]], None]


def torch_loaded(when_imported: WhenImported) -> None:
    """Watch this process as the environment configures. Called once, by the start-up hook."""
    config = InjectionConfig.from_environment(os.environ)
    if config is None:
        return
    process = ProcessMonitor(config, resolved(config.backend), when_imported)
    spawned = "--multiprocessing-fork" in sys.orig_argv
    process.introduce("multiprocessing" if spawned else "start")
    if spawned:
        _entitle_when_it_begins(process)
    expect_adapters(when_imported, process.tell, process.place, first=not spawned)
    thread_modes.enter(process.target)
    thread_modes.install_in_new_threads(process.target)
    if process.backend == "cuda":
        torch.cuda._lazy_call(process.cuda_began)
        start_before_captures(process.start_here)
    os.register_at_fork(
        before=process.before_fork, after_in_parent=process.forked_in_parent, after_in_child=process.forked_in_child
    )
    atexit.register(process.finish)
    # Multiprocessing children clear inherited finalizers, then run these callbacks, and end by os._exit.
    util.register_after_fork(process, _child_of_multiprocessing)


def expect_adapters(when_imported: WhenImported, tell: notices.Tell, place: notices.Place, first: bool) -> None:
    """Have adapters attach once the program has imported their packages. Called once.

    Parameters
    ----------
    tell, place
        As for `notices.connect`.
    first
        False in a process spawned by another one of the same program, which has given the same notices already.
    """
    notices.connect(tell, place)
    when_imported("flashinfer", _attach_flashinfer)
    when_imported("torch_memory_saver", _attach_memory_saver)
    when_imported("vllm", _attach_vllm)
    if first:
        when_imported("sglang", _say_why_sglang_is_off)


def _attach_flashinfer() -> None:
    from shadowgraph.integrations.flashinfer.adapter import attach

    attach()


def _attach_memory_saver() -> None:
    from shadowgraph.integrations.memory_saver.adapter import attach

    attach()


def _attach_vllm() -> None:
    from shadowgraph.integrations.vllm.adapter import attach

    attach()


def _say_why_sglang_is_off() -> None:
    from shadowgraph.integrations.sglang.versions import why_off

    reason = why_off()
    if reason is not None:
        notices.tell(reason)


def start_before_captures(start: Callable[[], None]) -> None:
    """Start the debugger before a program's first capture, if no operator has; the patch removes itself."""
    graphs: Any = torch.cuda.CUDAGraph
    original = graphs.capture_begin

    def capture_begin(graph: Any, *args: Any, **kwargs: Any) -> None:
        if graphs.capture_begin is capture_begin:  # no other patch on top: no debugger watches yet
            graphs.capture_begin = original
            start()
            graphs.capture_begin(graph, *args, **kwargs)
        else:
            original(graph, *args, **kwargs)

    graphs.capture_begin = capture_begin


def _child_of_multiprocessing(process: ProcessMonitor) -> None:
    process.entitle(_title(current_process()))
    util.Finalize(None, process.finish, exitpriority=-1000)  # runs last


def _entitle_when_it_begins(process: ProcessMonitor) -> None:
    """Title a spawned child, still being unpickled, when its main function begins."""
    original = BaseProcess._bootstrap  # type: ignore[attr-defined]

    def bootstrap(child: BaseProcess, *args: Any, **kwargs: Any) -> Any:
        process.entitle(_title(child))
        BaseProcess._bootstrap = original  # type: ignore[attr-defined]
        return original(child, *args, **kwargs)

    BaseProcess._bootstrap = bootstrap  # type: ignore[attr-defined]


def _title(child: BaseProcess) -> str:
    """A process's name and the function that it runs."""
    target = getattr(child, "_target", None) or type(child).run
    name = getattr(target, "__qualname__", type(target).__qualname__)
    return f"{child.name}: {getattr(target, '__module__', '?')}.{name}"
