"""Orders of pieces: which replays are learnt as steps, what is checked in them, and what a check then tells."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import pytest

from shadowgraph.model.graphs import Graph
from shadowgraph.model.phases import Phase
from shadowgraph.tracking import passing, step_order, steps


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Nothing was learnt."""
    forget()
    yield
    passing.let(0)
    forget()


def forget() -> None:
    steps.start_over()
    steps._pieces.clear()
    steps._former.clear()
    steps._starts.clear()


def graphs(count: int, first: int = 1) -> list[Graph]:
    made = [Graph(serial, f"graph#{serial}") for serial in range(first, first + count)]
    for graph in made:
        graph.checks_itself = True
    return made


def replay(*each: Graph, observed: bool = False) -> None:
    """Replay graphs as a backend does."""
    for graph in each:
        passing.let(0 if observed else 1 << 60)
        graph.replays += 1
        if steps.begins(graph):
            steps.switched(graph, steps.wants_checks(graph))


def checked(pieces: Sequence[Graph]) -> list[int]:
    """Places of the pieces whose nodes are enabled."""
    return [at for at, graph in enumerate(pieces) if steps.checks(graph)]


def learnt(count: int = 12, first: int = 1) -> list[Graph]:
    """Pieces in whose steps only the first and the last one are checked; three steps are over."""
    pieces = graphs(count, first)
    for _ in range(steps.TWICE + 1):
        replay(*pieces)
    assert checked(pieces) == [0, count - 1]
    return pieces


def test_an_order_is_learnt_from_two_steps_in_a_row() -> None:
    pieces = graphs(12)
    replay(*pieces, *pieces)
    assert checked(pieces) == list(range(12))
    replay(*pieces)
    assert checked(pieces) == [0, 11]


def test_steps_are_learnt_though_other_graphs_replay_between_them() -> None:
    pieces, (decode,) = graphs(12), graphs(1, 500)
    for _ in range(4):
        replay(*pieces, decode, decode, decode)
    assert checked(pieces) == [0, 11]
    assert steps.checks(decode)


@pytest.mark.parametrize(
    "places", [(0, 0, 0, 1, 1, 0), (0, 1, 2), (0, 1, 2, 3), (3, 2, 1, 0, 4), (0, 1, 2, 2, 3, 4, 5), (0, 2, 4, 1, 3)]
)
def test_ordinary_graphs_keep_their_checks(places: tuple[int, ...]) -> None:
    """Graphs for several batch sizes, of a draft model and its target, or replayed otherwise than captured."""
    all_of_them = graphs(6)
    for _ in range(20):
        replay(*(all_of_them[at] for at in places))
    assert checked(all_of_them) == list(range(6))


def test_graphs_of_batch_sizes_that_came_in_order_once_are_let_go_for_good() -> None:
    sizes = graphs(8)
    replay(*sizes, *sizes, *sizes)
    assert checked(sizes) == [0, 7], "precondition: mistaken for pieces"
    replay(sizes[3])
    for _ in range(3):
        replay(*(each for each in sizes for _ in range(2)))
    for _ in range(5):
        replay(*sizes)
    assert checked(sizes) == list(range(8))


@pytest.mark.parametrize("turns", [(0, 1), (1, 0), (0, 0, 1), (0, 1, 1), (1, 0, 0, 1, 0)])
def test_orders_of_two_batch_sizes(turns: tuple[int, ...]) -> None:
    """Their graphs were captured one after the other: replays tell where an order ends."""
    large, small, (decode,) = graphs(12), graphs(12, 13), graphs(1, 900)
    replay(*small, decode, *large, decode)
    for _ in range(6):
        for turn in turns:
            replay(*(large, small)[turn])
    assert checked(large) == checked(small) == [0, 11]
    assert steps.date(small[11].serial, small[11].replays, False).step.first == "graph#13"  # type: ignore[union-attr]


