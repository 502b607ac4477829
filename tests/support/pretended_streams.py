"""Streams for the host backend, which has none: a test says which stream is current and what waits for what.

The order is kept by `tracking.stream_order` as on a device, so that everything above it is tested without one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from shadowgraph.tracking.stream_order import Stamp, StreamOrder, order

MAIN, SIDE, OTHER = 0, 0x51DE, 0x07E2


class Streams:
    """Pretended streams; calls are named as torch's."""

    def __init__(self, of: StreamOrder) -> None:
        self.order, self.now = of, MAIN

    @contextmanager
    def on(self, stream: int) -> Iterator[None]:
        """Submit to a stream inside the block."""
        before, self.now = self.now, stream
        try:
            yield
        finally:
            self.now = before

    def wait_stream(self, stream: int, other: int) -> None:
        self.order.waits(stream, self.order.recorded(other))

    def record(self, stream: int) -> Stamp:
        return self.order.recorded(stream)

    def wait_event(self, stream: int, event: Stamp | None) -> None:
        self.order.waits(stream, event)

    def synchronize(self, stream: int | None = None) -> None:
        self.order.host_waits_for(stream) if stream is not None else self.order.host_waits_for_all()


@contextmanager
def pretended() -> Iterator[Streams]:
    """Streams that the running debugger believes in."""
    assert order.current is None, "invalid: this process has real streams"
    streams = Streams(order)
    order.attach(lambda: streams.now)
    try:
        yield streams
    finally:
        order.detach()
