"""Hooks on torch's streams and events: what waits for what, told to `tracking.stream_order`.

Methods of ``torch.cuda.Stream`` and ``torch.cuda.Event`` are patched, and the functions of ``torch._C`` that wait for a
device. The patched methods run in the program's threads, without a lock. While nothing is observed they are torch's
own. Code that is not seen may use a handle that the program has read, so that reads of handles are reported as well.

Not seen are the methods of ``torch.Event`` and ``torch.Stream``, which are C types, of other libraries' streams and
events, and waits in C++.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from shadowgraph.common.compat import relaxed_capture
from shadowgraph.common.fork_safety import fork_safe
from shadowgraph.common.internal_errors import error_barrier, error_barrier_all
from shadowgraph.common.patching import PatchSet, Target, holders
from shadowgraph.graphs.cuda.driver import driver
from shadowgraph.tracking.captures import captures
from shadowgraph.tracking.stream_order import Stamp, StreamOrder, order

_STAMP, _EXPOSED = "_shadowgraph_stamp", "_shadowgraph_exposed"  # attributes of an event
_UNRECORDED = object()
_BACKWARD = "_engine_run_backward"
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
CAPTURES = -1
_FOREIGN = 16  # handles below are CUDA's own: the default stream (0, 1), and the one of each thread (2)
_ORDINARY = {"__hash__", "__repr__"}  # torch's own methods that read a handle and do not hand it on
_LIFTS = 200 if sys.version_info >= (3, 13) else None  # a class has 1,000 versions for its caches there, no more


class StreamHooks:
    """The hooks of one device.

    Parameters
    ----------
    index
        Number of the device.
    of
        Gets what the program does with streams and events.
    flags_of
        A stream's flags by its handle, or None where they are not known.
    stream_class, event_class, functions
        What is patched; torch's own but in tests.
    """

    def __init__(
        self,
        index: int,
        of: StreamOrder,
        flags_of: Callable[[int], int | None],
        stream_class: type | None = None,
        event_class: type | None = None,
        functions: Any = None,
    ) -> None:
        self._index, self._order, self._flags_of = index, of, flags_of
        self._stream = stream_class if stream_class is not None else torch.cuda.Stream
        self._event = event_class if event_class is not None else torch.cuda.Event
        self._functions = functions if functions is not None else torch._C
        self._patches = PatchSet()
        self._known: set[int] = set()  # described streams
        self._lock = fork_safe(threading.RLock())
        self._lifted, self._lifts_left = False, _LIFTS

    # -- installing ------------------------------------------------------------------------------------------------

    def install(self) -> None:
        """Patch the classes, and begin to observe; undone by `uninstall`."""
        targets: list[Target] = [
            (self._event, "record", self._wrap_record),
            (self._event, "wait", self._wrap_wait),
            (self._event, "query", self._wrap_event_query),
            (self._event, "synchronize", self._wrap_event_synchronize),
            (self._event, "elapsed_time", self._wrap_elapsed_time),
            (self._event, "cuda_event", self._wrap_event_handle),
            (self._event, "ipc_handle", self._wrap_event_ipc),
            (self._stream, "wait_event", self._wrap_wait_event),
            (self._stream, "query", self._wrap_stream_query),
            (self._stream, "synchronize", self._wrap_stream_synchronize),
            (self._stream, "cuda_stream", self._wrap_stream_handle),
            (self._stream, "native_handle", self._wrap_stream_handle),
        ]
        waits = ("_cuda_synchronize", "_accelerator_synchronizeDevice", "_cuda_emptyCache")
        targets += [(self._functions, name, self._wrap_device_wait) for name in waits]
        # A backward pass orders the streams of the forward pass in C++.
        targets += [(module, name, self._wrap_device_wait) for module, name in holders(torch.autograd.graph, _BACKWARD)]
        self._patches.install([each for each in targets if hasattr(each[0], each[1])])
        self._lifted, self._known = False, set()
        self._order.attach(self.current, self._settle)

    def uninstall(self) -> None:
        """Put torch's own methods back."""
        self._order.detach()
        with self._lock:
            self._patches.uninstall()
            self._lifted = False

    def _settle(self, on: bool) -> None:
        """Put torch's own methods back while nothing is observed. Of calls that overtake each other the last state of
        the order counts."""
        with self._lock:
            on = self._order.on
            if on is not self._lifted or (not on and self._lifts_left == 0):
                return
            if not on and self._lifts_left is not None:
                self._lifts_left -= 1
            self._lifted = not on
            self._patches.lay() if on else self._patches.lift()

    # -- streams ---------------------------------------------------------------------------------------------------

    def current(self) -> int:
        """The key of the current stream of this thread."""
        handle = int(torch._C._cuda_getCurrentRawStream(self._index))
        if handle not in self._known:
            self._describe(handle)
        return handle

    def _key(self, stream: Any) -> int | None:
        """The key of a stream object; None for one of another device."""
        if stream is None:
            return self.current()
        if stream.device_index != self._index:
            return None
        handle = self._handle(stream)
        if handle is not None and handle not in self._known:
            self._describe(handle)
        return handle

    def _handle(self, stream: Any) -> int | None:
        """The handle of a stream object, read past our hook."""
        read = self._patches.original(self._stream, "cuda_stream")
        if read is None or not isinstance(stream, self._stream):
            return None
        return int(read.__get__(stream, type(stream)))

    def _describe(self, handle: int) -> None:
        """Note what a stream is when it is first seen. One that torch did not make belongs to code that is not seen.

        A stream that captures is not asked, which would invalidate the capture. It counts as ordered with the default
        one, and is looked at again."""
        flags: int | None = 0
        if handle >= _FOREIGN:  # a call on the default stream may invalidate a capture elsewhere
            flags = None
            with error_barrier_all("flags of a stream"):
                flags = self._flags_of(handle)
            if flags == CAPTURES:
                self._order.describe(handle, default=False, blocking=True)
                return
        self._known.add(handle)
        self._order.describe(handle, default=handle in (0, 1), blocking=flags is None or not flags & _NON_BLOCKING)
        if flags is None or handle == 2 or (handle >= _FOREIGN and not flags & _NON_BLOCKING):
            self._order.expose(handle)

    # -- events ----------------------------------------------------------------------------------------------------

    def _stamp(self, event: Any) -> Stamp | None:
        return getattr(event, _STAMP, None) if isinstance(event, self._event) else None

    @property
    def _silent(self) -> bool:
        """Whether calls are not judged now: nothing is observed, or a capture runs, whose own edges would be taken for
        an order of streams. What a capture does counts as a wait for all."""
        if not self._order.on:
            return True
        if captures.running:
            self._order.host_waits_for_all()
            return True
        return False

    def _wrap_record(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def record(event: Any, stream: Any = None) -> Any:
            result = original(event, stream)
            with error_barrier("record of an event"):
                self._recorded(event, stream)
            return result

        return record

    def _recorded(self, event: Any, stream: Any) -> None:
        key = None if self._silent else self._key(stream)
        stamp = self._order.recorded(key) if key is not None else None
        setattr(event, _STAMP, stamp)
        if stamp is not None and getattr(event, _EXPOSED, False):
            self._order.host_waits(stamp)

    def _wrap_wait(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def wait(event: Any, stream: Any = None) -> Any:
            result = original(event, stream)
            with error_barrier("wait for an event"):
                self._waited(event, stream)
            return result

        return wait

    def _waited(self, event: Any, stream: Any) -> None:
        if captures.running and getattr(event, _STAMP, _UNRECORDED) is not None:
            self._expose_event(event)  # not recorded by the capture: replays will wait for it, in a node of the graph
        key = None if self._silent else self._key(stream)
        if key is not None:
            self._order.waits(key, self._stamp(event))
        elif self._order.on:  # of another device, by which anything may be ordered
            self._order.host_waits(self._stamp(event))

    def _wrap_wait_event(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def wait_event(stream: Any, event: Any) -> Any:
            result = original(stream, event)
            if not isinstance(event, self._event):  # whose own method is not seen
                with error_barrier("wait for an event"):
                    self._waited(event, stream)
            return result

        return wait_event

    def _wrap_event_query(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def query(event: Any) -> Any:
            reached = original(event)
            if reached:
                with error_barrier("query of an event"):
                    self._host_waited(event)
            return reached

        return query

    def _wrap_event_synchronize(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def synchronize(event: Any) -> Any:
            stamp = self._stamp(event)  # another thread may record it again
            result = original(event)
            with error_barrier("wait for an event"):
                self._host_waited(event, stamp)
            return result

        return synchronize

    def _wrap_elapsed_time(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def elapsed_time(event: Any, end_event: Any) -> Any:
            result = original(event, end_event)  # raises unless both were reached
            with error_barrier("time between events"):
                self._host_waited(event)
                self._host_waited(end_event)
            return result

        return elapsed_time

    def _host_waited(self, event: Any, stamp: Stamp | None = None) -> None:
        if not self._silent:
            self._order.host_waits(stamp if stamp is not None else self._stamp(event))

    # -- waits of the host -----------------------------------------------------------------------------------------

    def _wrap_stream_query(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def query(stream: Any) -> Any:
            empty = original(stream)
            if empty:
                with error_barrier("query of a stream"):
                    self._host_waited_for(stream)
            return empty

        return query

    def _wrap_stream_synchronize(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def synchronize(stream: Any) -> Any:
            result = original(stream)
            with error_barrier("wait for a stream"):
                self._host_waited_for(stream)
            return result

        return synchronize

    def _host_waited_for(self, stream: Any) -> None:
        key = None if self._silent else self._key(stream)
        if key is not None:
            self._order.host_waits_for(key)
        elif self._order.on:  # of another device, which may have waited for anything
            self._order.host_waits_for_all()

    def _wrap_device_wait(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def wait(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if self._order.on:
                with error_barrier("wait for a device"):
                    self._order.host_waits_for_all()
            return result

        return wait

    # -- handles ---------------------------------------------------------------------------------------------------

    def _wrap_stream_handle(self, original: Callable[..., Any]) -> Any:
        def handle(stream: Any) -> Any:
            found = original.__get__(stream, type(stream))
            if self._order.on and not _is_ordinary(sys._getframe().f_back):
                with error_barrier("handle of a stream"):
                    self._expose(stream)
            return found

        return property(handle)

    def _expose(self, stream: Any) -> None:
        key = self._handle(stream) if stream.device_index == self._index else None
        if key is not None and key >= _FOREIGN:  # those below are constants of CUDA
            self._order.expose(key)

    def _wrap_event_handle(self, original: Callable[..., Any]) -> Any:
        def handle(event: Any) -> Any:
            found = original.__get__(event, type(event))
            if self._order.on and not _is_ordinary(sys._getframe().f_back):
                with error_barrier("handle of an event"):
                    self._expose_event(event)
            return found

        return property(handle)

    def _wrap_event_ipc(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def ipc_handle(event: Any) -> Any:
            found = original(event)
            with error_barrier("handle of an event"):
                self._expose_event(event)
            return found

        return ipc_handle

    def _expose_event(self, event: Any) -> None:
        """Something that is not seen may wait for the event, now and whenever it is recorded."""
        if not isinstance(event, self._event):
            return
        setattr(event, _EXPOSED, True)
        if self._order.on:
            self._order.host_waits(self._stamp(event))


def _is_ordinary(frame: FrameType | None) -> bool:
    """Whether the reader of a handle keeps it to itself: this package, or torch for a name or a hash."""
    if frame is None:  # C code in a thread of its own
        return False
    module = frame.f_globals.get("__name__") or ""
    if module.partition(".")[0] == "shadowgraph":
        return True
    return module == "torch.cuda.streams" and frame.f_code.co_name in _ORDINARY


def flags_of(handle: int) -> int | None:
    """The flags of a stream, by the driver; None where it does not tell, and `CAPTURES` of one that captures now."""
    status, flags, stream = ctypes.c_int(), ctypes.c_uint(), ctypes.c_void_p(handle)
    with relaxed_capture():
        if driver().function("cuStreamIsCapturing")(stream, ctypes.byref(status)) or status.value:
            return CAPTURES
        code = driver().function("cuStreamGetFlags")(stream, ctypes.byref(flags))
    return None if code else flags.value


def hooks_of(index: int) -> StreamHooks:
    """The hooks for a device."""
    return StreamHooks(index, order, flags_of)