def test_a_step_that_is_given_up_has_all_pieces_checked_until_the_order_is_seen_again() -> None:
    pieces = learnt()
    replay(*pieces[:5], *pieces)
    assert checked(pieces) == list(range(12))
    replay(*pieces, *pieces)
    assert checked(pieces) == [0, 11]


def test_another_graph_in_a_step_ends_its_order() -> None:
    pieces, (other,) = learnt(), graphs(1, 700)
    replay(*pieces[:5], other, *pieces[5:])
    replay(*pieces)
    assert checked(pieces) == list(range(12))
    for _ in range(3):
        replay(*pieces)
    assert checked(pieces) == [0, 4, 5, 11], "of two orders now"


def test_another_thread_ends_it() -> None:
    pieces = learnt()
    thread = threading.Thread(target=replay, args=pieces)
    thread.start()
    thread.join()
    replay(*pieces)
    assert checked(pieces) == list(range(12))


def test_pieces_that_two_threads_replay_at_once_are_dated_as_before() -> None:
    pieces = learnt()
    replay(*pieces[:4])
    thread = threading.Thread(target=replay, args=pieces[:1])
    thread.start()
    thread.join()
    replay(*pieces[4:])
    replay(*pieces)
    assert checked(pieces) == list(range(12))


def test_while_launches_are_observed_for_long_all_pieces_are_checked() -> None:
    pieces = learnt()
    for _ in range(step_order.PATIENCE - 1):
        replay(*pieces, observed=True)
    assert checked(pieces) == [0, 11], "a few observed replays switch nothing"
    replay(*pieces, observed=True)
    assert checked(pieces) == list(range(12))
    replay(*pieces)
    assert checked(pieces) == [0, 11]


def test_nothing_is_switched_while_launches_are_observed() -> None:
    pieces = graphs(12)
    for _ in range(5):
        replay(*pieces, observed=True)
    assert checked(pieces) == list(range(12))


def test_pieces_that_cannot_be_switched_are_in_no_step() -> None:
    pieces = graphs(12)
    replay(*pieces, *pieces)
    for graph in pieces:
        graph.replays += 1
        if steps.begins(graph):
            if graph.serial == 4:
                steps.refuse(graph, "the program holds it")
            else:
                steps.switched(graph, steps.wants_checks(graph))
    for _ in range(4):
        replay(*pieces)
    assert checked(pieces) == [0, 1, 2, 3, 4, 11], "three before it, and an order of eight behind it"
    assert "1 graph in no step: the program holds it" in str(steps.sentence())


def test_a_piece_without_check_nodes() -> None:
    """It is empty, or checked by launches at each replay."""
    pieces = graphs(12)
    pieces[4].checks_itself = False
    replay(*pieces, *pieces, *pieces)
    assert checked(pieces) == [0, 11]
    replay(*pieces[:5])
    steps.looked(pieces[4])
    replay(*pieces[5:])
    assert dated(pieces[11], False) == (Phase.STEP, 4, 6, 11)


@pytest.mark.parametrize("place", [0, 11])
def test_the_first_and_the_last_piece_need_check_nodes(place: int) -> None:
    pieces = graphs(12)
    pieces[place].checks_itself = False
    for _ in range(6):
        replay(*pieces)
    assert checked(pieces) == list(range(12))


def test_a_graph_that_is_gone_ends_its_order() -> None:
    pieces = learnt()
    steps.dropped(pieces[6])
    replay(*pieces[:6], *pieces[7:])
    assert checked(pieces) == list(range(12))
    assert steps.date(12, 3, False) is not None, "evidence of its last replays may still arrive"


def test_a_debugger_that_starts_has_all_checked_again() -> None:
    pieces = learnt()
    steps.start_over()
    replay(*pieces)
    assert checked(pieces) == list(range(12))
    assert steps.sentence() is None


def test_replays_that_were_not_checked_are_counted() -> None:
    pieces = learnt()
    for _ in range(9):
        replay(*pieces)
    assert "100 replays of pieces" in str(steps.sentence())
    assert steps.unchecked() == 100
    steps.damaged(pieces[0])
    replay(*pieces)
    steps.dropped(pieces[3])
    assert "100 replays of pieces" in str(steps.sentence())


