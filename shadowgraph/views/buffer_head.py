"""Common header of JSON documents about one buffer: process, dump, and the buffer's identity."""

from __future__ import annotations

from typing import TypedDict

import msgspec

from shadowgraph.dumps.reader import Dump
from shadowgraph.model.buffers import Buffer


class BufferHead(msgspec.Struct, frozen=True):
    """The first fields of every document about one buffer."""

    pid: int
    dump: str
    name: str
    serial: int
    address: int
    nbytes: int
    dtype: str
    shape: tuple[int, ...]
    role: str
    alive: bool


class _Fields(TypedDict):
    pid: int
    dump: str
    name: str
    serial: int
    address: int
    nbytes: int
    dtype: str
    shape: tuple[int, ...]
    role: str
    alive: bool


def head_of(dump: Dump, buffer: Buffer, name: str) -> _Fields:
    """The fields of `BufferHead` for a buffer of a dump."""
    return _Fields(
        pid=dump.manifest.pid,
        dump=str(dump.path),
        name=name,
        serial=buffer.serial,
        address=buffer.start,
        nbytes=buffer.nbytes,
        dtype=buffer.dtype,
        shape=buffer.shape,
        role=str(buffer.role),
        alive=buffer.alive,
    )
