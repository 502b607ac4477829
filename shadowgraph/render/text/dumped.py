"""Report of a dump: the live report with a header on the dump's origin and a footer on its contents and gaps."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from rich.text import Text

from shadowgraph.common.console import tame
from shadowgraph.common.source_paths import short
from shadowgraph.common.words import form, plural
from shadowgraph.dumps.reader import Dump
from shadowgraph.dumps.schema import LeftOut, UnreadRow
from shadowgraph.render.text.text import lines

_NAMED = 8
_LAUNCHES = 5


def dumped_lines(dump: Dump, all_marks: bool = False) -> Iterator[Text]:
    """The report of a dump: a header, the lines of the live report, a footer. Control characters are neutralised."""
    manifest = dump.manifest
    for line in (*about_lines(manifest), *lines(dump.facts(), all_marks), *tail_lines(dump)):
        line.plain = tame(line.plain)
        yield line


class About(Protocol):
    """Origin of a dump for the header of its report: a manifest, or the same fields of a saved report."""

    @property
    def time(self) -> float: ...
    @property
    def pid(self) -> int: ...
    @property
    def reason(self) -> str: ...
    @property
    def argv(self) -> Sequence[str]: ...
    @property
    def versions(self) -> Mapping[str, str]: ...
    @property
    def packages(self) -> Mapping[str, str]: ...


def about_lines(manifest: About) -> Iterator[Text]:
    """Process, time, reason, versions and command line of a dump."""
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(manifest.time))
    made_with = ", ".join(f"{name} {number}" for name, number in {**manifest.versions, **manifest.packages}.items())
    yield Text(f"dump of process {manifest.pid}, {when}, {manifest.reason}; {made_with}", style="bold")
    if manifest.argv:
        yield Text(f"  {' '.join(manifest.argv)}")
    yield Text()


def tail_lines(dump: Dump) -> Iterator[Text]:
    """Contents of a dump, and its gaps."""
    manifest = dump.manifest
    if manifest.facts.lost is not None:
        yield from _last_launches(dump)
    yield from missing_lines(manifest.unread, manifest.left_out)
    held = sum(row.nbytes for row in manifest.payloads)
    buffers = f"{plural(len(manifest.buffers), 'live buffer')} and {len(manifest.freed):,} freed"
    journal = f"journal of {_launches(len(manifest.launches))} and {plural(len(manifest.replays), 'replay')}"
    yield Text(f"dump: {buffers}, {journal}, {plural(held, 'byte')} of memory")


def _launches(count: int) -> str:
    return f"{count:,} {'launch' if count == 1 else 'launches'}"


def missing_lines(unread: Iterable[UnreadRow], left_out: Iterable[LeftOut]) -> Iterator[Text]:
    """Memory that a dump lacks, with reasons."""
    yield from _unread(unread)
    for left in left_out:
        size = f", {plural(left.nbytes, 'byte')}" if left.nbytes else ""
        yield Text(f"dump: left out ({left.reason}): {left.count:,} {left.what}{size}", style="yellow")


def _last_launches(dump: Dump) -> Iterator[Text]:
    """The last launches before the device was lost, the latest first, with their arguments."""
    names: dict[int, str] = {}
    for owner in dump.manifest.owners:
        home = dump.names.holder(owner.view)
        known = names.get(home.serial) if home is not None else None
        if home is not None and (known is None or len(owner.path) < len(known)):
            names[home.serial] = owner.path
    for ran in dump.manifest.launches[: -_LAUNCHES - 1 : -1]:
        launch = ran.launch
        at = f" at {short(launch.stack[0].file)}:{launch.stack[0].line}" if launch.stack else ""
        node = f", node {ran.node} of graph#{ran.graph}" if ran.node is not None else ""
        yield Text(f"ran before: {launch.kind} {launch.name}{node}{at}")
        for pointer in launch.pointers[:_NAMED]:
            view, home = pointer.view, dump.names.holder(pointer.view)
            known_as = names.get(home.serial) if home is not None else None
            named = f" is {known_as}" if known_as else ""
            yield Text(f"  {pointer.argument}{named} ({form(view.dtype, view.shape)}) at {view.address:#x}")


def _unread(rows: Iterable[UnreadRow]) -> Iterator[Text]:
    by_reason: dict[str, list[UnreadRow]] = {}
    for row in rows:
        by_reason.setdefault(row.reason, []).append(row)
    for reason, each in by_reason.items():
        names = list(dict.fromkeys(row.name or f"allocation {row.buffer}" for row in each))
        more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
        total = plural(sum(row.nbytes for row in each), "byte")
        yield Text(f"dump: could not be read ({reason}): {total} of {', '.join(names[:_NAMED])}{more}", style="yellow")
