"""Reader of saved reports: from a file that `report --json` printed, or from a status server."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from shadowgraph.commands.saved.fetching import MOST, fetched, is_url, shown
from shadowgraph.common.console import tame
from shadowgraph.common.errors import (
    DamagedDumpError,
    ForeignFileError,
    MissingFileError,
    NewerDumpError,
    OlderDumpError,
    ShadowgraphError,
)
from shadowgraph.dumps.container import first_words
from shadowgraph.dumps.schema import LeftOut, UnreadRow
from shadowgraph.model.kinds import decode_detail
from shadowgraph.model.run_facts import SCHEMA, RunFacts
from shadowgraph.wrap.folder.heartbeats import Heartbeat
from shadowgraph.wrap.folder.last_check import LastCheck

_OURS = "shadowgraph."
_PROBE = 64  # bytes that tell whether a file is text
# What verbs print of a dump, by the schema's name.
_PRINTED_BY = {
    "run-timeline": "timeline",
    **{name: name for name in ("aliases", "diff", "hexdump", "map", "nodes", "timeline")},
    **{name: f"map --kind {name}" for name in ("rows", "writes")},
}


class DumpFields(msgspec.Struct, frozen=True):
    """The fields of a dump's document about the dump."""

    reason: str
    time: float
    pid: int
    argv: tuple[str, ...]
    packages: dict[str, str]
    unread: tuple[UnreadRow, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    payloads: int = 0
    versions: dict[str, str] = {}


class ProcessFields(msgspec.Struct, frozen=True):
    """The fields of a run's document about a process."""

    pid: int
    ppid: int
    argv: tuple[str, ...]
    born: str
    rank: int | None
    started: float
    backend: str | None
    title: str
    ended: str
    events: list[str]
    damaged: int
    cut: bool
    findings: int
    consequences: int = 0
    notes: int = 0
    pulse: Heartbeat | None = None
    lost: int = 0
    last_check: LastCheck | None = None


class RunFields(msgspec.Struct, frozen=True):
    processes: tuple[ProcessFields, ...]
    folder: str = ""
    dumps: tuple[str, ...] = ()
    unread: str = ""


class ReportDocument(RunFacts, frozen=True, kw_only=True):
    """A report as JSON: the facts, and where they are from."""

    versions: dict[str, str]
    dump: DumpFields | None = None
    run: RunFields | None = None


@dataclass(frozen=True, slots=True)
class Saved:
    """A saved report.

    Attributes
    ----------
    source
        The file or address as the user named it.
    document
        The decoded JSON.
    report
        The same as typed data; further fields are left out.
    """

    source: str
    document: dict[str, Any]
    report: ReportDocument


def is_saved(path: str) -> bool:
    """Whether a path means a document: a server, a ``.json`` file, or a file that begins like one."""
    if is_url(path):
        return True
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return False
        if Path(path).suffix.lower() == ".json":
            return True
        with open(path, "rb") as file:
            head = file.read(_PROBE)
    except (OSError, ValueError):
        return False  # the error is raised when the file is opened
    return head.lstrip()[:1] in (b"{", b"[") and b"\0" not in head  # a dump begins with a number of eight bytes


def read_saved(path: str) -> Saved:
    """Read a report.

    Raises
    ------
    MissingFileError
        When it cannot be read.
    ForeignFileError
        When it is another kind of file, empty, or what another verb printed.
    OlderDumpError, NewerDumpError, DamagedDumpError
        When it is of an earlier or a later schema, or was cut or changed.
    UsageError
        For a server on another machine.
    """
    source = shown(path) if is_url(path) else tame(path)
    text = fetched(path) if is_url(path) else _file(path)
    if not text.strip():
        raise ForeignFileError(f"{source} is empty, and so no shadowgraph document")
    try:
        document = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if f'"{_OURS}'.encode() in text[:200]:
            raise DamagedDumpError(f"{source} is damaged: no JSON ({first_words(error)})") from None
        raise ForeignFileError(f"{source} is no shadowgraph document, and no JSON") from None
    schema = document.get("schema") if isinstance(document, dict) else None
    if not isinstance(schema, str) or not schema.startswith(_OURS):
        raise ForeignFileError(f"{source} is JSON, and no shadowgraph document: it names no schema of ours")
    _require_report(source, schema)
    with _damaged(source):
        return Saved(source, document, msgspec.json.decode(text, type=ReportDocument, dec_hook=decode_detail))


def _require_report(source: str, schema: str) -> None:
    """Refuse what another verb printed, and an earlier or later report."""
    if schema == SCHEMA:
        return
    name, _, number = schema.removeprefix(_OURS).partition("/")
    if name == SCHEMA.removeprefix(_OURS).partition("/")[0] and re.fullmatch("[1-9][0-9]{0,8}", number):
        if int(number) < int(SCHEMA.partition("/")[2]):
            raise OlderDumpError(
                f"{source} is of schema {schema}, this shadowgraph reads {SCHEMA}: read it with the shadowgraph that "
                "wrote it"
            )
        raise NewerDumpError(
            f"{source} is of schema {schema}, this shadowgraph reads up to {SCHEMA}: upgrade shadowgraph"
        )
    if name in _PRINTED_BY:
        raise ForeignFileError(
            f"{source} is what `shadowgraph {_PRINTED_BY[name]} --json` printed; give the dump or run folder it was "
            "made from"
        )
    raise ForeignFileError(f"{source} holds {tame(schema)}, and this verb reads {SCHEMA}, as `report --json` prints it")


def _file(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            text = file.read(MOST + 1)
    except OSError as error:
        raise MissingFileError(f"cannot read {tame(path)}: {error.strerror}") from None
    if len(text) > MOST:
        raise DamagedDumpError(f"{tame(path)} is larger than any document")
    return text


@contextmanager
def _damaged(source: str) -> Iterator[None]:
    try:
        yield
    except (msgspec.MsgspecError, ShadowgraphError, ValueError, TypeError, RecursionError, OverflowError) as error:
        raise DamagedDumpError(f"{source} is damaged: it makes no sense ({tame(first_words(error))})") from None
