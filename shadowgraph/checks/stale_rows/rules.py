"""The rules of SG103: which rows of an input are suspected when a replay begins. Pure, any thread.

Shared by `StaleRows`, which then reads the rows, and by `WritePatterns`, for replays whose rows are overwritten by now.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from shadowgraph.checks.row_epochs import Mixture, Rows, Run, mixture, pads
from shadowgraph.checks.stale_rows.static_inputs import Input
from shadowgraph.model.ranges import RangeSet

POLICIES = ("refresh", "dont_care", "judged")  # values that `Debugger.padding` takes
_WHOLE = {"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool"}
InputKey = tuple[int, int]  # the buffer's serial, and the first byte


@dataclass(slots=True)
class Declared:
    """The user's declarations for a buffer's bytes: the bytes of each policy, the last declaration counting."""

    refresh: RangeSet = field(default_factory=RangeSet)
    dont_care: RangeSet = field(default_factory=RangeSet)
    judged: RangeSet = field(default_factory=RangeSet)

    def copy(self) -> Declared:
        """Independent sets of the same bytes."""
        return Declared(self.refresh.copy(), self.dont_care.copy(), self.judged.copy())


@dataclass(frozen=True, slots=True)
class Suspect:
    """An input with stale rows, which are a finding unless they hold zeros or all witnesses prove to be masks.

    Attributes
    ----------
    stale
        The latest run in each stale row; where some were declared to be refreshed, in these.
    declared
        Whether it needs no witness.
    judged
        Whether all the rows were declared to be judged.
    padded, full
        Witnesses that were padded, and witnesses that were written in full at once.
    """

    input: Input
    seen: Mixture
    stale: dict[int, Run]
    declared: bool
    judged: bool
    padded: list[Input]
    full: list[Input]


def key_of(each: Input) -> InputKey:
    """Names an input for as long as its buffer lives."""
    return each.story.buffer.serial, each.rows.start


def suspects(
    inputs: Sequence[Input], declared: Mapping[int, Declared], now: int, masks: Container[InputKey] = ()
) -> Iterator[Suspect]:
    """The inputs of a graph that are suspected as its replay begins, one for each first byte.

    Parameters
    ----------
    declared
        Declarations by the buffer's serial.
    now
        When the replay begins; inputs with unseen writes then are left out.
    masks
        Inputs that are no witnesses.
    """
    told: set[int] = set()
    for each in inputs:
        if each.rows.start in told or each.story.unseen == now or not each.story.epochs.mixed(each.rows):
            continue
        found = _suspect(each, inputs, declared.get(each.story.buffer.serial, Declared()), masks)
        if found is not None:
            told.add(each.rows.start)
            yield found


def _suspect(each: Input, inputs: Sequence[Input], known: Declared, masks: Container[InputKey]) -> Suspect | None:
    rows, epochs = each.rows, each.story.epochs
    seen = mixture(epochs.by_row(rows), epochs.last)
    stale = _unexempt(each, seen.stale, known)
    if not stale or not seen.fresh:
        return None
    declared = {row: run for row, run in stale.items() if known.refresh.overlaps(rows.span(row, row))}
    padded, full = ([], []) if declared else _witnesses(each, inputs, seen, masks)
    if not declared and not padded and not full:
        return None
    judged = _judged(rows, declared or stale, known)
    return Suspect(each, seen, declared or stale, bool(declared), judged, padded, full)


def _witnesses(
    each: Input, inputs: Sequence[Input], seen: Mixture, masks: Container[InputKey]
) -> tuple[list[Input], list[Input]]:
    """Other inputs in which this step wrote these very rows: as padding, and in full."""
    cut = seen.cut
    padded: list[Input] = []
    full: list[Input] = []
    for other in inputs if cut is not None else ():
        alike = other.rows.count == each.rows.count and other.rows.start != each.rows.start
        if cut is not None and alike and other.rows.view.dtype != "bool" and key_of(other) not in masks:
            found = pads(other.story.epochs.by_row(other.rows), other.story.epochs.last, cut)
            if found is not False:
                (padded if found else full).append(other)
    return padded, full if each.rows.view.dtype in _WHOLE else []


def _unexempt(each: Input, stale: dict[int, Run], known: Declared) -> dict[int, Run]:
    """Stale rows that no graph writes and that were not declared not to matter."""
    found = {}
    for row, run in stale.items():
        where = each.rows.span(row, row)
        if not known.dont_care.overlaps(where) and not each.story.made.overlaps(where):
            found[row] = run
    return found


def _judged(rows: Rows, stale: Iterable[int], known: Declared) -> bool:
    """Whether all the rows were declared to be judged."""
    spans = [rows.span(row, row) for row in stale]
    return all(known.judged.intersection(span) == [span] for span in spans)