def test_many_graphs_that_replay_once_keep_little() -> None:
    for graph in graphs(20_000, 1):
        replay(graph)
        steps.dropped(graph)
    assert len(steps._here.runner.run) <= steps._MOST
    assert len(steps._starts) < 100
    assert not steps.known()


# -- what a check tells ----------------------------------------------------------------------------------------------


def dated(graph: Graph, end: bool, back: int = 0) -> tuple[Phase | None, int, int, int]:
    found = steps.date(graph.serial, graph.replays - back, end)
    assert found is not None
    return found.phase, found.step.number, found.step.since, found.step.until


def test_what_the_checks_of_a_step_tell() -> None:
    pieces = learnt()
    assert dated(pieces[0], False) == (None, 3, 1, 1)
    assert dated(pieces[0], True) == (Phase.REPLAY, 3, 1, 1)
    assert dated(pieces[11], False) == (Phase.STEP, 3, 2, 11)
    assert dated(pieces[11], True) == (Phase.REPLAY, 3, 12, 12)
    found = steps.date(12, 3, False)
    assert found is not None
    assert [piece.graph.serial for piece in found.pieces] == list(range(1, 12)), "the first one was checked"


def test_after_damage_a_check_tells_the_piece() -> None:
    pieces = learnt()
    steps.damaged(pieces[11])
    replay(*pieces)
    assert dated(pieces[6], True) == (Phase.REPLAY, 4, 7, 7)
    assert dated(pieces[6], False) == (Phase.BETWEEN, 4, 6, 7)
    assert dated(pieces[11], False) == (Phase.BETWEEN, 4, 11, 12)
    assert dated(pieces[11], False, back=1) == (Phase.STEP, 3, 2, 11), "as it was then"
    pieces[0].replays += 1
    steps.begins(pieces[0])
    assert not passing.on, "the first replay is observed, so that broken guards are armed again"
    replay(*pieces[1:])
    for _ in range(steps.AFTER_DAMAGE):
        replay(*pieces)
    assert checked(pieces) == [0, 11]


def test_a_launch_that_checks_a_piece_narrows_a_step_down() -> None:
    pieces = learnt()
    replay(*pieces[:5])
    steps.looked(pieces[4])
    replay(*pieces[5:])
    assert dated(pieces[5], False) == (Phase.BETWEEN, 4, 5, 6)
    assert dated(pieces[11], False) == (Phase.STEP, 4, 6, 11)


def test_a_check_within_a_step() -> None:
    pieces = learnt()
    assert steps.date_here() is None
    replay(*pieces[:5])
    found = steps.date_here()
    assert found is not None
    coming, date = found
    assert (coming.graph, coming.replay) == (pieces[5], 4)
    assert (date.phase, date.step.number, date.step.since, date.step.until) == (Phase.STEP, 4, 2, 5)


@pytest.mark.parametrize("again", [False, True])
def test_the_check_behind_a_step_that_was_cut_short(again: bool) -> None:
    """It finds what the unchecked pieces did."""
    pieces, (other,) = learnt(), graphs(1, 700)
    replay(*pieces[:5], pieces[0] if again else other)
    assert dated(pieces[0] if again else other, False) == (Phase.STEP, 4, 2, 5)


def test_numbers_of_steps_and_replays_differ() -> None:
    pieces = graphs(12)
    pieces[3].replays = 7
    replay(*pieces, *pieces, *pieces)
    steps.damaged(pieces[0])
    replay(*pieces)
    assert pieces[3].replays == 11
    assert dated(pieces[3], True) == (Phase.REPLAY, 4, 4, 4)


def test_replays_before_the_order_was_learnt_are_of_no_step() -> None:
    learnt()
    assert steps.date(12, 2, False) is None
    assert steps.date(12, 3, False) is not None
