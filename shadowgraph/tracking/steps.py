"""Steps of pieces: graphs that are replayed in one order, step after step, are checked at the first and the last one.

A server that captures its model in pieces replays some dozens of graphs in each step, one after the other, with eager
code between them. Two checks a piece would cost more than the pieces. So the check nodes of all pieces but the first
and the last are disabled once their order is learnt, and enabled again in the steps after damage. The first and the
last piece keep both nodes, so that the device's counts of steps, and the log of checks, stay exact.

An order is learnt from replays alone: at least `LEAST` graphs with consecutive serials, as they were captured back to
back, which one thread replayed each once, from the same first to the same last, `TWICE`. A graph that is replayed twice
in a row, or after one that was not captured just before it, begins an order or is in none: graphs for several batch
sizes are recognised by that, and so are those of a draft model and its target. A graph is in one order at most. An
order ends when a step is cut short, or when one of its pieces is replayed elsewhere, by another thread, or with
another graph in between; it, or what is left of it, may be learnt again.

The backends of graphs call `begins` before each replay, in the replaying thread. No lock: an order belongs to one
thread, and other threads only read, or set a number.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Sequence

from shadowgraph.common.internal_errors import internal_errors
from shadowgraph.common.words import plural
from shadowgraph.model.graphs import Graph
from shadowgraph.tracking import passing
from shadowgraph.tracking.step_order import Date, Order, Piece, PieceReplay

LEAST = 5  # pieces of a step: checks of fewer cost little, and a speculative step has up to four graphs of its own
_MOST = 512
TWICE = 2  # replays of an order before it is learnt
AFTER_DAMAGE = 64  # steps in which all pieces are checked
_SEEN = 4096  # runs that are counted
_ENDED = 4096  # pieces of orders that ended, of which evidence may still arrive
_GONE = 64  # of these, of graphs that are gone
_CUTS = 64


class _Runner:
    """The replays of one thread.

    Attributes
    ----------
    awaited
        The piece that goes on with the running step.
    last
        The graph without an order that was replayed last, if no step has begun since.
    run
        That graph and those before it, if each was captured right after the one before.
    coming
        Serial of the graph that would go on with the run.
    again
        Serial of a graph that is replayed over and over; 0 for none.
    """

    __slots__ = ("again", "awaited", "coming", "last", "run")

    def __init__(self) -> None:
        self.awaited: Piece | None = None
        self.forget()

    def forget(self) -> None:
        """No graph without an order was replayed."""
        self.last: Graph | None = None
        self.run: list[weakref.ref[Graph]] = []
        self.coming = self.again = 0


class _Local(threading.local):
    def __init__(self) -> None:
        self.runner = _Runner()


_here = _Local()
_pieces: dict[int, Piece] = {}  # by the graph's serial: of orders, and of ended ones whose nodes are still disabled
_former: dict[int, Piece] = {}  # of ended orders
_gone: deque[int] = deque()  # serials of former pieces whose graphs are gone
_starts: set[int] = set()  # serials of graphs that go on with no run
_seen: dict[tuple[int, int], int] = {}  # how often a run was seen, by its first serial and its length
_cuts: dict[tuple[int, int], Date] = {}  # what the check before a replay tells, where a step was cut short before it
_left = [0]  # replays with disabled nodes, of graphs that are forgotten
refused: dict[str, set[int]] = {}  # serials of graphs whose nodes could not be switched, by reason


# -- before each replay ----------------------------------------------------------------------------------------------


def begins(graph: Graph) -> bool:
    """A replay is about to be launched, and `graph.replays` counts it. Returns whether its check nodes must be switched
    first, as `wants_checks` says, and then `switched` or `refuse` called."""
    here, serial = _here.runner, graph.serial
    piece = _pieces.get(serial)
    if piece is here.awaited:
        if piece is None:
            if here.again == serial:
                return False
            if here.run or serial not in _starts or here.coming not in _starts:
                return _off_path(here, graph, None)
            # Graphs that take turns and are known to go on with no run, as `_alone` notes them.
            here.again = serial if here.last is graph else 0
            here.coming, here.last = serial + 1, graph
            return False
        if not piece.order.ended:
            here.awaited = piece.following
            return piece.checked is not piece.wanted
    return _off_path(here, graph, piece)


def _off_path(here: _Runner, graph: Graph, piece: Piece | None) -> bool:
    """`_unexpected`, of which no error reaches the program."""
    try:
        return _unexpected(here, graph, piece)
    except Exception as error:  # other threads change the tables, too
        internal_errors.note("steps of pieces", error)
        return False


def settled(graph: Graph) -> bool:
    """Whether a replay that begins may pass: not one that no step covers, whose nodes could not be enabled yet."""
    piece = _pieces.get(graph.serial)
    return piece is None or piece.checked or not piece.order.ended


def _alone(here: _Runner, graph: Graph) -> None:
    """A graph without an order is replayed."""
    serial, coming, before = graph.serial, here.coming, here.last
    here.coming, here.last = serial + 1, graph
    if serial == coming and before is not None and serial not in _starts and len(here.run) < _MOST:
        here.again = 0
        here.run = here.run or [weakref.ref(before)]
        here.run.append(weakref.ref(graph))
        return
    _starts.add(serial)
    _starts.add(coming)
    here.again = serial if before is graph else 0
    if here.run:
        run, here.run = here.run, []
        _run_over(here, run, coming, graph)


def _run_over(here: _Runner, run: Sequence[weakref.ref[Graph]], coming: int, graph: Graph) -> None:
    """A run is over, as a graph begins, which may begin its order anew."""
    piece = _learnt(run, coming, here, graph)
    if piece is None:
        return
    if piece.place:
        _end(piece.order, graph)
    else:
        here.forget()
        _begin_step(here, piece.order)


def _unexpected(here: _Runner, graph: Graph, piece: Piece | None) -> bool:
    """A step begins, or was cut short, or a piece is replayed elsewhere."""
    if here.awaited is not None:
        _cut(here.awaited, graph)
        here.awaited = None
    if piece is None:
        _alone(here, graph)
        return False
    order = piece.order
    if not (order.ended or piece.place or order.runner is not here):
        _begin_step(here, order)
        return False
    if not order.ended:
        _end(order, graph)
        _starts.add(graph.serial)
    _alone(here, graph)
    if not piece.checked:
        return True
    _pieces.pop(graph.serial, None)
    return False


def _begin_step(here: _Runner, order: Order) -> None:
    """A step begins; a run of other graphs is over."""
    if here.last is not None:
        _starts.add(here.coming)
        _learnt(here.run, here.coming, here, order.first)
        here.forget()
    if order.begin(observed=not passing.on):
        passing.let(0)  # this replay is observed: broken guards are armed again before it
    here.awaited = order.pieces[0].following


def _learnt(run: Sequence[weakref.ref[Graph]], coming: int, runner: _Runner, begun: Graph) -> Piece | None:
    """A run is over, as a graph begins: count it, and learn its order. Returns that graph's place in it."""
    if len(run) < LEAST:
        return None
    key = coming - len(run), len(run)
    if len(_seen) >= _SEEN:
        _seen.clear()
    _seen[key] = times = _seen.get(key, 0) + 1
    if times < TWICE:
        return None
    del _seen[key]
    graphs = [found for each in run if (found := each()) is not None and checks(found)]
    # One in the middle may be empty, or checked by launches.
    if len(graphs) == len(run) and graphs[0].checks_itself and graphs[-1].checks_itself:
        order = Order(graphs, runner, begun)
        _pieces.update((piece.graph.serial, piece) for piece in order.pieces)
        return next((piece for piece in order.pieces if piece.graph is begun), None)
    return None


