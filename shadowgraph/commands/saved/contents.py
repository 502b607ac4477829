"""What verbs other than `report` show of a saved report: the buffers that its findings are about."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from shadowgraph.checks.kinds import kind_of
from shadowgraph.commands.saved.reader import Saved
from shadowgraph.common.console import tame
from shadowgraph.common.errors import UnknownBufferError, UsageError
from shadowgraph.dumps.naming import address_of, fitting, nearest_of, only_one
from shadowgraph.model.findings import Finding
from shadowgraph.model.run_facts import SCHEMA
from shadowgraph.render.text.map_text import DumpedMap
from shadowgraph.views.event_list import finding_event, revision_event
from shadowgraph.views.events import Event, Timeline, What
from shadowgraph.views.memory_map import MapBuffer, MemoryMap, damage_of, freed_buffer


def instead(saved: Saved) -> str:
    """Advice on where to find data that a report lacks."""
    run = saved.report.run
    if run is not None and run.folder and run.dumps:
        return f"take the run folder, which has dumps: {tame(run.folder)}"
    if run is not None:
        return "take the run folder once it has a dump, which a process writes at SIGUSR2 and at its first finding"
    return "take a dump: dbg.dump(PATH) makes one, or `shadowgraph wrap`"


def refused(saved: Saved, verb: str) -> UsageError:
    """The error of a verb without data in a report."""
    return UsageError(f"{saved.source} holds {SCHEMA}, which has nothing for {verb}; {instead(saved)}")


def maps_of(saved: Saved) -> tuple[DumpedMap, ...]:
    """The maps of the buffers with findings, by process.

    Raises
    ------
    UsageError
        For a report without findings.
    """
    findings = saved.report.findings
    if not findings:
        raise UsageError(
            f"{saved.source} knows only the buffers that findings are about, and there are none; {instead(saved)}"
        )
    pids = sorted({finding.pid for finding in findings})
    return tuple(DumpedMap(pid, saved.source, _map([f for f in findings if f.pid == pid])) for pid in pids)


def _map(findings: Sequence[Finding]) -> MemoryMap:
    found: dict[int, MapBuffer] = {}
    for finding in findings:
        known = replace(freed_buffer(finding.buffer), alive=not kind_of(finding.code).buffer_is_gone)
        before = found.get(finding.buffer.serial)
        found[finding.buffer.serial] = known if before is None or before.alive else before
    serials = sorted(found, key=lambda serial: (found[serial].start, serial))
    index = {serial: place for place, serial in enumerate(serials)}
    return MemoryMap(
        tuple(found[serial] for serial in serials),
        tuple(damage_of(finding, index[finding.buffer.serial]) for finding in findings),
    )


def timelines_of(saved: Saved, wanted: str) -> tuple[Timeline, ...]:
    """The timeline of a buffer: its allocation and its findings.

    Raises
    ------
    UnknownBufferError
        When no finding is about a buffer of that name or address.
    UsageError
        When the name is the end of several names.
    """
    return tuple(_timelines(saved.source, (*saved.report.findings, *saved.report.notes), wanted))


def _timelines(source: str, findings: Sequence[Finding], wanted: str) -> Iterator[Timeline]:
    serials = _serials(findings, wanted)
    found: dict[tuple[int, int], list[Finding]] = {}
    for finding in findings:
        if finding.buffer.serial in serials.get(finding.pid, ()):
            found.setdefault((finding.pid, finding.buffer.serial), []).append(finding)
    if not found:
        _unknown(source, wanted, [finding.buffer.name for finding in findings])
    for (pid, _), own in found.items():
        yield _timeline(source, pid, sorted(own, key=lambda finding: finding.time))


def _timeline(source: str, pid: int, own: Sequence[Finding]) -> Timeline:
    about = own[0].buffer
    events = [Event(What.ALLOCATED, "", stack=about.allocated)]
    for finding in own:
        events.append(finding_event(finding, "", own=True))
        if finding.revision > 1:
            events.append(revision_event(finding, finding.culprit, finding.time))
    gone = any(kind_of(finding.code).buffer_is_gone for finding in own)
    return Timeline(
        pid=pid, dump=source, name=about.name, serial=about.serial, address=about.address, nbytes=about.nbytes,
        dtype=about.dtype, shape=about.shape, role=about.role, alive=not gone,
        events=tuple(events), earlier=0, since=None,
    )  # fmt: skip


def _serials(findings: Sequence[Finding], wanted: str) -> dict[int, set[int]]:
    """The buffers of a name or an address, by process."""
    found: dict[int, set[int]] = {}
    address = address_of(wanted)
    for pid in {finding.pid for finding in findings}:
        about = [finding.buffer for finding in findings if finding.pid == pid]
        if address is not None:
            fits = [each for each in about if each.address <= address < each.address + max(1, each.nbytes)]
        else:
            pairs = [(name, each) for each in about for name in dict.fromkeys((each.name, *each.names))]
            fits = only_one(wanted, fitting(wanted, pairs))
        found[pid] = {each.serial for each in fits}
    return found


def _unknown(source: str, wanted: str, names: list[str]) -> None:
    near = nearest_of(wanted, names)
    raise UnknownBufferError(f"{source} has no buffer {wanted!r}{near}")
