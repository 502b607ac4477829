"""Triton launches on the host: reported, recorded into a capture, or run with every store logged.

Triton's interpreter (``TRITON_INTERPRET=1``) runs a kernel's programs one after another and stores through raw
addresses, so an out-of-bounds write is a real one. Every interpreted launch passes `GridExecutor.__call__`, whenever
its kernel was created. Hooks run in the launching thread; the recorder is thread-local, the patches are global.
"""

from __future__ import annotations

import copy
import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from msgspec.structs import replace

from shadowgraph.common.imported_modules import imported
from shadowgraph.common.internal_errors import error_barrier
from shadowgraph.common.patching import PatchSet
from shadowgraph.graphs import launch_rows
from shadowgraph.graphs.dispatch.tensors import Aliases, base_of, map_tensors, named_tensors, opened, tensors_in
from shadowgraph.graphs.events import events, listeners
from shadowgraph.graphs.triton import interpreter_hooks as triton_hooks
from shadowgraph.graphs.triton.interpreter_hooks import Running, running
from shadowgraph.model.graphs import Access, Launch, LaunchKind, Pointer
from shadowgraph.model.ranges import ByteRange
from shadowgraph.model.stacks import cell_label, current_stack
from shadowgraph.model.views import TensorView
from shadowgraph.tracking import passing
from shadowgraph.tracking.loads import LoadLog
from shadowgraph.tracking.pointer_tables import tables
from shadowgraph.tracking.stores import StoreLog

Recorder = Callable[[Any, tuple[Any, ...], dict[str, Any]], None]


class _Local(threading.local):
    recorder: Recorder | None = None


_local = _Local()
_patches = PatchSet()
_waits = False
_pending = 0  # installs that wait for Triton
_noting_loads = 0  # debuggers that want the loads of launches


def note_loads(on: bool) -> None:
    """Note the loads of launches whose stores are logged, too; counted."""
    global _noting_loads
    _noting_loads += 1 if on else -1


def new_log() -> StoreLog:
    """A log for a launch that is watched."""
    log = StoreLog()
    if _noting_loads:
        log.loads = LoadLog()
    return log


def wait_for_triton() -> None:
    """From here on `install` neither imports Triton nor waits for another thread's import of it: environment variables
    that the program sets before its own import must count. The caller calls `triton_imported` once the import is
    complete."""
    global _waits
    _waits = True


def triton_imported() -> None:
    """Perform the installs that waited; does nothing the second time."""
    global _pending, _waits
    _waits = False
    waiting, _pending = _pending, 0
    for _ in range(waiting):
        _hook()


def set_recorder(recorder: Recorder | None) -> None:
    """Send this thread's launches to a capture; None stops that."""
    _local.recorder = recorder


def install() -> None:
    """Hook the interpreter if Triton is already imported or can be; counted, undone by `uninstall`."""
    global _pending
    if imported("triton") is None and not _waits:
        try:
            import triton  # noqa: F401  # waits for an import by another thread
        except ImportError:
            return
    if imported("triton") is None:  # it is not wanted yet, or this thread is in the middle of its import
        _pending += 1
        return
    triton_imported()
    _hook()


def _hook() -> None:
    from triton.runtime import autotuner, interpreter

    _patches.install(
        [
            (interpreter.GridExecutor, "__call__", _wrap_call),
            (interpreter.InterpreterBuilder, "create_masked_load", triton_hooks.wrap_load),
            (interpreter.InterpreterBuilder, "create_masked_store", triton_hooks.wrap_store),
            (interpreter.InterpreterBuilder, "create_atomic_rmw", triton_hooks.wrap_rmw),
            (interpreter.InterpreterBuilder, "create_atomic_cas", triton_hooks.wrap_cas),
            (autotuner.Autotuner, "_bench", _wrap_bench),
        ]
    )


def uninstall() -> None:
    """Undo one `install`."""
    global _pending
    if _pending:
        _pending -= 1
    else:
        _patches.uninstall()


def execute(executor: Any, args: tuple[Any, ...], kwargs: dict[str, Any], log: StoreLog | None) -> None:
    """Run a launch with dispatch modes off (it emits operators of its own), logging stores into `log`."""
    if log is None:
        _run(executor, args, kwargs, Running())
        return
    install()  # the listener of a replay may not have installed the hooks
    try:
        _run(executor, args, kwargs, Running(log))
    finally:
        uninstall()


def execute_confined(executor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, ...]:
    """Run a launch whose loads and stores outside its arguments' storages are dropped; returns the grid it used.

    On CUDA a capture runs no work. Here it must, so that later operators find plausible values; damage is left to the
    replays, and accesses at addresses computed from values that are not yet meaningful are dropped.
    """
    confined, used = _noting_grid(executor)
    views = [TensorView.of(tensor) for tensor in tensors_of(args, kwargs)]
    allowed = [ByteRange(v.storage_address, v.storage_address + v.storage_nbytes) for v in views]
    # The interpreter leaves reference cycles that would keep the arguments alive: it gets aliases.
    _run(confined, _aliased(args), _aliased(kwargs), Running(None, allowed))
    return used[-1]


