"""Runs of a graph from one state that differ in bytes that must not matter (SG107).

Two runs with the first value in all these bytes must give equal results; results that differ are not deterministic, and
left out. A run with the second value shows which results depend on the bytes. Then bisection finds the bytes, and two
runs that differ in them alone the node. Pure over `Reruns`; in the replaying thread, without a lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from shadowgraph.checks.undefined.fills import Filled
from shadowgraph.checks.undefined.records import Effect, Influence, Output, Target, Trial
from shadowgraph.checks.undefined.values import canonical, different, finite, patterns, shown
from shadowgraph.model.probes import Search
from shadowgraph.model.ranges import ByteRange, RangeSet
from shadowgraph.model.reruns import Bytes, Fill, Reruns

_CAUSES = 4  # of one experiment
_TRIED = 32  # ranges between the first and the last that matter which are tried one by one
_MOST_RUNS = 400
_TRACED = 256 << 20  # bytes that are looked at node by node
_SMALL = (3, 4)  # further fills
_PRESENT = 2  # for a fill with what was there
_Part = tuple[int, ByteRange]  # a range filled with the other value: its place among all, and the part of it
_Results = list[Bytes]
_Elements = npt.NDArray[np.int64]


class TooManyRuns(Exception):
    """The bisection takes more runs than an experiment may."""


def tried(reruns: Reruns, fills: Sequence[Filled], outputs: Sequence[Output], targets: Sequence[Target]) -> Trial:
    """Try whether results of a graph depend on bytes that must not matter.

    Parameters
    ----------
    targets
        Bytes in which the first node is looked for whose results differ.
    """
    bench, trial = _Bench(reruns, fills, outputs), Trial()
    with suppress(TooManyRuns):  # what was found until then is certain
        bench.leave_out_unsteady(trial, targets)
        for other in (1, _PRESENT):
            if not trial.influences and not bench.overflows and bench.compare(other):
                found = (bench.influence(base, place, targets) for base, place in bench.places())
                trial.influences += [each for each in found if each is not None]
    trial.runs, trial.overflows = reruns.runs, bench.overflows
    return trial


def defined_by(reruns: Reruns, fills: Sequence[Filled]) -> RangeSet:
    """The bytes of some fills that a run of the graph defines: they hold the same value behind it, whichever they held
    before."""
    ranges = [each.where for each in fills]
    found: list[_Results] = []
    for value in (0, 1):
        reruns.run([each.fill(value) for each in fills])
        found.append(reruns.read(ranges))
    undefined: list[tuple[int, int]] = []
    for each, one, other in zip(fills, *found, strict=True):
        places, size = different(one, other, each.dtype, each.itemsize), _size(each, one)
        for run in np.split(places, np.flatnonzero(np.diff(places) > 1) + 1) if places.size else ():
            undefined.append((each.where.start + int(run[0]) * size, each.where.start + (int(run[-1]) + 1) * size))
    return RangeSet.of(ranges) - RangeSet.spanning(undefined)


class _Bench:
    """Runs with one of two values in each of the ranges: the first fill, and another one or what was there."""

    def __init__(self, reruns: Reruns, fills: Sequence[Filled], outputs: Sequence[Output]) -> None:
        self._reruns, self._fills, self._outputs = reruns, fills, list(outputs)
        self.overflows = 0
        self._other = 1  # the second value of the pair
        self._bisected = False  # whether the latest node was searched for
        self._direct = False  # whether nothing was computed from the fills, so that the fills themselves count
        self._plain: tuple[_Results, _Results] = [], []  # with the same value everywhere, for each value
        self._steady: tuple[list[Output], _Results] = [], []  # all outputs, with the first fill everywhere
        reruns.run((), 0)
        self._present = reruns.read([each.where for each in fills])

    def leave_out_unsteady(self, trial: Trial, targets: Sequence[Target]) -> None:
        """Leave out the results that two equal runs give different values, with all of their buffers."""
        first = self._results(0)
        self._plain = first, first
        unsteady = self._changed(first, self._results(0))
        if unsteady:
            buffers = {self._outputs[place].buffer.serial: place for place in sorted(unsteady, reverse=True)}
            node = self._first_node(self._with(0), self._with(0), targets, None)
            trial.unsteady += [(self._outputs[place], node) for place in buffers.values()]
            self._keep(p for p, output in enumerate(self._outputs) if output.buffer.serial not in buffers)
        self._steady = self._outputs, self._plain[0]

    def compare(self, other: int) -> bool:
        """Look which results depend on the fills; returns whether some do, each time."""
        self._other = other
        self._outputs, first = self._steady
        if not self._outputs:
            return False
        self._plain = first, self._results(1)
        everything = [(place, each.where) for place, each in enumerate(self._fills)]
        self._direct = False
        changed = self._against(0, everything, self._plain[1])
        if not changed:
            self._direct = True
            changed = self._against(0, everything, self._plain[1])
        self._keep(changed)
        for base in (1, 0) if self._outputs else ():  # again: a difference by chance is no dependence
            moved = self._changed(self._plain[base], self._results(base))
            self._keep(place for place in range(len(self._outputs)) if place not in moved)
        return bool(self._outputs)

    def places(self) -> list[tuple[int, int]]:
        """Ranges that matter by themselves, each with the value that all others have then.

        Where one of several alike is enough, as for a maximum, a change of one shows under one of the two values.
        """
        for base in (0, 1):

            def switched(first: int, stop: int, base: int = base) -> bool:
                return self._matters(base, [(place, self._fills[place].where) for place in range(first, stop)])

            ends = _ends(len(self._fills), switched)
            if ends is not None:
                first, last = ends
                between = range(first + 1, min(last, first + 1 + _TRIED))
                found = [first, *(place for place in between if switched(place, place + 1)), *([last] * (last > first))]
                return [(base, place) for place in found[:_CAUSES]]
        return []

    def influence(self, base: int, place: int, targets: Sequence[Target]) -> Influence | None:
        """What one range does to the results, from the first to the last of its elements that matters."""
        base, where = self._narrowed(base, place)
        results = self._results(base, [(place, where)])
        changed = self._against(base, [(place, where)], results)
        if not changed:
            return None
        one, other = self._with(base), self._with(base, [(place, where)])
        effects = [self._effect(at, elements, base, results) for at, elements in changed.items()]
        effects = self._without_overflows(effects, place, where)
        if not effects:
            return None
        effects.sort(key=lambda effect: not effect.output.sure)
        node = None if self._direct else self._first_node(one, other, targets, (place, where))
        known = list(self._reruns.order).index(node) if node is not None else None
        loads = self._reruns.loads(one, known, where) if known is not None else []
        filled = self._fills[place]
        fills = [shown(each, filled.dtype) for each in patterns(filled.dtype, filled.itemsize)]
        fills[1] = fills[1] if self._other == 1 else "what was there"
        search = Search(self._reruns.runs, len(self._reruns.order), self._reruns.how) if self._bisected else None
        return Influence(filled, where, tuple(effects), (fills[0], fills[1]), node, search, tuple(loads))

    def _without_overflows(self, effects: list[Effect], place: int, where: ByteRange) -> list[Effect]:
        """Leave out results that differ only in infinities and NaNs, and not between two small fills: a large one may
        overflow, and a mask that multiplies by 0 then hides it no more."""
        if not any(each.infinite for each in effects):
            return effects
        plain = self._with(0)
        found: list[_Results] = []
        for value in _SMALL:
            self._run([*plain, self._fills[place].fill(value, where)])
            found.append(self._reruns.read([output.where for output in self._outputs]))
        differing = {id(self._outputs[at]) for at in self._changed(*found)}
        kept = [each for each in effects if not each.infinite or id(each.output) in differing]
        self.overflows += not kept
        return kept

    # -- parts -------------------------------------------------------------------------------------------------

    def _with(self, base: int, switched: Sequence[_Part] = ()) -> list[Fill]:
        """The fills of a run: one value everywhere, and the other one in some parts."""
        plain = [self._fill(place, each.where, base) for place, each in enumerate(self._fills)]
        return [*plain, *(self._fill(place, part, 1 - base) for place, part in switched)]

    def _fill(self, place: int, where: ByteRange, base: int) -> Fill:
        """The fill of a part of a range, with one value of the pair."""
        value, filled = (0, self._other)[base], self._fills[place]
        if value != _PRESENT:
            return filled.fill(value, where)
        first = where.start - filled.where.start
        return Fill(where, self._present[place][first : first + where.nbytes].tobytes())

    def _results(self, base: int, switched: Sequence[_Part] = ()) -> _Results:
        self._run(self._with(base, switched))
        return self._reruns.read([output.where for output in self._outputs])

    def _run(self, fills: Sequence[Fill], count: int | None = None) -> None:
        if self._reruns.runs >= _MOST_RUNS:
            raise TooManyRuns
        self._reruns.run(fills, count)

    def _changed(self, one: _Results, other: _Results) -> dict[int, _Elements]:
        """The elements that differ, by the output's place."""
        found = {}
        for place, (output, before, after) in enumerate(zip(self._outputs, one, other, strict=True)):
            elements = different(before, after, output.dtype, output.itemsize)
            if elements.size:
                found[place] = elements
        return found

    def _keep(self, places: Iterable[int]) -> None:
        """Look at some of the outputs only."""
        kept = sorted(places)
        self._outputs = [self._outputs[place] for place in kept]
        one, other = ([results[place] for place in kept] for results in self._plain)
        self._plain = one, other

    def _matters(self, base: int, switched: Sequence[_Part]) -> bool:
        return bool(self._against(base, switched, self._results(base, switched)))

    def _against(self, base: int, switched: Sequence[_Part], results: _Results) -> dict[int, _Elements]:
        """The elements that a run with parts switched gives other values than the run without; unless nothing else is
        looked for, without those that hold their fills in both, since nothing has written them."""
        found = self._changed(self._plain[base], results)
        if self._direct:
            return found
        fills = [self._with(base), self._with(base, switched)]
        computed: dict[int, _Elements] = {}
        for at, elements in found.items():
            output = self._outputs[at]
            pairs = zip((self._plain[base][at], results[at]), fills, strict=True)
            kept = elements[~np.logical_and(*(_holds(data, output, each) for data, each in pairs))[elements]]
            if kept.size:
                computed[at] = kept
        return computed

    def _narrowed(self, base: int, place: int) -> tuple[int, ByteRange]:
        """From the first to the last element of a range that matters, and the value of all others then."""
        whole, size = self._fills[place].where, self._fills[place].itemsize

        def part(first: int, stop: int) -> ByteRange:
            return ByteRange(whole.start + first * size, min(whole.start + stop * size, whole.stop))

        for each in (base, 1 - base):

            def switched(first: int, stop: int, each: int = each) -> bool:
                return self._matters(each, [(place, part(first, stop))])

            count = -(-whole.nbytes // size)
            ends = _ends(count, switched) if each == base or switched(0, count) else None
            if ends is not None:
                return each, part(ends[0], ends[1] + 1)
        return base, whole

    def _effect(self, at: int, elements: _Elements, base: int, results: _Results) -> Effect:
        """Elements of an output that differ between two runs."""
        output, before, after = self._outputs[at], self._plain[base][at], results[at]
        size = _size(output, before)
        values = [_element(each, int(elements[0]), size) for each in (before, after)]
        said = [shown(each, output.dtype) if size == output.itemsize else each.hex() for each in values]
        starts = [output.where.start + int(place) * size for place in elements]
        differing = RangeSet.spanning((start, start + size) for start in starts)
        ends = [each.reshape(-1, size)[elements] for each in (before, after)]
        infinite = not self._direct and not finite(ends[0], ends[1], output.dtype)
        return Effect(output, differing, not self._direct, (said[base], said[1 - base]), infinite)

    def _first_node(
        self, one: Sequence[Fill], other: Sequence[Fill], targets: Sequence[Target], but: _Part | None
    ) -> int | None:
        """The first node after which some bytes differ between two runs, apart from fills that nothing has written."""
        order, ranges = self._reruns.order, [target.where for target in targets]
        digest = _digest(targets, [] if but is None else [self._fill(*but, base) for base in (0, 1)])
        self._bisected = False
        if sum(where.nbytes for where in ranges) * len(order) <= _TRACED:
            left, right = (self._reruns.trace(fills, ranges, digest) for fills in (one, other))
            if left is not None and right is not None:
                pairs = enumerate(zip(left, right, strict=True))
                return next((order[place] for place, (before, after) in pairs if before != after), None)

        def differs(count: int) -> bool:
            seen = []
            for fills in (one, other):
                self._run(fills, count)
                seen.append(digest(self._reruns.read(ranges)))
            return seen[0] != seen[1]

        self._bisected = True
        low, high = 0, len(order)
        if not differs(high):
            return None
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if differs(middle) else (middle, high)
        return order[high - 1]


def _ends(count: int, matters: Callable[[int, int], bool]) -> tuple[int, int] | None:
    """The first and the last of some elements that matter, all of which do together; None where they do not show one by
    one."""
    low, high = 0, count
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if matters(0, middle) else (middle, high)
    first = high - 1
    low, high = 0, count
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if matters(middle, count) else (low, middle)
    return (first, low) if first <= low else None


def _holds(data: Bytes, target: Output | Target, fills: Sequence[Fill]) -> npt.NDArray[np.bool_]:
    """Which elements hold fills, the last of which counts where they overlap."""
    expected, filled = np.zeros(data.size, dtype=np.uint8), np.zeros(data.size, dtype=np.bool_)
    for where, pattern in fills:
        both = target.where.intersect(where)
        if both is not None:
            mine, its = both.start - target.where.start, both.start - where.start
            turned = pattern[its % len(pattern) :] + pattern[: its % len(pattern)]
            expected[mine : mine + both.nbytes] = np.resize(np.frombuffer(turned, np.uint8), both.nbytes)
            filled[mine : mine + both.nbytes] = True
    return np.asarray((filled & (data == expected)).reshape(-1, _size(target, data)).all(axis=1))


def _digest(targets: Sequence[Target], fills: Sequence[Fill]) -> Callable[[list[Bytes]], bytes]:
    """A function that makes bytes of the values of the targets, the same ones for elements that hold any of the
    fills."""

    def digest(read: list[Bytes]) -> bytes:
        found = blake2b(digest_size=16)
        for target, data in zip(targets, read, strict=True):
            if any(target.where.overlaps(fill.where) for fill in fills):
                held = np.logical_or.reduce([_holds(data, target, [fill]) for fill in fills])
                data.reshape(held.size, -1)[held] = 0
            found.update(canonical(data, target.dtype, target.itemsize))
        return found.digest()

    return digest


def _size(target: Output | Target | Filled, data: Bytes) -> int:
    """Bytes of an element; 1 where the data are no whole elements."""
    return target.itemsize if not data.size % target.itemsize else 1


def _element(data: Bytes, place: int, size: int) -> bytes:
    return data[place * size : (place + 1) * size].tobytes()