def _cut(awaited: Piece, graph: Graph) -> None:
    """A step goes on with another graph than the awaited piece: what its unchecked pieces did, the check of that graph
    finds."""
    order = awaited.order
    step = order.first.replays - (graph is order.first)
    if order.checked_before(awaited.place, step) < awaited.place - 1:
        while len(_cuts) >= _CUTS:
            _cuts.pop(next(iter(list(_cuts)), (0, 0)), None)
        _cuts[graph.serial, graph.replays] = order.date(awaited.place, step, False)
    _end(order, graph)


def _end(order: Order, begun: Graph | None = None) -> None:
    """An order is in force no more. Pieces whose nodes are disabled are kept until these are enabled."""
    if order.ended:
        return
    order.end(begun)
    for piece in order.pieces:
        serial = piece.graph.serial
        _forget(serial)
        _former[serial] = piece
        if piece.checked:
            _pieces.pop(serial, None)
    while len(_former) > _ENDED:
        _forget(next(iter(list(_former)), 0))


def _forget(serial: int) -> None:
    """Forget a former piece, but for what it counts."""
    piece = _former.pop(serial, None)
    if piece is not None:
        _left[0] += piece.unchecked


# -- for the backends ------------------------------------------------------------------------------------------------


def checks(graph: Graph) -> bool:
    """Whether the graph's check nodes are enabled, as far as steps are concerned."""
    piece = _pieces.get(graph.serial)
    return piece is None or piece.checked


