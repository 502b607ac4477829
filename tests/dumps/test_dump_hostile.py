"""Dumps that were cut or changed, of other versions, and other files: one clear line, an exit code of its own."""

from __future__ import annotations

import os
import random
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch
from dump_makers import (
    DAMAGED,
    FOREIGN,
    NEWER,
    OLDER,
    Capture,
    assembled,
    guarded,
    parts_of,
    refused,
    with_manifest,
)

import shadowgraph as sg
from shadowgraph.commands.main import main
from shadowgraph.common.errors import DumpError
from shadowgraph.dumps.container import PROBE
from shadowgraph.dumps.reader import read_dump
from shadowgraph.render.text.text import Report

MEMORY = 8 << 20  # bytes that reading a small bad file may take


def test_cut_at_every_4_kib(large: bytes, tmp_path: Path, capsys: Capture) -> None:
    assert 1 << 20 < len(large) < 4 << 20
    for size in range(0, len(large), 4096):
        code = FOREIGN if size < PROBE else DAMAGED
        refused(tmp_path / "cut.safetensors", large[:size], capsys, code)


def test_cut_anywhere(whole: bytes, tmp_path: Path, capsys: Capture) -> None:
    draw = random.Random(5)
    for size in [*range(120), *draw.sample(range(120, len(whole)), 200), len(whole) - 1]:
        refused(tmp_path / "cut.safetensors", whole[:size], capsys, DAMAGED, FOREIGN)


def test_a_byte_too_many(whole: bytes, tmp_path: Path, capsys: Capture) -> None:
    refused(tmp_path / "long.safetensors", whole + b"\0", capsys, DAMAGED)


def test_every_flipped_byte_is_noticed(whole: bytes, tmp_path: Path, capsys: Capture) -> None:
    header = 8 + struct.unpack("<Q", whole[:8])[0]
    draw = random.Random(6)
    places = [*range(header), *draw.sample(range(header, len(whole)), 400), len(whole) - 1]
    for place in places:
        flipped = bytearray(whole)
        flipped[place] ^= 1 << draw.randrange(8)
        refused(tmp_path / "flipped.safetensors", bytes(flipped), capsys, DAMAGED, NEWER, FOREIGN)


def test_newer_and_older_schemas(whole: bytes, tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "run.safetensors"
    newer = whole.replace(b"shadowgraph.dump/2", b"shadowgraph.dump/3")
    said = "is of schema shadowgraph.dump/3, this shadowgraph reads up to shadowgraph.dump/2: upgrade shadowgraph"
    assert said in refused(path, newer, capsys, NEWER)
    older = whole.replace(b"shadowgraph.dump/2", b"shadowgraph.dump/1")
    said = (
        "is of schema shadowgraph.dump/1, this shadowgraph reads shadowgraph.dump/2: read it with the shadowgraph that"
    )
    assert said in refused(path, older, capsys, OLDER)
    header, manifest, payloads = parts_of(whole)
    header["__metadata__"]["schema"] = "shadowgraph.dump/12"
    header["__metadata__"]["new"] = "unknown"
    refused(path, assembled(header, {"new": manifest}, payloads), capsys, NEWER)
    for schema in ("shadowgraph.dump/0", "shadowgraph.dump/x", "shadowgraph.dump", "other/1", "shadowgraph.dump/01"):
        header, manifest, payloads = parts_of(whole)
        header["__metadata__"]["schema"] = schema
        refused(path, assembled(header, manifest, payloads), capsys, DAMAGED)


def test_an_older_minimal_dump_and_a_later_fuller_one_are_read(whole: bytes, tmp_path: Path) -> None:
    """Fields are added within a schema: older files lack some, newer ones have more."""
    path = tmp_path / "run.safetensors"

    def older(manifest: dict[str, Any]) -> None:
        for name in set(manifest) - {"reason", "time", "pid", "versions", "facts", "payloads"}:
            del manifest[name]
        for name in ("last_values", "names_unread", "left_alone"):
            del manifest["facts"][name]

    def later(manifest: dict[str, Any]) -> None:
        manifest["form"] = "0123456789ab"
        manifest["added"] = {"later": [1, 2, 3]}
        manifest["facts"]["added"] = None
        for row in manifest["buffers"]:
            row.append("added")

    path.write_bytes(whole)
    with read_dump(path) as dump:
        text = str(Report(dump.facts()))
    for change in (older, later):
        path.write_bytes(with_manifest(whole, change))
        with read_dump(path) as dump:
            assert str(Report(dump.facts())) == text


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 5000,
        b"PK\x03\x04" + b"\0" * 100,
        b"\x80\x04\x95" + b"cos\nsystem\n(S'touch owned'\ntR.",
        struct.pack("<Q", 2) + b"{}",
        struct.pack("<Q", 56) + b'{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}   ' + b"abcd",
    ],
    ids=["empty", "zeros", "zip", "pickle", "empty safetensors", "safetensors"],
)
def test_other_files(data: bytes, tmp_path: Path, capsys: Capture) -> None:
    said = refused(tmp_path / "other", data, capsys, FOREIGN)
    assert "is no shadowgraph dump" in said


