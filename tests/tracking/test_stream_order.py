"""The order of streams from made-up calls: what is known to be over before what comes next."""

from __future__ import annotations

import random

import pytest

from shadowgraph.tracking.stream_order import Stamp, StreamOrder

DEFAULT, A, B, C = 0, 101, 102, 103


@pytest.fixture
def order() -> StreamOrder:
    made = StreamOrder()
    made.attach(lambda: DEFAULT)
    made.describe(DEFAULT, default=True, blocking=True)
    return made


def is_ordered(order: StreamOrder, number: int, of: int, on: int) -> bool:
    return order.known(on, of) >= number


def test_a_stream_is_in_order_with_itself_alone(order: StreamOrder) -> None:
    number = order.launched(A)
    assert is_ordered(order, number, A, A)
    assert not is_ordered(order, number, A, B)
    assert not is_ordered(order, number, A, DEFAULT), "streams that do not block are not ordered with the default one"


def test_a_wait_covers_what_came_before_the_record(order: StreamOrder) -> None:
    first = order.launched(A)
    event = order.recorded(A)
    second = order.launched(A)
    order.waits(B, event)
    assert is_ordered(order, first, A, B)
    assert not is_ordered(order, second, A, B)


def test_waits_carry_on(order: StreamOrder) -> None:
    number = order.launched(A)
    order.waits(B, order.recorded(A))
    before = order.recorded(C)
    order.waits(C, order.recorded(B))
    assert is_ordered(order, number, A, C)
    order.waits(DEFAULT, before)
    assert not is_ordered(order, number, A, DEFAULT), "the event is older than the wait"
    order.waits(DEFAULT, order.recorded(C))
    assert is_ordered(order, number, A, DEFAULT)


def test_the_host_orders_all_streams(order: StreamOrder) -> None:
    first, event = order.launched(A), order.recorded(A)
    second = order.launched(A)
    other = order.launched(C)
    order.host_waits(event)
    assert is_ordered(order, first, A, B)
    assert not is_ordered(order, second, A, B)
    order.host_waits_for(A)
    assert is_ordered(order, second, A, B)
    assert not is_ordered(order, other, C, B)
    order.host_waits_for_all()
    assert is_ordered(order, other, C, B)
    assert not is_ordered(order, order.launched(A), A, B)


def test_a_wait_for_a_stream_covers_what_it_waited_for(order: StreamOrder) -> None:
    number = order.launched(A)
    order.waits(B, order.recorded(A))
    order.host_waits_for(B)
    assert is_ordered(order, number, A, C)


@pytest.mark.parametrize("stale", [None, Stamp(0, {})])
def test_an_event_of_unknown_record_stands_for_everything(order: StreamOrder, stale: Stamp | None) -> None:
    number = order.launched(A)
    order.waits(B, stale)
    assert is_ordered(order, number, A, B)
    assert not is_ordered(order, number, A, C)
    order.host_waits(stale)
    assert is_ordered(order, number, A, C)


def test_a_period_begins_with_everything_in_order(order: StreamOrder) -> None:
    order.launched(A)
    event = order.recorded(A)
    order.end()
    order.begin()
    assert order.known(B, A) == 0
    number = order.launched(A)
    order.waits(B, event)
    assert is_ordered(order, number, A, B), "it may have been recorded again while nothing was observed"


def test_an_exposed_stream_is_known_to_the_host(order: StreamOrder) -> None:
    before = order.launched(A)
    order.expose(A)
    after = order.launched(A)
    number = order.launched(C)
    order.waits(A, order.recorded(C))
    assert all(is_ordered(order, each, of, B) for each, of in ((before, A), (after, A), (number, C)))


def test_another_debugger_knows_no_exposed_streams(order: StreamOrder) -> None:
    order.expose(A)
    order.detach()
    assert (order.on, order.current) == (False, None)
    order.attach(lambda: DEFAULT)
    assert not is_ordered(order, order.launched(A), A, B)


def test_without_a_backend_nothing_is_observed() -> None:
    order = StreamOrder()
    order.begin()
    assert not order.on


def test_the_default_stream_and_blocking_ones(order: StreamOrder) -> None:
    order.describe(A, default=False, blocking=True)
    first = order.launched(A)
    assert is_ordered(order, first, A, DEFAULT)
    second = order.launched(DEFAULT)
    assert is_ordered(order, second, DEFAULT, A)
    assert not is_ordered(order, second, DEFAULT, B)
    order.waits(B, order.recorded(DEFAULT))
    assert is_ordered(order, first, A, B), "over the default stream"


def test_against_reachability_in_random_programs() -> None:
    """Clocks say what a search through the edges of all operations says."""
    chance, streams = random.Random(11), [DEFAULT, A, B, C]
    answers = set()
    for _ in range(60):
        order = StreamOrder()
        order.attach(lambda: DEFAULT)
        before: list[set[int]] = []  # operations that are over before each one
        last: dict[int, set[int]] = {stream: set() for stream in streams}  # and before the next of a stream
        host: set[int] = set()
        numbers: dict[int, tuple[int, int]] = {}
        events: list[tuple[Stamp, set[int]]] = []
        for _ in range(40):
            stream, what = chance.choice(streams), chance.randrange(6)
            if what < 2:
                name = len(before)
                before.append(last[stream] | host)
                numbers[name] = stream, order.launched(stream)
                last[stream] = last[stream] | {name}
            elif what == 2:
                events.append((order.recorded(stream), last[stream]))
            elif what == 3 and events:
                stamp, over = chance.choice(events)
                order.waits(stream, stamp)
                last[stream] = last[stream] | over
            elif what == 4 and events and chance.random() < 0.3:
                stamp, over = chance.choice(events)
                order.host_waits(stamp)
                host |= over
            elif what == 5 and chance.random() < 0.1:
                order.host_waits_for(stream)
                host |= last[stream]
            for name, (of, number) in numbers.items():
                for on in streams:
                    said = is_ordered(order, number, of, on)
                    assert said == (name in last[on] | host or on == of)
                    answers.add(said)
    assert answers == {True, False}
