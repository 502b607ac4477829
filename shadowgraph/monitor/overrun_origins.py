"""Where an overrun began that broke a guard: two rules, one for confirmed launches and one for runs of changed bytes.

`confirmed_origin` goes by the launch: it was given no pointer into the guard's buffer, was given one into the buffer
where the overrun began, and no guard between the two is intact.

`Run` is for damage of which no launch is confirmed, as a device's checks show it: guards that lie next to each other by
address, are broken without a gap, and were seen broken at one boundary. The guard that faces the overrun continues it.
The guard on a buffer's far side continues it as well, unless a launch that was given the buffer may have broken that
one by itself: then it stays a finding, which names the overrun as its possible cause. Pure rules; `OverrunChain` asks
them, under the debugger's lock.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shadowgraph.model.buffers import Buffer
from shadowgraph.model.findings import Finding, Status
from shadowgraph.model.guards import Side
from shadowgraph.monitor.broken_guards import (
    OPEN,
    VALUE,
    BrokenGuard,
    BrokenGuards,
    Date,
    Who,
    confirmed_of,
    guard_at,
    who_of,
)

_GAP = 1 << 20  # most bytes between two guards that belong to no buffer
_LONGEST = 1024  # most guards of a run


# -- confirmed launches ----------------------------------------------------------------------------------------------


def is_confirmed(finding: Finding | None) -> bool:
    """Whether the launch of a finding is confirmed."""
    return finding is not None and finding.culprit.status is Status.CONFIRMED


def confirmed_origin(guards: BrokenGuards, here: BrokenGuard) -> int | None:
    """The finding that a guard's damage continues, if all its confirmed culprits came from there."""
    finding = guards.finding(here)
    if finding is None or not is_confirmed(finding):
        return None
    sure = confirmed_of(finding)
    begun = [_begun(guards, here, who_of(one, finding)) if one.kind not in OPEN else None for one in sure]
    return begun[0] if None not in begun else None


def _begun(guards: BrokenGuards, here: BrokenGuard, who: Who) -> int | None:
    """The finding where a launch began that broke a guard of a buffer that it was not given."""
    given = here.given.get(who, set())
    if here.buffer.serial in given:
        return None
    first = (one for serial in given for side in (Side.BEFORE, Side.AFTER) for one in guards.at((serial, side)))
    found = [there for there in first if _did(guards, there, who) and _goes_on(guards, there, here)]
    nearest = min(found, key=lambda there: abs(there.buffer.start - here.buffer.start), default=None)
    return nearest.id if nearest is not None else None


def _did(guards: BrokenGuards, there: BrokenGuard, who: Who) -> bool:
    """Whether a launch is a confirmed culprit of a broken guard."""
    finding = guards.finding(there)
    return finding is not None and any(who_of(one, finding) == who for one in confirmed_of(finding))


def _goes_on(guards: BrokenGuards, there: BrokenGuard, here: BrokenGuard) -> bool:
    """Whether the damage at one guard faces another one, and no guard between the two is intact."""
    up = there.buffer.start < here.buffer.start
    if there.side is not (Side.AFTER if up else Side.BEFORE):
        return False
    if not (
        guards.is_broken(there.buffer, there.side, not up, up) and guards.is_broken(here.buffer, here.side, up, not up)
    ):
        return False
    for buffer, side in _way(guards, here, there, up):
        if not guards.is_broken(buffer, side, True, True):
            return False
        if any(one.origin == there.id for one in guards.at((buffer.serial, side))):
            return True  # already linked from there
    return True


def _way(guards: BrokenGuards, here: BrokenGuard, there: BrokenGuard, up: bool) -> Iterator[tuple[Buffer, Side]]:
    """The sides of buffers between two guards, from one to the other; `up` when the second lies lower."""
    near, far = (Side.BEFORE, Side.AFTER) if up else (Side.AFTER, Side.BEFORE)
    if here.side is far:
        yield here.buffer, near
    each, end = here.buffer, there.buffer.start
    while True:
        after = guards.neighbour(each, not up)
        if after is None or (after.start <= end if up else after.start >= end):
            return
        each = after
        yield each, far
        yield each, near


# -- runs of changed bytes -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Run:
    """Broken guards next to each other, by address, without an intact byte in between as far as guards show.

    Attributes
    ----------
    parts
        In the direction of the overrun, the guard where it began first; fewer than two where no overrun can be told.
    """

    guards: BrokenGuards
    parts: list[BrokenGuard]

    @classmethod
    def around(cls, guards: BrokenGuards, known: BrokenGuard) -> Run:
        """The run that a guard belongs to."""
        low = _walk(guards, known, up=False)
        high = _walk(guards, known, up=True)
        return cls(guards, _from_its_begin(guards, [*reversed(low), known, *high]))

    def judge(self, fresh: set[Date]) -> None:
        """Set the origin of each guard whose launch is not confirmed.

        Parameters
        ----------
        fresh
            Boundaries of which more evidence may arrive: a guard stays tied although its origin was not seen at one.
        """
        if not self.parts:
            return
        root = self.parts[0]
        _leave(root, self.guards)
        for known in self.parts[1:]:
            if is_confirmed(self.guards.finding(known)):
                root = known if known.side is root.side and known.origin is None else root
            elif self._continues(known, root, fresh):
                known.origin, known.perhaps = root.id, None
            else:
                known.origin, known.perhaps = None, root.id
                root = known if known.side is root.side else root

    def _continues(self, known: BrokenGuard, root: BrokenGuard, fresh: set[Date]) -> bool:
        """Whether a guard was broken by the overrun that began at another one, and by nothing else."""
        if known.side is root.side and known.suspected:
            return False
        held = fresh if known.origin == root.id else set()
        return not _unshared(known, root) - held