def wants_checks(graph: Graph) -> bool:
    """Whether they are to be."""
    piece = _pieces.get(graph.serial)
    return piece is None or piece.wanted


def in_order(graph: Graph) -> bool:
    """Whether the graph is a piece of a learnt order, so that its check nodes may be disabled."""
    piece = _pieces.get(graph.serial)
    return piece is not None and not piece.order.ended


def switched(graph: Graph, on: bool, replay: int | None = None) -> None:
    """The check nodes of a piece are enabled, or disabled, from a replay on; by default from the one that begins."""
    piece = _pieces.get(graph.serial)
    if piece is None:
        return
    piece.switched(on, graph.replays if replay is None else replay)
    if on and piece.order.ended:
        _pieces.pop(graph.serial, None)


def refuse(graph: Graph, reason: str) -> None:
    """The check nodes of a piece cannot be switched: it is a piece of no step any more."""
    refused.setdefault(reason, set()).add(graph.serial)
    _starts.update((graph.serial, graph.serial + 1))
    piece = _pieces.get(graph.serial)
    if piece is not None:
        _end(piece.order)


def dropped(graph: Graph) -> None:
    """A graph is gone, and its order with it; evidence of its last replays may still arrive."""
    piece = _pieces.get(graph.serial)
    if piece is not None:
        _end(piece.order)
        _pieces.pop(graph.serial, None)
    _starts.discard(graph.serial)
    if graph.serial in _former:
        _gone.append(graph.serial)
        while len(_gone) > _GONE:
            _forget(_gone.popleft())


def start_over() -> None:
    """A debugger starts: what an earlier one learnt is over, and the checks of all graphs are enabled again at their
    next replays."""
    for piece in list(_pieces.values()):
        _end(piece.order)
    _former.clear()
    _gone.clear()
    _seen.clear()
    _cuts.clear()
    refused.clear()
    _left[0] = 0
    for piece in _pieces.values():  # their nodes are disabled still
        piece.count_from_here()
    _here.runner = _Runner()


# -- for the monitor -------------------------------------------------------------------------------------------------


def known() -> bool:
    """Whether any order was learnt; while not, nothing else here needs to be asked."""
    return bool(_pieces or _former or _cuts)


def looked(graph: Graph) -> None:
    """Launches have checked before and after the replay of a piece that has just ended."""
    piece = _pieces.get(graph.serial)
    if piece is not None and not piece.checked:
        piece.looked()


def date(graph: int, replay: int, end: bool) -> Date | None:
    """What the check at the begin or the end of a replay tells of damage that it finds; None for a graph that was no
    piece then.

    Parameters
    ----------
    graph
        Serial of the graph.
    """
    cut = _cuts.get((graph, replay)) if not end else None
    if cut is not None:
        return cut
    for known in (_pieces, _former):
        piece = known.get(graph)
        if piece is not None and piece.since < replay and (piece.until is None or replay <= piece.until):
            return piece.order.date(piece.place, replay - piece.lag, end)
    return None


def date_here() -> tuple[PieceReplay, Date] | None:
    """The same for a check at this point of the calling thread, within a step; with the replay that comes."""
    awaited = _here.runner.awaited
    if awaited is None or awaited.order.ended:
        return None
    coming, step = PieceReplay(awaited.graph, awaited.graph.replays + 1), awaited.order.first.replays
    return coming, awaited.order.date(awaited.place, step, False)


def damaged(graph: Graph) -> None:
    """A check of a graph has found damage: all pieces of its step are checked in the steps that come."""
    piece = _pieces.get(graph.serial)
    if piece is not None:
        piece.order.full_until = piece.order.first.replays + AFTER_DAMAGE


def unchecked() -> int:
    """Replays so far with disabled check nodes, which the device has not counted then."""
    found = {id(piece): piece for known in (_pieces, _former) for piece in list(known.values())}
    return _left[0] + sum(piece.unchecked for piece in found.values())


def sentence() -> str | None:
    """What was checked by steps, for the report; None where each replay was checked."""
    count, parts = unchecked(), []
    if count:
        parts.append(
            f"{count:,} replays of pieces were checked with their step, by the checks around its first and last piece, "
            "as far as guards go: what the host plans from was compared around these two only"
        )
    parts += [f"{plural(len(graphs), 'graph')} in no step: {why}" for why, graphs in refused.items()]
    return "; ".join(parts) or None