def test_json_of_somebody_else(tmp_path: Path, capsys: Capture) -> None:
    assert "no shadowgraph document" in refused(tmp_path / "other", b'{"schema": "somebody.else/1"}', capsys, FOREIGN)


def test_a_report_that_lacks_what_it_must_have(tmp_path: Path, capsys: Capture) -> None:
    assert "is damaged" in refused(tmp_path / "other", b'{"schema": "shadowgraph.report/2"}', capsys, DAMAGED)


def test_a_report_of_an_older_schema(tmp_path: Path, capsys: Capture) -> None:
    said = refused(tmp_path / "other", b'{"schema": "shadowgraph.report/1"}', capsys, OLDER)
    assert "is of schema shadowgraph.report/1, this shadowgraph reads shadowgraph.report/2: read it with" in said


def test_places_that_hold_no_file(tmp_path: Path, capsys: Capture) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "is no run folder" in refused(tmp_path, None, capsys, 15)
    assert "is no file" in refused(tmp_path / "pipe", None, capsys, FOREIGN)
    refused(Path("/dev/zero"), None, capsys, FOREIGN)
    assert "No such file" in refused(tmp_path / "none", None, capsys, 3)
    refused(Path(f"{tmp_path}/nul\0byte"), None, capsys, 3)
    assert main(["report", str(tmp_path / "none"), "--error-exitcode", "300"]) == 2


def test_texts_give_a_terminal_no_orders(whole: bytes, tmp_path: Path, capsys: Capture) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\nSUMMARY: all is well"

    def change(manifest: dict[str, Any]) -> None:
        manifest["reason"] = evil
        manifest["argv"] = [evil]
        finding = manifest["facts"]["findings"][0]
        finding["detail"]["rows"] = []
        finding["graph"] = finding["detected_at"] = evil
        finding["buffer"]["name"] = evil
        finding["culprit"]["stack"][0]["file"] = evil
        manifest["unread"] = [[0, 1, 1, "whole", evil, evil]]
        manifest["left_out"] = [{"what": evil, "count": 1, "nbytes": 1, "reason": evil}]

    path = tmp_path / "run.safetensors"
    path.write_bytes(with_manifest(whole, change))
    assert main(["report", str(path)]) == 0
    out = capsys.readouterr().out
    assert not set(out) & {"\x1b", "\x07", "\x9b", "\u202e"}
    assert "\nSUMMARY: all is well" not in out


def test_a_file_that_changes_while_it_is_open(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    path.write_bytes(whole)
    with read_dump(path) as dump:
        with open(path, "r+b") as file:
            file.seek(len(whole) - 1)
            file.write(bytes([whole[-1] ^ 1]))
        with pytest.raises(DumpError, match="has changed while it was read"):
            dump.payload(dump.manifest.payloads[-1])
        os.truncate(path, 100)
        with pytest.raises(DumpError):
            dump.payload(dump.manifest.payloads[0])


def test_payloads_are_read_piece_by_piece(tmp_path: Path) -> None:
    size = 32 << 20
    with sg.debug(dump_whole=size, far_guard=0) as debugger:
        table = guarded(debugger, size, dtype=torch.uint8)
        path = debugger.dump(tmp_path / "run.safetensors")
        start = table.data_ptr()
    tracemalloc.start()
    try:
        with read_dump(path) as dump:
            assert (start, size) in {(row.start, row.nbytes) for row in dump.manifest.payloads}
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < size // 2
