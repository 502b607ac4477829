"""Contents of saved documents for verbs: of a verb's own document all, of a report only the buffers with findings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import msgspec

from shadowgraph.commands.saved.reader import Saved
from shadowgraph.common.console import tame
from shadowgraph.common.errors import UnknownBufferError, UsageError
from shadowgraph.dumps.naming import address_of, nearest_of
from shadowgraph.model.findings import Finding
from shadowgraph.render.text import aliases_text, map_text, timeline_text
from shadowgraph.render.text.map_text import DumpedMap
from shadowgraph.views.alias_list import AliasGroup
from shadowgraph.views.event_list import finding_event, revision_event
from shadowgraph.views.events import Event, Timeline, What
from shadowgraph.views.memory_map import MapBuffer, MemoryMap, damage_of, freed_buffer

_GONE = "SG104"  # the code of findings on freed buffers


class _Maps(msgspec.Struct, frozen=True):
    maps: tuple[DumpedMap, ...]


class _Timelines(msgspec.Struct, frozen=True):
    timelines: tuple[Timeline, ...]


class _Groups(msgspec.Struct, frozen=True):
    groups: tuple[AliasGroup, ...]


class _Run(msgspec.Struct, frozen=True):
    folder: str = ""
    dumps: tuple[str, ...] = ()


class _About(msgspec.Struct, frozen=True):
    run: _Run | None = None


def instead(saved: Saved) -> str:
    """Advice on where to find data that a document lacks."""
    run = saved.decoded(_About).run if saved.is_report else None
    if run is not None and run.folder and run.dumps:
        return f"take the run folder, which has dumps: {tame(run.folder)}"
    if run is not None:
        return "take the run folder once it has a dump, which a process writes at SIGUSR2 and at its first finding"
    return "take a dump: dbg.dump(PATH) makes one, or `shadowgraph wrap`"


def refused(saved: Saved, verb: str) -> UsageError:
    """The error of a verb without data in a document."""
    return UsageError(f"{saved.source} holds {tame(saved.schema)}, which has nothing for {verb}; {instead(saved)}")


def maps_of(saved: Saved) -> tuple[DumpedMap, ...]:
    """The maps that `map --json` printed; for a report, the buffers with findings, by process.

    Raises
    ------
    UsageError
        For a report without findings.
    ForeignFileError, NewerDumpError, DamagedDumpError
        For another document.
    """
    if not saved.is_report:
        saved.require(map_text.SCHEMA)
        return saved.decoded(_Maps).maps
    findings = saved.facts().findings
    if not findings:
        raise UsageError(
            f"{saved.source} knows only the buffers that findings are about, and there are none; {instead(saved)}"
        )
    pids = sorted({finding.pid for finding in findings})
    return tuple(DumpedMap(pid, saved.source, _map([f for f in findings if f.pid == pid])) for pid in pids)


def _map(findings: Sequence[Finding]) -> MemoryMap:
    found: dict[int, MapBuffer] = {}
    for finding in findings:
        known = replace(freed_buffer(finding.buffer), alive=finding.code != _GONE)
        before = found.get(finding.buffer.serial)
        found[finding.buffer.serial] = known if before is None or before.alive else before
    serials = sorted(found, key=lambda serial: (found[serial].start, serial))
    index = {serial: place for place, serial in enumerate(serials)}
    return MemoryMap(
        tuple(found[serial] for serial in serials),
        tuple(damage_of(finding, index[finding.buffer.serial]) for finding in findings),
    )


def groups_of(saved: Saved) -> tuple[AliasGroup, ...]:
    """The groups that `aliases --json` printed.

    Raises
    ------
    UsageError
        For a report: it has names of other owners, but not their bytes.
    ForeignFileError, NewerDumpError, DamagedDumpError
        For another document.
    """
    if saved.is_report:
        raise refused(saved, "aliases")
    saved.require(aliases_text.SCHEMA)
    return saved.decoded(_Groups).groups


def timelines_of(saved: Saved, wanted: str) -> tuple[Timeline, ...]:
    """The timelines of a buffer that `timeline --json` printed; for a report, its allocation and its findings.

    Raises
    ------
    UnknownBufferError
        When the document has no buffer of that name or address.
    UsageError
        When the name is the end of several names.
    ForeignFileError, NewerDumpError, DamagedDumpError
        For another document.
    """
    if saved.is_report:
        facts = saved.facts()
        return tuple(_timelines(saved.source, (*facts.findings, *facts.notes), wanted))
    saved.require(timeline_text.SCHEMA)
    told = saved.decoded(_Timelines).timelines
    fits = [each for each in told if _fits(wanted, (each.name,), each.address, each.nbytes)]
    if not fits:
        _unknown(saved.source, wanted, [each.name for each in told])
    return tuple(fits)


def _timelines(source: str, findings: Sequence[Finding], wanted: str) -> Iterator[Timeline]:
    found: dict[tuple[int, int], list[Finding]] = {}
    for finding in findings:
        about = finding.buffer
        if _fits(wanted, (about.name, *about.names), about.address, about.nbytes):
            found.setdefault((finding.pid, about.serial), []).append(finding)
    if not found:
        _unknown(source, wanted, [finding.buffer.name for finding in findings])
    names = {each[0].buffer.name for each in found.values()}
    if len(names) > 1 and address_of(wanted) is None:
        raise UsageError(f"{wanted!r} is the end of several names: {', '.join(map(tame, sorted(names)[:3]))}")
    for (pid, _), own in found.items():
        yield _timeline(source, pid, sorted(own, key=lambda finding: finding.time))


def _timeline(source: str, pid: int, own: Sequence[Finding]) -> Timeline:
    about = own[0].buffer
    events = [Event(What.ALLOCATED, "", stack=about.allocated)]
    for finding in own:
        events.append(finding_event(finding, "", own=True))
        if finding.revision > 1:
            events.append(revision_event(finding, finding.culprit, finding.time))
    return Timeline(
        pid=pid, dump=source, name=about.name, serial=about.serial, address=about.address, nbytes=about.nbytes,
        dtype=about.dtype, shape=about.shape, role=about.role, alive=all(finding.code != _GONE for finding in own),
        events=tuple(events), earlier=0, since=None,
    )  # fmt: skip


def _fits(wanted: str, names: Sequence[str], address: int, nbytes: int) -> bool:
    sought = address_of(wanted)
    if sought is not None:
        return address <= sought < address + max(1, nbytes)
    return any(name == wanted or name.endswith(f".{wanted}") for name in names)


def _unknown(source: str, wanted: str, names: list[str]) -> None:
    near = nearest_of(wanted, names)
    raise UnknownBufferError(f"{source} has no buffer {wanted!r}{near}")
