"""Reader of run folders: finished, still running, killed at any moment, or damaged. Changes nothing in the folder."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from shadowgraph.common.errors import OlderRunError, RunFolderError
from shadowgraph.model.failures import Failure
from shadowgraph.model.findings import Finding
from shadowgraph.model.kinds import decode_detail
from shadowgraph.model.run_facts import RunFacts
from shadowgraph.wrap.folder import findings_log as journal
from shadowgraph.wrap.folder import run_folder as manifest
from shadowgraph.wrap.folder.fault_stack import read_fault
from shadowgraph.wrap.folder.heartbeats import heartbeat_file, read_heartbeat
from shadowgraph.wrap.folder.last_check import has_logs, read_last_check
from shadowgraph.wrap.folder.merging import merge
from shadowgraph.wrap.folder.process_record import ProcessRecord

_LARGEST_FILE = 4 * journal.LIMIT
_LARGEST_MANIFEST = 1 << 20
_POLL = 0.05  # seconds


class Record(msgspec.Struct, frozen=True):
    """One line of a findings log; which fields are used depends on `kind`."""

    kind: str
    time: float = 0.0
    format: int = 0
    pid: int = 0
    ppid: int = 0
    argv: tuple[str, ...] = ()
    born: str = ""
    rank: int | None = None
    backend: str = ""
    title: str = ""
    text: str = ""
    book: int = 0
    finding: Finding | None = None
    facts: RunFacts | None = None
    failure: Failure | None = None
    lost: int = 0


@dataclass(frozen=True, slots=True)
class Run:
    """A run folder's contents.

    Attributes
    ----------
    manifest
        Written by the supervising process: command, settings, times, and the command's exit. Empty when it cannot be
        read.
    unread
        Why the manifest cannot be read; empty when it can.
    processes
        Process records, in order of start.
    dumps
        Dump files in the folder.
    """

    folder: Path
    manifest: dict[str, Any]
    processes: tuple[ProcessRecord, ...]
    dumps: tuple[Path, ...]
    unread: str = ""

    @property
    def command(self) -> list[str]:
        """The wrapped command; empty when it is not known."""
        command = self.manifest.get("command")
        return [word for word in command if isinstance(word, str)] if isinstance(command, list) else []

    def merged(self) -> RunFacts:
        """The facts of all processes merged into one run's, for a `Report`; findings get new ids."""
        signal = self.manifest.get("signal")
        return merge(self.processes, signal if isinstance(signal, str) else "")


def read_run(path: str | os.PathLike[str], manifest: dict[str, Any] | None = None) -> Run:
    """Read a run folder.

    Parameters
    ----------
    path
        The folder of a running or finished run. It is not changed.
    manifest
        The manifest, when the caller has written it: on a full disk the file may be older.

    Returns
    -------
    Run
        Data only; no file stays open.

    Raises
    ------
    RunFolderError
        When the path is no run folder. An unreadable manifest is told in `Run.unread` when processes wrote records, and
        damaged lines are counted.
    """
    folder = Path(path)
    files, dumps = sorted(folder.glob("findings-*.jsonl")), tuple(sorted(folder.glob("*.dump")))
    said = manifest or {}
    unread = ""
    try:
        said = manifest or read_manifest(folder)
    except RunFolderError as error:
        if not files and not dumps:
            raise
        unread = str(error)
    processes = [_read_process(file) for file in files]
    processes.sort(key=lambda process: (process.started, process.path.name))
    _settle_ends(processes, said)
    _read_last_checks(folder, processes, said)
    for process in processes:
        fault = read_fault(process.path) if process.ended in ("killed", "gone", "unknown") else None
        process.events += [fault] if fault is not None else []
    return Run(folder, said, tuple(processes), dumps, unread)


