"""Dumps for tests, and ways to spoil them that keep the checksums right."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import shadowgraph as sg
from shadowgraph.commands.main import main

DAMAGED, NEWER, FOREIGN, OLDER = 12, 13, 14, 17

Capture = pytest.CaptureFixture[str]


def overflow(tensor: torch.Tensor, elements: int = 1) -> None:
    """A Triton launch that writes a tensor of int32 in full and `elements` more."""
    from shadowgraph.demos.kernels import fill

    fill[(1,)](tensor, 0, tensor.numel() + elements, 1, BLOCK=256)


def guarded(debugger: sg.Debugger, *shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    """A zeroed static buffer of exact size."""
    with debugger.guard():
        return torch.zeros(shape, dtype=dtype)


class Server:
    """A program with a page table, an index pointer, weights, and a graph that reads and writes them."""

    def __init__(self, debugger: sg.Debugger) -> None:
        self.page_table = guarded(debugger, 4, 2)
        self.indptr = guarded(debugger, 9)
        self.indptr.copy_(torch.arange(9))
        self.weights = guarded(debugger, 64, 1024, dtype=torch.float32)
        self.first_rows = self.page_table[:2]
        debugger.name("server", self)
        self.graph = sg.HostGraph()
        with sg.host_graph(self.graph):
            self.output = self.page_table * 2
            self.indptr.add_(1)

    def step(self, past: int = 0) -> None:
        """Refresh the table, `past` elements too far, and replay."""
        overflow(self.page_table, past)
        self.graph.replay()


def dump_of_a_server(path: Path, **options: Any) -> Path:
    """A dump with one finding."""
    with sg.debug() as debugger:
        server = Server(debugger)
        server.step()
        server.step(past=1)
        return debugger.dump(path, **options)


def parts_of(data: bytes) -> tuple[dict[str, Any], dict[str, Any], bytes]:
    """Header, manifest and payloads of a dump as plain JSON types and bytes, without any of our code."""
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    start, stop = header["manifest"]["data_offsets"]
    body = data[8 + length :]
    return header, json.loads(body[start:stop]), body[stop:]


def assembled(header: dict[str, Any], manifest: dict[str, Any] | bytes, payloads: bytes) -> bytes:
    """A dump again, its checksums worked out anew."""
    text = manifest if isinstance(manifest, bytes) else plain(manifest)
    shift = len(text) - header["manifest"]["shape"][0]
    for name, entry in header.items():
        if name != "__metadata__":
            start, stop = entry["data_offsets"]
            moved = [start + shift * (start > 0), stop + shift]
            entry["data_offsets"] = moved
            entry["shape"] = [moved[1] - moved[0]]
    header["__metadata__"]["manifest_crc32"] = f"{zlib.crc32(text):08x}"
    return sealed(header) + text + payloads


def sealed(header: dict[str, Any] | bytes) -> bytes:
    """Header bytes with the length before them and their own checksum in them."""
    if isinstance(header, dict):
        header["__metadata__"]["header_crc32"] = "0" * 8
        header = plain(header)
    header += b" " * (-len(header) % 8)
    whole = struct.pack("<Q", len(header)) + header
    return whole.replace(b'"header_crc32":"00000000"', b'"header_crc32":"%08x"' % zlib.crc32(whole), 1)


def plain(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def with_manifest(data: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    """A dump whose manifest was changed by somebody who knows the format."""
    header, manifest, payloads = parts_of(data)
    change(manifest)
    return assembled(header, manifest, payloads)


def with_manifest_text(data: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """The same for the manifest's text."""
    header, manifest, payloads = parts_of(data)
    return assembled(header, change(plain(manifest)), payloads)


def refused(path: Path, data: bytes | None, capsys: Capture, *codes: int) -> str:
    """The one line that says why a file is no good."""
    if data is not None:
        path.write_bytes(data)
    code = main(["report", str(path)])
    shown = capsys.readouterr()
    assert code in codes, shown
    assert shown.out == ""
    assert shown.err.startswith("shadowgraph: error: ")
    assert shown.err.count("\n") == 1, shown.err
    assert len(shown.err) < 1000
    return shown.err
