"""Every event reaches the listeners that override it, typed, and no error of one of them reaches the program."""

import inspect
from collections.abc import Iterator

import pytest

from shadowgraph.common.errors import FindingsError
from shadowgraph.common.internal_errors import internal_errors
from shadowgraph.graphs.events import Listener, events, listeners
from shadowgraph.model.graphs import Graph

GRAPH = Graph(1, "graph#1")


class Replays(Listener):
    def __init__(self, error: Exception | None = None) -> None:
        self.heard: list[Graph] = []
        self._error = error

    def replay_began(self, graph: Graph) -> None:
        self.heard.append(graph)
        if self._error is not None:
            raise self._error


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    before = listeners[:]
    yield
    for listener in listeners[:]:
        if listener not in before:
            listeners.remove(listener)


def test_each_method_of_a_listener_is_an_event() -> None:
    methods = {name for name, member in vars(Listener).items() if inspect.isfunction(member)}
    assert set(vars(events)) == methods
    for name in methods:
        assert getattr(events, name).__name__ == name


def test_listeners_that_come_and_go_are_called_in_order() -> None:
    first, second = Replays(), Replays()
    events.replay_began(GRAPH)  # fills the cache without them
    listeners.append(first)
    events.replay_began(GRAPH)
    listeners.append(second)
    events.replay_began(GRAPH)
    listeners.remove(first)
    events.replay_began(GRAPH)
    assert (len(first.heard), len(second.heard)) == (2, 2)


def test_a_listener_is_not_called_for_an_event_that_it_does_not_override() -> None:
    listener = Replays()
    listeners.append(listener)
    events.replay_ended(GRAPH)
    assert not listener.heard
    assert listeners.overriding("replay_ended") == ()


def test_an_internal_error_is_counted_and_the_next_listener_called() -> None:
    last = Replays()
    before = internal_errors.total
    listeners.append(Replays(RuntimeError("internal")))
    listeners.append(last)
    events.replay_began(GRAPH)
    assert (internal_errors.total - before, last.heard) == (1, [GRAPH])
    assert any(what.startswith("replay_began") for what in internal_errors.counts)
    internal_errors.clear()


def test_an_error_for_the_user_reaches_the_caller() -> None:
    listeners.append(Replays(FindingsError("found")))
    with pytest.raises(FindingsError):
        events.replay_began(GRAPH)
