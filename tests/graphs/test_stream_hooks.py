"""Hooks on streams and events, on classes that stand in for torch's: each call tells the order that it makes."""

from __future__ import annotations

import _thread
import time
from collections.abc import Iterator
from operator import attrgetter
from types import ModuleType
from typing import Any

import pytest

from shadowgraph.graphs.cuda.streams import StreamHooks
from shadowgraph.tracking.captures import captures
from shadowgraph.tracking.stream_order import StreamOrder

A, B, CURRENT, FOREIGN = 0x1000, 0x2000, 0, 0x3000
BLOCKING, NON_BLOCKING = 0, 1


class _Handle:
    """A descriptor, as torch's classes have one for their handles."""

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        return self if owner is None else owner.handle


class _Base:
    cuda_stream = cuda_event = _Handle()

    def __init__(self, handle: int = 0, device_index: int = 0) -> None:
        self.handle, self.device_index = handle, device_index
        self.reached = True


class Event(_Base):
    def record(self, stream: Any = None) -> None:
        """As torch's."""

    def wait(self, stream: Any = None) -> None:
        """As torch's."""

    def query(self) -> bool:
        return self.reached

    def synchronize(self) -> None:
        """As torch's."""

    def elapsed_time(self, end_event: Any) -> float:
        return 1.0

    def ipc_handle(self) -> bytes:
        return b""


class Stream(_Base):
    def wait_event(self, event: Any) -> None:
        event.wait(self)

    def query(self) -> bool:
        return self.reached

    def synchronize(self) -> None:
        """As torch's."""

    def wait_stream(self, stream: Any) -> None:
        event = Event()
        event.record(stream)
        self.wait_event(event)


class Unseen:
    """An event of a class whose methods are not patched, such as ``torch.Event``."""

    def wait(self, stream: Any = None) -> None:
        """As torch's."""


@pytest.fixture
def functions() -> ModuleType:
    made = ModuleType("functions")
    made._cuda_synchronize = lambda: None  # type: ignore[attr-defined]
    return made