def _leave(root: BrokenGuard, guards: BrokenGuards) -> None:
    """A guard where a run begins continues none."""
    if not is_confirmed(guards.finding(root)):
        root.origin = root.perhaps = None


def _unshared(known: BrokenGuard, root: BrokenGuard) -> set[Date]:
    """Boundaries at which a guard was seen broken and the guard where the overrun began was not.

    Where the far part of that one was read later, it may have been broken before.
    """
    oldest = min(root.dates.values(), default=0)
    return {
        date for date, order in known.dates.items() if date not in root.dates and order > root.late and order >= oldest
    }


def _walk(guards: BrokenGuards, known: BrokenGuard, up: bool) -> list[BrokenGuard]:
    """The broken guards that follow one without a gap, in one direction."""
    found: list[BrokenGuard] = []
    at = known
    while len(found) < _LONGEST and guards.is_broken(at.buffer, at.side, not up, up):
        after = _next(guards, at, up)
        if after is None or not guards.is_broken(after.buffer, after.side, up, not up):
            break
        if not (_together(guards, after, at) and _is_dense(guards, at) and _is_dense(guards, after)):
            break
        found.append(after)
        at = after
    return found


def _is_dense(guards: BrokenGuards, known: BrokenGuard) -> bool:
    """Whether most bytes changed between the first and the last changed one: else two writes may have hit two ends."""
    finding, damage = guards.finding(known), guards.damage(known)
    if finding is None or finding.bytes is None or damage is None:
        return False
    return 2 * finding.bytes.count >= damage.nbytes


def _together(guards: BrokenGuards, one: BrokenGuard, other: BrokenGuard) -> bool:
    """Whether two guards were seen broken at one boundary, or one of them too late to say; or one was broken before, by
    an overrun from elsewhere, and its bytes are as that left them: the overrun may have gone over them again."""
    if not (one.dates and other.dates) or not one.dates.keys().isdisjoint(other.dates):
        return True
    first = min((one, other), key=lambda known: max(known.dates.values()))
    return first.origin is not None and guards.stays(first.buffer, first.side)


def _next(guards: BrokenGuards, known: BrokenGuard, up: bool) -> BrokenGuard | None:
    """The next guard by address, if it is broken: the latest finding about it. Buffers without guards are passed
    over."""
    near, far = (Side.BEFORE, Side.AFTER) if up else (Side.AFTER, Side.BEFORE)
    if known.side is near and guard_at(known.buffer, far) is not None:
        return _latest(guards, known.buffer, far)
    each = known.buffer
    while True:
        after = guards.neighbour(each, up)
        if after is None or _gap(each, after, up) > _GAP:
            return None
        side = next((side for side in (near, far) if guard_at(after, side) is not None), None)
        if side is not None:
            return _latest(guards, after, side)
        each = after


def _gap(one: Buffer, other: Buffer, up: bool) -> int:
    """Bytes between two buffers that belong to no guard."""
    low, high = (one, other) if up else (other, one)
    return high.start - high.head_guard - (low.guard_start + low.tail_guard)


def _latest(guards: BrokenGuards, buffer: Buffer, side: Side) -> BrokenGuard | None:
    found = guards.at((buffer.serial, side))
    return found[-1] if found else None


def _from_its_begin(guards: BrokenGuards, run: list[BrokenGuard]) -> list[BrokenGuard]:
    """A run by address, cut and turned so that it begins with the guard where the overrun began.

    An overrun upwards begins at a guard after a buffer, one downwards at a guard before one. Where both ends of a run
    would do, it began at the end whose first byte next to the buffer is changed, and upwards if that is so at both.
    """
    while run:
        low, high = run[0], run[-1]
        if low.side is Side.AFTER and (high.side is Side.AFTER or _touches(guards, low) or not _touches(guards, high)):
            return run
        if high.side is Side.BEFORE:
            return run[::-1]
        run = run[1:]
    return []


def _touches(guards: BrokenGuards, known: BrokenGuard) -> bool:
    """Whether the damage begins right at the buffer."""
    damage = guards.damage(known)
    if damage is None:
        return False
    distance = damage.start - known.edge if known.side is Side.AFTER else known.edge - damage.stop
    return distance < VALUE
