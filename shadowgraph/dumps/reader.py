"""Reader of dumps from untrusted sources: runs no code from the file, writes nothing and opens no other file.

Memory use is bounded by a small multiple of the file's real size, payloads not counted.
"""

from __future__ import annotations

import os
import stat
import weakref
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from shadowgraph.common.errors import DamagedDumpError, DumpError, ForeignFileError, MissingFileError
from shadowgraph.common.html_repr import HtmlRepr, register_namer
from shadowgraph.dumps.container import (
    MANIFEST,
    MANIFEST_MOST,
    PROBE,
    crc32,
    crc_text,
    first_words,
    header_length,
    parse_header,
)
from shadowgraph.dumps.encoding import decoded
from shadowgraph.dumps.naming import BufferNames
from shadowgraph.dumps.sanity import require_sane
from shadowgraph.dumps.schema import GraphRecord, Manifest, PayloadRow, TenantRow, Why
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.graphs import Allocation, Graph, Node
from shadowgraph.model.launches import Launch
from shadowgraph.model.ranges import ByteRange
from shadowgraph.model.run_facts import RunFacts, document

_ABOUT = ("reason", "time", "pid", "argv", "settings", "packages", "redacted", "unread", "left_out")
_CHUNK = 1 << 20
_Places = dict[str, tuple[int, int]]


class Dump(HtmlRepr):
    """A dump that was verified when it was opened. Keeps the file open until `close`, to read payloads on request.

    Attributes
    ----------
    path
        The file that was read.
    manifest
        Everything but the bytes; see ``docs/dumps.md``.
    """

    def __init__(self, path: Path, handle: int, manifest: Manifest, places: _Places) -> None:
        self.path, self.manifest = path, manifest
        self._handle, self._places = handle, places
        self._closer = weakref.finalize(self, os.close, handle)
        register_namer(self)

    def facts(self) -> RunFacts:
        """The facts of a report, the same that the live report had."""
        facts = self.manifest.facts
        if facts.lost is None:
            return facts
        rows = [row for row in self.manifest.payloads if row.why is Why.SHADOW]
        values = tuple((row.name or "", row.dtype or "", self.payload(row)) for row in rows)
        return msgspec.structs.replace(facts, last_values=values)

    def document(self) -> dict[str, Any]:
        """The report's JSON document with versions, and ``dump``: facts about the dump and its omissions."""
        manifest = self.manifest
        about = {name: getattr(manifest, name) for name in _ABOUT}
        plain = msgspec.json.decode(msgspec.json.encode(about))
        return {**document(self.facts(), manifest.versions), "dump": {**plain, "payloads": len(manifest.payloads)}}

    def payload(self, row: PayloadRow) -> bytes:
        """The bytes of a row of `manifest.payloads`, read from the file and verified against their checksum.

        Parameters
        ----------
        row
            A row of this dump.

        Raises
        ------
        DamagedDumpError
            When the file has changed since it was opened.
        """
        start, stop = self._places[row.tensor]
        data = b"".join(_read(self._handle, start, stop))
        if crc32(data) != row.crc32:
            raise DamagedDumpError(f"{self.path} has changed while it was read")
        return data

    @property
    def launches(self) -> tuple[Launch, ...]:
        """The last launches, oldest first; their times and phases are in `manifest.launches`, in the same order."""
        return tuple(ran.launch for ran in self.manifest.launches)

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """Live buffers as the ledger had them, oldest first."""
        return self.manifest.buffers

    @property
    def freed(self) -> tuple[Buffer, ...]:
        """Freed buffers that the ledger remembered, oldest first."""
        return self.manifest.freed

    @cached_property
    def graphs(self) -> tuple[Graph, ...]:
        """Models of the captured graphs."""
        known = {buffer.serial: buffer for buffer in (*self.freed, *self.buffers)}
        return tuple(_graph(record, known) for record in self.manifest.graphs)

    @cached_property
    def names(self) -> BufferNames:
        """Names of the buffers."""
        return BufferNames(self)

    def knows(self, thing: object) -> bool:
        """Whether this dump created a buffer or graph object.

        Parameters
        ----------
        thing
            Any object.
        """
        return any(each is thing for each in (*self.buffers, *self.freed, *self.graphs))

    def called(self, buffer: object) -> str:
        """The best name of a buffer.

        Parameters
        ----------
        buffer
            A buffer of this dump.
        """
        assert isinstance(buffer, Buffer)
        return self.names.name(buffer)

    def at(self, address: int) -> tuple[str, int] | None:
        """Name of the buffer that holds an address, and the offset in bytes; None where no buffer does.

        Parameters
        ----------
        address
            An address of the dumped process.
        """
        return self.names.at(address)

    def close(self) -> None:
        """Close the file; payloads can no longer be read."""
        self._closer()

    def __enter__(self) -> Dump:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _graph(record: GraphRecord, buffers: Mapping[int, Buffer]) -> Graph:
    graph = Graph(record.serial, record.name, (Node(index, launch) for index, launch in enumerate(record.nodes)))
    graph.replays, graph.unread = record.replays, record.unread
    graph.began, graph.ended = record.began, record.ended
    graph.build_device_later(lambda: record.device)
    graph.build_allocations_later(lambda: [_allocation(row, buffers, record.ended) for row in record.tenants])
    return graph


