"""File format around a manifest: a safetensors file whose header names the tensors and carries checksums.

Eight bytes of length, the header as JSON padded with spaces, then the data without gaps. The header's ``__metadata__``
comes first and carries ``format``, ``schema`` and two checksums: ``header_crc32`` of everything up to the data with the
checksum's own eight digits as zeros, and ``manifest_crc32``. Checksums of payloads are in the manifest, so every byte
of a file is covered. This holds for every schema number. The checksums detect damage; they do not authenticate the
author of a file.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping

import msgspec

from shadowgraph.common.errors import DamagedDumpError, ForeignFileError, NewerDumpError, OlderDumpError
from shadowgraph.dumps.schema import FORMAT, SCHEMA, VERSION

MANIFEST = "manifest"
HEADER_MOST = 8 << 20  # bytes, four times the need of a full dump
MANIFEST_MOST = 256 << 20  # bytes; held in memory, and a sparse file may have any length
_LENGTH = 8
_METADATA = "__metadata__"
_BEGINS = f'{{"{_METADATA}":{{"format":"{FORMAT}","schema":"'.encode()
_NO_CRC = b"00000000"
_CRC_KEY = b'"header_crc32":"'
PROBE = _LENGTH + len(_BEGINS)  # bytes that identify a dump


class Tensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of the header."""

    dtype: str
    shape: tuple[int]
    data_offsets: tuple[int, int]


class Metadata(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The header's own entry; all values are text, as safetensors requires."""

    format: str
    schema: str
    header_crc32: str
    manifest_crc32: str


def crc32(data: bytes | memoryview, before: int = 0) -> int:
    """The checksum of every part of a dump; releases the GIL."""
    return zlib.crc32(data, before)


def crc_text(value: int) -> str:
    return f"{value:08x}"


def header_of(sizes: Mapping[str, int], manifest_crc32: int) -> bytes:
    """All bytes before the data.

    Parameters
    ----------
    sizes
        Bytes of each tensor, in order of the data.
    """
    metadata = Metadata(FORMAT, SCHEMA, _NO_CRC.decode(), crc_text(manifest_crc32))
    entries: dict[str, Metadata | Tensor] = {_METADATA: metadata}
    at = 0
    for name, nbytes in sizes.items():
        entries[name] = Tensor("U8", (nbytes,), (at, at + nbytes))
        at += nbytes
    text = msgspec.json.encode(entries)
    text += b" " * (-len(text) % 8)
    header = len(text).to_bytes(_LENGTH, "little") + text
    place = header.index(_CRC_KEY) + len(_CRC_KEY)
    return header[:place] + crc_text(crc32(header)).encode() + header[place + len(_NO_CRC) :]


def header_length(probe: bytes, file_size: int) -> int:
    """Length of everything before the data, from the first `PROBE` bytes of a file and its size.

    Raises
    ------
    ForeignFileError
        The file does not begin like a dump.
    NewerDumpError, DamagedDumpError
    """
    begins = probe[_LENGTH:]
    if not begins or not _BEGINS.startswith(begins):
        raise ForeignFileError("is no shadowgraph dump, or its first bytes are damaged")
    length = int.from_bytes(probe[:_LENGTH], "little")
    if length < len(_BEGINS) or length > HEADER_MOST or _LENGTH + length > file_size:
        raise DamagedDumpError("is damaged: its header does not fit into the file")
    return _LENGTH + length


def parse_header(header: bytes, file_size: int) -> tuple[Metadata, dict[str, tuple[int, int]]]:
    """A header's metadata, and for each tensor the start and end of its bytes in the file.

    Raises
    ------
    NewerDumpError
        For a later schema; the rest of the header is not parsed.
    DamagedDumpError
    """
    require_version(header)
    place = header.find(_CRC_KEY) + len(_CRC_KEY)
    said = header[place : place + len(_NO_CRC)]
    if crc_text(crc32(header[:place] + _NO_CRC + header[place + len(_NO_CRC) :])).encode() != said:
        raise DamagedDumpError("is damaged: its header does not match its checksum")
    try:
        text = header[_LENGTH:].rstrip(b" ")
        raw = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        metadata = msgspec.json.decode(raw.pop(_METADATA), type=Metadata)
        tensors = {name: msgspec.json.decode(entry, type=Tensor) for name, entry in raw.items()}
        whole: dict[str, Metadata | Tensor] = {_METADATA: metadata, **tensors}
        if msgspec.json.encode(whole) != text:  # a duplicate name, or another spelling of the same JSON
            raise ValueError("not in its one form")
        return metadata, _places(tensors, len(header), file_size)
    except (msgspec.MsgspecError, ValueError, KeyError, RecursionError) as error:
        raise DamagedDumpError(f"is damaged: its header cannot be read ({first_words(error)})") from None


def require_version(header: bytes) -> None:
    """Refuse a schema that this version does not know."""
    found = re.match(rb"[1-9][0-9]{0,8}(?=\")", header[_LENGTH + len(_BEGINS) + len(FORMAT) + 1 :])
    named = header[_LENGTH + len(_BEGINS) :].startswith(f"{FORMAT}/".encode())
    if found is None or not named:
        raise DamagedDumpError("is damaged: its schema cannot be read")
    if int(found[0]) < VERSION:
        raise OlderDumpError(
            f"is of schema {FORMAT}/{int(found[0])}, this shadowgraph reads {SCHEMA}: "
            "read it with the shadowgraph that wrote it"
        )
    if int(found[0]) > VERSION:
        raise NewerDumpError(
            f"is of schema {FORMAT}/{int(found[0])}, this shadowgraph reads up to {SCHEMA}: upgrade shadowgraph"
        )


def first_words(error: BaseException) -> str:
    """An exception's message in one short line."""
    text = " ".join(str(error).split())
    return text if len(text) <= 120 else f"{text[:117]}..."


def _places(tensors: Mapping[str, Tensor], data: int, file_size: int) -> dict[str, tuple[int, int]]:
    """Positions of tensors in the file: contiguous from the header to the end."""
    at, places = 0, {}
    for name, tensor in tensors.items():
        start, stop = tensor.data_offsets
        if tensor.dtype != "U8" or start != at or stop < start or tensor.shape != (stop - start,):
            raise ValueError("its tensors do not follow one another")
        places[name] = data + start, data + stop
        at = stop
    if data + at != file_size:
        raise ValueError(f"the file has {file_size} bytes and should have {data + at}")
    return places