@pytest.fixture
def order(functions: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[StreamOrder]:
    monkeypatch.setattr("torch._C._cuda_getCurrentRawStream", lambda index: CURRENT, raising=False)
    made = StreamOrder()
    flags = {FOREIGN: BLOCKING}
    hooks = StreamHooks(0, made, lambda handle: flags.get(handle, NON_BLOCKING), Stream, Event, functions)
    hooks.install()
    yield made
    hooks.uninstall()
    assert made.current is None
    assert "record" in vars(Event)
    assert "cuda_stream" not in vars(Stream), "torch's own are back"


def launched(order: StreamOrder, of: int = A) -> Any:
    """Launch on a stream; the result says whether that is ordered before another."""
    number = order.launched(of)
    return lambda on=B: order.known(on, of) >= number


def test_wait_stream(order: StreamOrder) -> None:
    is_ordered = launched(order)
    Stream(A).wait_stream(Stream(B))
    assert not is_ordered()
    Stream(B).wait_stream(Stream(A))
    assert is_ordered()


def test_record_and_wait_take_the_current_stream(order: StreamOrder) -> None:
    is_ordered, event = launched(order, CURRENT), Event()
    event.record()
    event.wait(Stream(B))
    assert is_ordered()
    other, event = launched(order, A), Event()
    event.record(stream=Stream(A))
    event.wait()
    assert other(CURRENT)
    assert not other(B)


@pytest.mark.parametrize("how", ["synchronize", "query", "elapsed_time"])
def test_the_host_waits_for_an_event(order: StreamOrder, how: str) -> None:
    is_ordered, event = launched(order), Event()
    event.record(Stream(A))
    later = launched(order)
    {"elapsed_time": lambda: event.elapsed_time(event)}.get(how, lambda: getattr(event, how)())()
    assert is_ordered()
    assert not later()


def test_a_query_that_fails_orders_nothing(order: StreamOrder) -> None:
    is_ordered, event, stream = launched(order), Event(), Stream(A)
    event.record(stream)
    event.reached = stream.reached = False
    assert not event.query()
    assert not stream.query()
    assert not is_ordered()
    stream.reached = True
    assert stream.query()
    assert is_ordered()


def test_the_host_waits_for_a_stream_and_for_the_device(order: StreamOrder, functions: ModuleType) -> None:
    is_ordered, other = launched(order), launched(order, CURRENT)
    Stream(A).synchronize()
    assert is_ordered()
    assert not other()
    functions._cuda_synchronize()
    assert other()


def test_an_event_of_a_class_that_is_not_seen(order: StreamOrder) -> None:
    is_ordered = launched(order)
    Stream(B).wait_event(Unseen())
    assert is_ordered()


def test_an_event_that_was_never_recorded_in_sight(order: StreamOrder) -> None:
    is_ordered = launched(order)
    Stream(B).wait_event(Event())
    assert is_ordered()


def test_streams_of_other_devices_order_everything(order: StreamOrder) -> None:
    is_ordered, event = launched(order), Event()
    event.record(Stream(A))
    event.wait(Stream(0x9000, device_index=1))
    assert is_ordered(), "code of the other device may have told the host"


def test_a_handle_that_the_program_reads(order: StreamOrder) -> None:
    is_ordered = launched(order)
    assert Stream(A).cuda_stream == A
    assert is_ordered()
    assert launched(order)(), "and from now on"
    assert not launched(order, 0x4000)(), "but no other stream"
    assert Stream(CURRENT).cuda_stream == CURRENT
    assert not launched(order, CURRENT)(), "the default stream's is no secret"


def test_a_handle_that_code_without_a_frame_reads(order: StreamOrder, monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[Any] = []
    monkeypatch.setattr("sys.unraisablehook", raised.append)
    is_ordered = launched(order)
    _thread.start_new_thread(attrgetter("cuda_stream"), (Stream(A),))  # C code, as of a library's own thread
    deadline = time.monotonic() + 10
    while not (is_ordered() or raised or time.monotonic() > deadline):
        time.sleep(0.001)
    assert not raised
    assert is_ordered()


def test_the_handle_of_an_event(order: StreamOrder) -> None:
    is_ordered, event = launched(order), Event(7)
    assert event.cuda_event == 7
    event.record(Stream(A))
    assert is_ordered()


def test_a_stream_that_torch_did_not_make(order: StreamOrder) -> None:
    event = Event()
    event.record(Stream(FOREIGN))
    assert launched(order, FOREIGN)(B)


def test_a_capture_orders_what_came_before(order: StreamOrder) -> None:
    is_ordered = launched(order)
    running = captures.begin()
    Stream(A).wait_stream(Stream(B))
    running.end()
    assert is_ordered()
    assert not launched(order)()


@pytest.mark.parametrize("recorded", [False, True])
def test_an_event_that_a_graph_waits_for(order: StreamOrder, recorded: bool) -> None:
    """An external event: a node of the graph waits for what was recorded last before the replay."""
    event, inner = Event(), Event()
    if recorded:
        event.record(Stream(A))
    running = captures.begin()
    inner.record(Stream(B))
    inner.wait(Stream(B))
    event.wait(Stream(B))
    running.end()
    is_ordered = launched(order)
    inner.record(Stream(A))
    assert not is_ordered()
    event.record(Stream(A))
    assert is_ordered()


def test_while_nothing_is_observed_the_methods_are_torchs_own(order: StreamOrder) -> None:
    patched = vars(Event)["record"]
    event = Event()
    event.record(Stream(A))
    order.end()
    assert vars(Event)["record"] is not patched
    assert "cuda_stream" not in vars(Stream)
    order.begin()
    assert vars(Event)["record"] is patched
    is_ordered = launched(order)
    event.wait(Stream(B))
    assert is_ordered(), "it may have been recorded again meanwhile"
