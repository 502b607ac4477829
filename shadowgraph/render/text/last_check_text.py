"""The last check of a process that was killed, in lines of a report."""

from __future__ import annotations

import os
from collections.abc import Iterator

from shadowgraph.common.words import plural
from shadowgraph.wrap.folder.last_check import Damage, LastCheck, NotedLaunch
from shadowgraph.wrap.folder.process_record import ProcessRecord

_SHOWN = 8


def last_check_lines(last: LastCheck, ended: bool = True) -> Iterator[str]:
    """What was checked last, what was found, and, unless the process still runs, what came after it."""
    yield f"last check: {_checked(last)}"
    yield from map(_damage, last.damages)
    yield from map(_change, last.changes)
    if ended:
        yield from _after(last)
    yield from last.unread


def _after(last: LastCheck) -> Iterator[str]:
    if last.running or last.launches_noted:
        yield f"not checked since {_since(last)}: {_then(last)}"
    for launch in last.launches[-_SHOWN:]:
        yield f"  launched {_launch(launch)}"
    yield from _facts(last)


def _checked(last: LastCheck) -> str:
    if not last.captured:
        return "none, as no graph was captured"
    if not last.replay:
        said = "none of a replay had finished"
        return said if last.clean else f"{said}; damage was found"
    return f"replay {last.replay:,} of {last.graph}, {'clean' if last.clean else 'and damage was found'}"


def _since(last: LastCheck) -> str:
    return f"replay {last.replay:,} of {last.graph}" if last.replay else "the start"


def _then(last: LastCheck) -> str:
    launches = "1 launch" if last.launches_noted == 1 else f"{last.launches_noted:,} launches"
    if not last.running:
        return f"the process ended after {launches}, before the next replay"
    head = "; the check at its begin had finished" if last.head_checked else ""
    if last.running == last.graph and last.running_replay > last.replay + 1:
        begun = f"replays {last.replay + 1:,} to {last.running_replay:,} of {last.running} had begun"
        return f"{begun} as the process ended, with {launches}{head}"
    return f"the process ended in replay {last.running_replay:,} of {last.running}, prepared by {launches}{head}"


def _damage(damage: Damage) -> str:
    if damage.replay:
        end = "end" if damage.tail else "begin"
        where = f"damage: first found by the check at the {end} of replay {damage.replay:,} of {damage.graph}"
    else:
        where = "damage: found between replays"
    return f"{where}: {_bytes(damage, 'expected', 'found')}" if damage.count else where


def _change(change: Damage) -> str:
    by = f"replay {change.replay:,} of {change.graph}"
    said = f"changed by {by}, which the host plans from: {_bytes(change, 'before', 'after')}"
    return f"{said}; damage if a plan has been made from it since"


def _bytes(damage: Damage, before: str, after: str) -> str:
    found = f", {after} {damage.found}" if damage.found else ""
    return f"{plural(damage.count, 'byte')}, {_place(damage)}: {before} {damage.expected}{found}"


def _place(damage: Damage) -> str:
    if not damage.buffer:
        return f"at {damage.first:#x} to {damage.last:#x}"
    whole = f"{damage.buffer} ({plural(damage.nbytes, 'byte')})"
    if damage.first >= damage.nbytes:
        return f"{plural(damage.first - damage.nbytes, 'byte')} past the end of {whole}"
    if damage.last < 0:
        return f"{plural(-1 - damage.last, 'byte')} before the start of {whole}"
    return f"at {damage.first:,} to {damage.last:,} of {whole}"


def _launch(launch: NotedLaunch) -> str:
    said = launch.kernel or "a kernel without a name"
    if any(launch.grid) and launch.grid != (1, 1, 1):
        said += f" {list(launch.grid)}"
    if launch.file:
        said += f" at {os.path.basename(launch.file)}:{launch.line} in {launch.function}"
    return said + (f", given {', '.join(launch.given)}" if launch.given else "")


def _facts(last: LastCheck) -> Iterator[str]:
    for what, text, replay in (("batch", last.batch, last.batch_replay), ("plan", last.plan, last.plan_replay)):
        if text:
            yield f"  last {what}{f', of replay {replay:,}' if replay else ''}: {text}"


def last_check_of(process: ProcessRecord) -> Iterator[str]:
    """The lines of a process that has a last check."""
    if process.last_check is not None:
        yield from last_check_lines(process.last_check, process.ended != "running")
