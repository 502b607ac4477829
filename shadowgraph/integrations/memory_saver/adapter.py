"""Attaches to torch_memory_saver after its import: tells a debugger which bytes lose their contents at a pause.

A region without a backup gives its physical memory back at `pause(tag)` and gets other memory, at the same addresses,
at `resume(tag)`. Called by the import hook, at the start of a debugger and at captures, in any thread; the wrappers run
in the threads that pause and resume. A pause waits for the device (the saver's users must have stopped their work), so
that the first bytes of what graphs read may be copied before it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch

from shadowgraph import session
from shadowgraph.common.fork_safety import fork_safe
from shadowgraph.common.imported_modules import imported
from shadowgraph.common.internal_errors import error_barrier_all
from shadowgraph.common.patching import PatchSet
from shadowgraph.integrations.dropped_memory import Drop, DroppedMemory
from shadowgraph.model.ranges import ByteRange

if TYPE_CHECKING:
    from shadowgraph.debugger import Debugger

PACKAGE = "torch_memory_saver"
_WHERE = "torch_memory_saver adapter"
PoolId = tuple[int, int]

_attaching = fork_safe(threading.Lock())
_patches = PatchSet()
_attached = False


class Pauses:
    """What pauses drop, and the graphs whose pools may be paused. An observer of debuggers."""

    def __init__(self) -> None:
        self.memory = DroppedMemory()
        self._graphs: list[tuple[str, weakref.ref[Any]]] = []  # captured in a region without a backup

    def started(self, debugger: Debugger) -> None:
        """Another debugger watches from here on."""

    def ended(self, debugger: Debugger) -> None:
        """The debugger watches no longer."""
        self.memory.forget(debugger)

    def captured(self, tag: str, graph: object) -> None:
        """A graph is captured into a pool that a pause of the tag drops."""
        self._graphs = [(each, known) for each, known in self._graphs if known() is not None]
        self._graphs.append((tag, weakref.ref(graph)))

    def pause(self, saver: Any, tag: str | None) -> list[Drop]:
        """Memory is about to be given back."""
        if session.current() is None:
            return []
        how = f'{PACKAGE} pause("{tag}")' if tag else f"{PACKAGE} pause()"
        return self.memory.announce(segments_of(dict(self._pools(saver, tag))), how)

    def _pools(self, saver: Any, tag: str | None) -> Iterator[tuple[PoolId, str]]:
        """Pools that a pause drops, with their tags. A key of the saver's pools begins with the tag, and tells next to
        it which backups its memory has."""
        for key, pool in list(getattr(saver._impl, "_mem_pools", {}).items()):
            if tag in (None, key[0]) and not any(flag is True for flag in key[1:]):
                yield pool.id, key[0]
        for known, reference in self._graphs:
            graph = reference()
            if graph is not None and tag in (None, known):
                with suppress(RuntimeError):  # it was reset, or its capture failed
                    yield graph.pool(), known


def segments_of(pools: Mapping[PoolId, str]) -> dict[str, list[ByteRange]]:
    """By tag: the segments of torch's caching allocator that belong to the pools of that tag."""
    found: dict[str, list[ByteRange]] = {}
    for segment in torch.cuda.memory_snapshot() if pools else ():
        tag = pools.get(tuple(segment["segment_pool_id"]))
        if tag is not None:
            where = ByteRange(segment["address"], segment["address"] + segment["total_size"])
            found.setdefault(tag, []).append(where)
    return found


def attach() -> bool:
    """Patch the class of savers once its package is imported; True when that is done."""
    global _attached
    with _attaching:
        saver = getattr(imported(f"{PACKAGE}.entrypoint"), "TorchMemorySaver", None)
        if not _attached and saver is not None:
            wrappers = (("pause", _wrap_pause), ("resume", _wrap_resume), ("cuda_graph", _wrap_capture))
            _patches.install([(saver, name, wrap) for name, wrap in wrappers if callable(vars(saver).get(name))])
            session.observers.append(pauses)
            _attached = True
    return _attached


def detach() -> None:
    """Remove the patches."""
    global _attached
    with _attaching:
        if _attached:
            _patches.uninstall()
            session.observers[:] = [each for each in session.observers if each is not pauses]
            pauses.memory.clear()
            _attached = False


pauses = Pauses()


def _wrap_pause(original: Callable[..., Any]) -> Callable[..., Any]:
    def pause(saver: Any, *args: Any, **kwargs: Any) -> Any:
        drops: list[Drop] = []
        with error_barrier_all(_WHERE):
            drops = pauses.pause(saver, _tag(args, kwargs))
        result = original(saver, *args, **kwargs)
        pauses.memory.dropped(drops)
        return result

    return pause


def _wrap_resume(original: Callable[..., Any]) -> Callable[..., Any]:
    def resume(saver: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(saver, *args, **kwargs)
        with error_barrier_all(_WHERE):
            tag = _tag(args, kwargs)
            pauses.memory.back(None if tag is None else (tag,))
        return result

    return resume


def _tag(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    return args[0] if args else kwargs.get("tag")


def _wrap_capture(original: Callable[..., Any]) -> Callable[..., Any]:
    def cuda_graph(saver: Any, cuda_graph: Any, *args: Any, **kwargs: Any) -> Any:
        with error_barrier_all(_WHERE):
            if not kwargs.get("enable_cpu_backup"):
                pauses.captured(kwargs.get("tag", "default"), cuda_graph)
        return original(saver, cuda_graph, *args, **kwargs)

    return cuda_graph