def _allocation(row: TenantRow, buffers: Mapping[int, Buffer], ended: int) -> Allocation:
    own = buffers.get(row.buffer) if row.buffer is not None else None
    serial = row.buffer if row.buffer is not None else ended
    where = ByteRange(row.start, row.start + row.nbytes)
    return Allocation(row.before, where, serial, row.dtype, row.itemsize, row.shape, own)


def read_dump(path: str | os.PathLike[str]) -> Dump:
    """Open a dump and verify every byte of it against its checksums.

    Parameters
    ----------
    path
        The file. No code of it runs, and no other file is opened.

    Returns
    -------
    Dump
        Owned by the caller, which closes it or uses it in a ``with`` block.

    Raises
    ------
    MissingFileError
        The file does not exist or cannot be read.
    ForeignFileError
        The file is no dump.
    NewerDumpError
        The dump has a later schema.
    DamagedDumpError
        The dump was cut or changed, or its contents are inconsistent.
    """
    where = Path(path)
    handle = _open(where)
    try:
        manifest, places = _proven(handle, os.fstat(handle).st_size)
        return Dump(where, handle, manifest, places)
    except DumpError as error:
        os.close(handle)
        raise type(error)(f"{where} {error}") from None
    except OSError as error:
        os.close(handle)
        raise MissingFileError(f"cannot read {where}: {error.strerror}") from None
    except BaseException:
        os.close(handle)
        raise


def _open(path: Path) -> int:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # opening a pipe must not block
    except (OSError, ValueError) as error:
        said = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise MissingFileError(f"cannot read {path}: {said}") from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise ForeignFileError(f"{path} is no file, and so no shadowgraph dump")
    return handle


def _proven(handle: int, size: int) -> tuple[Manifest, _Places]:
    """The manifest and the positions of the tensors, after verification of every checksum."""
    length = header_length(b"".join(_read(handle, 0, min(PROBE, size))), size)
    metadata, places = parse_header(b"".join(_read(handle, 0, length)), size)
    if MANIFEST not in places:
        raise DamagedDumpError("is damaged: it has no manifest")
    start, stop = places[MANIFEST]
    if stop - start > MANIFEST_MOST:
        raise DamagedDumpError("is damaged: its manifest is larger than any")
    text = b"".join(_read(handle, start, stop))
    if crc_text(crc32(text)) != metadata.manifest_crc32:
        raise DamagedDumpError("is damaged: its manifest does not match its checksum")
    manifest = _manifest(text)
    _compare_payloads(handle, manifest, places)
    return manifest, places


def _manifest(text: bytes) -> Manifest:
    try:
        manifest = decoded(text)
        require_sane(manifest)
        return manifest
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
        raise DamagedDumpError(f"is damaged: its manifest makes no sense ({first_words(error)})") from None


def _compare_payloads(handle: int, manifest: Manifest, places: _Places) -> None:
    """Verify that the manifest lists every other tensor once, with its size and checksum."""
    names = [row.tensor for row in manifest.payloads]
    if sorted([*names, MANIFEST]) != sorted(places):
        raise DamagedDumpError("is damaged: its manifest lists other payloads than the file has")
    for row in manifest.payloads:
        start, stop = places[row.tensor]
        crc = 0
        for chunk in _read(handle, start, stop):
            crc = crc32(chunk, crc)
        if stop - start != row.nbytes or crc != row.crc32:
            raise DamagedDumpError(f"is damaged: {row.tensor} does not match its checksum")


def _read(handle: int, start: int, stop: int) -> Iterator[bytes]:
    """Bytes of a file, in chunks."""
    while start < stop:
        chunk = os.pread(handle, min(_CHUNK, stop - start), start)
        if not chunk:
            raise DamagedDumpError("is damaged: it was cut while it was read")
        start += len(chunk)
        yield chunk