def read_settled(path: str | os.PathLike[str], seconds: float, manifest: dict[str, Any] | None = None) -> Run:
    """Read a run folder once all its processes have ended, or after some time; raises as `read_run`."""
    deadline = time.monotonic() + seconds
    while True:
        run = read_run(path, manifest)
        if time.monotonic() > deadline or all(process.ended != "running" for process in run.processes):
            return run
        time.sleep(_POLL)


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest that the supervising process wrote.

    Raises
    ------
    RunFolderError
        When the folder is no run folder, or the file cannot be read.
    """
    file = folder / manifest.MANIFEST
    try:
        with open(file, "rb") as opened:
            text = opened.read(_LARGEST_MANIFEST)
        said = json.loads(text)
    except FileNotFoundError:
        raise RunFolderError(f"{folder} is no run folder: it has no {manifest.MANIFEST}") from None
    except OSError as error:
        raise RunFolderError(f"cannot read {file}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise RunFolderError(f"{file} is damaged: no JSON") from None
    number = said.get("format") if isinstance(said, dict) else None
    if not isinstance(number, int) or isinstance(number, bool):
        raise RunFolderError(f"{file} is damaged: it names no format")
    if number < manifest.FORMAT:
        raise OlderRunError(
            f"{folder} has format {number}; this version reads format {manifest.FORMAT}: "
            "read it with the shadowgraph that wrote it"
        )
    if number > manifest.FORMAT:
        version = said.get("shadowgraph")
        writer = f"shadowgraph {version}" if version else "a newer shadowgraph"
        raise RunFolderError(
            f"{folder} has format {number}, written by {writer}; this version reads up to {manifest.FORMAT}"
        )
    checked: dict[str, Any] = said
    return checked


def _read_process(path: Path) -> ProcessRecord:
    process = ProcessRecord(path, _pid_in_name(path))
    try:
        with open(path, "rb") as file:
            data = file.read(_LARGEST_FILE + 1)
    except OSError as error:
        process.events.append(f"cannot read {path.name}: {error.strerror}")
        return process
    lines = data[:_LARGEST_FILE].split(b"\n")
    process.cut = bool(lines.pop()) or len(data) > _LARGEST_FILE
    latest: dict[tuple[int, int], Finding] = {}
    summaries: dict[int, RunFacts] = {}
    decoder = msgspec.json.Decoder(Record, dec_hook=decode_detail)
    for line in filter(None, lines):
        try:
            record = decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # a validation error is a decode error
            process.damaged += 1
            continue
        if record.finding is not None:
            latest[record.book, record.finding.id] = record.finding
        elif record.failure is not None:
            process.failures.append(record.failure)
        elif record.facts is not None:
            summaries[record.book] = record.facts
        else:
            _take(process, record)
    _take_pulse(process, latest)
    process.findings, process.summaries = [_placed(each, process) for each in latest.values()], [*summaries.values()]
    return process


def _pid_in_name(path: Path) -> int:
    """The process id in the name of a findings log; 0 when there is none."""
    parts = path.stem.split("-")
    return int(parts[1]) if len(parts) == 3 and parts[1].isdecimal() else 0


def _placed(finding: Finding, process: ProcessRecord) -> Finding:
    """A finding with its process's rank, which may have been unknown when it was written."""
    return finding if finding.rank is not None else msgspec.structs.replace(finding, rank=process.rank)


def _take_pulse(process: ProcessRecord, latest: dict[tuple[int, int], Finding]) -> None:
    """Read the heartbeat, and update occurrences that have grown since the findings were written."""
    process.pulse = read_heartbeat(heartbeat_file(process.path))
    for book, number, seen in process.pulse.occurrences if process.pulse is not None else ():
        finding = latest.get((book, number))
        if finding is not None and finding.occurrences < seen:
            latest[book, number] = msgspec.structs.replace(finding, occurrences=seen)


def _take(process: ProcessRecord, record: Record) -> None:  # noqa: C901  a branch a kind of record
    if record.kind == "start":
        if record.format > journal.FORMAT:
            process.events.append(f"{process.path.name} has format {record.format}, newer than this version reads")
        process.pid, process.ppid, process.argv = record.pid, record.ppid, record.argv
        process.born, process.rank, process.started = record.born, record.rank, record.time
    elif record.kind == "watch":
        process.backend = record.backend
    elif record.kind == "rank":
        process.rank = record.rank
    elif record.kind == "title":
        process.title = record.title
    elif record.kind == "end":
        process.ended, process.lost = "exit", record.lost
    elif record.kind == "capped":
        process.cut = True
    elif record.kind == "fault":
        process.faults.append(record.text)
    elif record.kind == "event":
        process.events.append(record.text)


def _read_last_checks(folder: Path, processes: list[ProcessRecord], said: dict[str, Any]) -> None:
    """What the logs of processes say that did not end by themselves, or that were kept because the device was lost."""
    settings = said.get("settings")
    run, redact = (settings.get("run"), bool(settings.get("redact"))) if isinstance(settings, dict) else (None, False)
    for process in processes:
        stem = process.path.stem.removeprefix("findings-")
        watched = process.backend is not None and process.ended not in ("exit", "replaced")
        if watched or has_logs(folder, run, stem):
            process.last_check = read_last_check(folder, run, stem, redact)


def _settle_ends(processes: list[ProcessRecord], said: dict[str, Any]) -> None:
    """Refine the end of processes without an end record, from the folder and from this machine."""
    here = said.get("host") == os.uname().nodename
    for index, process in enumerate(processes):
        if process.ended == "unknown":
            process.ended = _end_of(process, processes[index + 1 :], said, here)


def _end_of(process: ProcessRecord, later: list[ProcessRecord], said: dict[str, Any], here: bool) -> str:
    """How a process without an end record ended, as `ProcessRecord.ended`."""
    if any(each.pid == process.pid for each in later):
        return "replaced"
    if here and process.pid and _lives(process.pid, process.started):
        return "running"
    if said.get("child") == process.pid and "exit_code" in said:
        return "killed" if said.get("signal") else "os._exit"
    return "gone" if here else "unknown"


def _lives(pid: int, started: float) -> bool:
    """Whether a process is alive and no younger than its log; a zombie counts as dead."""
    try:
        facts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()  # state, ..., 20th: start in ticks
        boot = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime "))
    except (FileNotFoundError, ProcessLookupError):
        return False
    except (OSError, StopIteration):
        return True
    born = int(boot.split()[1]) + int(facts[19]) / os.sysconf("SC_CLK_TCK")
    return facts[0] not in "ZX" and born <= started + 2