def frozen(executor: Any, grid: tuple[int, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any, Any]:
    """An executor and arguments for a node: a fixed grid, and tensors as aliases that own no memory."""
    fixed = copy.copy(executor)
    fixed.grid = grid
    return fixed, _aliased(args), _aliased(kwargs)


def _noting_grid(executor: Any) -> tuple[Any, list[tuple[int, ...]]]:
    """A copy of an executor, and a list that receives its grid when it runs."""
    used: list[tuple[int, ...]] = []
    grid, noting = executor.grid, copy.copy(executor)

    def noted(meta: dict[str, Any]) -> tuple[int, ...]:
        used.append(tuple(int(n) for n in (grid(meta) if callable(grid) else grid)))
        return used[-1]

    noting.grid = noted
    return noting, used


def describe(executor: Any, args: tuple[Any, ...], kwargs: dict[str, Any], grid: tuple[int, ...] | None) -> Launch:
    """The launch as data, with the caller's stack."""
    code = getattr(executor.fn, "__code__", None)
    return Launch(
        kind=LaunchKind.TRITON,
        name=executor.fn.__name__,
        pointers=pointers_of(executor, args, kwargs),
        stack=current_stack(),
        grid=grid,
        source=f"{cell_label(code.co_filename) or code.co_filename}:{code.co_firstlineno}" if code else None,
    )


def pointers_of(executor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Pointer, ...]:
    """A pointer for each tensor argument, descriptors' bases included, and for each buffer behind a table of addresses;
    members of a tuple, and what a table's words point to, as ``name[i]``."""
    named = named_tensors(tuple(executor.arg_names), *opened(args, kwargs))
    given = tuple(Pointer(n, TensorView.of(t), Access.UNKNOWN) for n, t in named)
    return given + tables.behind(given)


def tensors_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    """Every tensor that a launch was given, descriptors' bases included."""
    for value in (*args, *kwargs.values()):
        yield from tensors_in(base_of(value))


def _aliased(arguments: Any) -> Any:
    aliases = Aliases()

    def one(value: Any) -> Any:
        base = base_of(value)
        if base is value:
            return map_tensors(value, aliases)
        borrowed = copy.copy(value)
        borrowed.base = aliases(base)
        if hasattr(borrowed, "data"):  # of a tensor reinterpreted as another dtype
            borrowed.data = borrowed.base.data
        return borrowed

    if isinstance(arguments, dict):
        return {key: one(value) for key, value in arguments.items()}
    return tuple(one(value) for value in arguments)


def _run(executor: Any, args: tuple[Any, ...], kwargs: dict[str, Any], launch: Running) -> None:
    call = _patches.original(type(executor), "__call__") or type(executor).__call__
    with running(launch), torch._C._DisableTorchDispatch():
        call(executor, *args, **kwargs)


def _wrap_call(original: Callable[..., Any]) -> Callable[..., Any]:
    def launch(executor: Any, *args: Any, **kwargs: Any) -> None:
        known = inspect.getfullargspec(executor.fn).args
        kwargs = {key: value for key, value in kwargs.items() if key in known}
        if _local.recorder is not None:
            _local.recorder(executor, args, kwargs)
        elif not listeners or _passes(executor, args, kwargs):
            original(executor, *args, **kwargs)
        else:
            _run_noted(executor, args, kwargs)

    return launch


def _passes(executor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a launch passes unobserved, with a row in the launch log."""
    launch_rows.see_grid(executor.fn, executor.grid)  # first: it may end the passing
    if passing.on:
        launch_rows.note(executor.fn, args, kwargs, executor.grid)
    return passing.on


def _run_noted(executor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Run an eager launch with its stores logged, and report it to the listeners."""
    log, described = new_log(), None
    with error_barrier("describe launch"):
        described = describe(executor, args, kwargs, None)
    noting, used = _noting_grid(executor)
    try:
        execute(noting, _aliased(args), _aliased(kwargs), log)
    finally:  # an error in the kernel must not lose its stores so far
        if described is not None:
            events.launch_ran(replace(described, grid=used[-1] if used else None), log)


def _wrap_bench(original: Callable[..., Any]) -> Callable[..., Any]:
    def bench(tuner: Any, *args: Any, **kwargs: Any) -> Any:
        # Timings of an interpreter are meaningless, and benchmark launches do not belong in a capture: the first wins.
        if _local.recorder is not None or listeners:
            return [1.0, 1.0, 1.0]
        return original(tuner, *args, **kwargs)

    return bench
