"""Dumps that somebody made up, with checksums that are right: one clear line each, little memory, nothing else."""

from __future__ import annotations

import io
import os
import struct
import tracemalloc
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from dump_makers import (
    DAMAGED,
    FOREIGN,
    NEWER,
    Capture,
    assembled,
    parts_of,
    plain,
    refused,
    sealed,
    with_manifest,
    with_manifest_text,
)
from hypothesis import given
from hypothesis import strategies as st

from shadowgraph.commands.main import main
from shadowgraph.dumps.container import PROBE

MEMORY = 8 << 20  # bytes that reading a small bad file may take


def _rename(name: str) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        header, manifest, payloads = parts_of(data)
        return assembled(
            {name if key == "payload.0" else key: value for key, value in header.items()}, manifest, payloads
        )

    return change


def _header(change: Callable[[dict[str, Any]], object]) -> Callable[[bytes], bytes]:
    def changed(data: bytes) -> bytes:
        header, manifest, payloads = parts_of(data)
        change(header)
        return sealed(header) + plain(manifest) + payloads

    return changed


def _header_text(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    def changed(data: bytes) -> bytes:
        header, manifest, payloads = parts_of(data)
        header["__metadata__"]["header_crc32"] = "0" * 8
        text = plain(header)
        assert old in text
        return sealed(text.replace(old, new, 1)) + plain(manifest) + payloads

    return changed


def _manifest(change: Callable[[dict[str, Any]], object]) -> Callable[[bytes], bytes]:
    return lambda data: with_manifest(data, change)  # type: ignore[arg-type]


def _text(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    def changed(text: bytes) -> bytes:
        assert old in text
        return text.replace(old, new, 1)

    return lambda data: with_manifest_text(data, changed)


def _length(length: int) -> Callable[[bytes], bytes]:
    return lambda data: struct.pack("<Q", length) + data[8:]


def _entry(**parts: Any) -> Callable[[bytes], bytes]:
    return _header(lambda header: header["payload.0"].update(parts))


def _last_tensor_ends_at(stop: int) -> Callable[[bytes], bytes]:
    def change(header: dict[str, Any]) -> None:
        last = list(header.values())[-1]
        last["data_offsets"][1] = stop
        last["shape"] = [stop - last["data_offsets"][0]]

    return _header(change)


def _row(place: int, value: object) -> Callable[[bytes], bytes]:
    def change(manifest: dict[str, Any]) -> None:
        manifest["payloads"][0][place] = value

    return _manifest(change)


def _first(table: str, place: int, value: object) -> Callable[[bytes], bytes]:
    def change(manifest: dict[str, Any]) -> None:
        manifest[table][0][place] = value

    return _manifest(change)


def _finding(**parts: Any) -> Callable[[bytes], bytes]:
    return _manifest(lambda manifest: manifest["facts"]["findings"][0].update(parts))


def _hidden(manifest: dict[str, Any]) -> None:
    """A suppressed finding with a window that is none."""
    facts = manifest["facts"]
    facts["hidden"] = [{**facts["findings"][0], "window": {"offset": 0, "expected": "00", "found": "0000"}}]


HUGE = 1 << 62
HOSTILE = {
    "path in a tensor's name": _rename("../../../../tmp/owned"),
    "absolute path in a tensor's name": _rename("/etc/passwd"),
    "path in the manifest": _row(0, "/etc/passwd"),
    "device in the manifest": _row(0, "/dev/zero"),
    "the manifest as its own payload": _row(0, "manifest"),
    "header of 4 GiB": _length(1 << 32),
    "header of 2**64 - 1 bytes": _length(2**64 - 1),
    "header of 0 bytes": _length(0),
    "huge shape": _entry(shape=[HUGE]),
    "huge offsets": _entry(data_offsets=[0, HUGE]),
    "offsets beyond 64 bits": _entry(data_offsets=[0, 1 << 80]),
    "a last tensor of 4 EiB": _last_tensor_ends_at(HUGE),
    "negative offsets": _entry(data_offsets=[-4, 4]),
    "offsets the wrong way round": _entry(data_offsets=[10, 2]),
    "two tensors in one place": _header(lambda h: h["payload.1"].update(data_offsets=h["payload.0"]["data_offsets"])),
    "another dtype": _entry(dtype="F64"),
    "two dimensions": _entry(shape=[2, 2]),
    "no shape": _entry(shape=[]),
    "a tensor that is null": _header(lambda h: h.update({"payload.0": None})),
    "a tensor more": _header(lambda h: h.update({"x": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}})),
    "no manifest": _rename("payload.0x"),
    "metadata that is no text": _header(lambda h: h["__metadata__"].update(manifest_crc32=7)),
    "metadata more": _header(lambda h: h["__metadata__"].update(more="x")),
    "a name twice": _header_text(b'"payload.0":{', b'"payload.1":{'),
    "header with deep nesting": _header_text(b'"payload.0":{', b'"x":' + b"[" * 100_000 + b'"payload.0":{'),
    "header with NaN": _header_text(b'"shape":[', b'"shape":[NaN,'),
    "header that is no UTF-8": _header_text(b'"payload.0":{', b'"\xff\xfe":{'),
    "header with spaces": _header_text(b'"payload.0":{', b'"payload.0": {'),
    "payload of another size": _row(2, HUGE),
    "payload of negative size": _row(2, -1),
    "payload with another checksum": _row(6, 1),
    "payload for an unknown reason": _row(5, "fun"),
    "manifest with deep nesting": _text(b'{"reason":', b'{"x":' + b"[" * 200_000 + b',"reason":'),
    "manifest with deep objects": _text(b'{"reason":', b'{"x":' + b'{"a":' * 200_000 + b'1,"reason":'),
    "manifest with NaN": _manifest(lambda m: m.update(time=float("nan"))),
    "manifest with Infinity": _manifest(lambda m: m.update(time=float("inf"))),
    "manifest with a huge number": _text(b'"pid":', b'"pid":' + b"9" * 100_000),
    "manifest with a key twice": _text(b'{"reason":', b'{"pid":1,"reason":'),
    "manifest with a key twice deep inside": _text(b'"coverage":{', b'"coverage":{"written":1,'),
    "manifest that is no UTF-8": _text(b'"on demand"', b'"on \xff demand"'),
    "manifest that is cut": lambda data: with_manifest_text(data, lambda text: text[: len(text) // 2]),
    "manifest that is a list": lambda data: with_manifest_text(data, lambda text: b"[" + text + b"]"),
    "manifest that is empty": lambda data: with_manifest_text(data, lambda text: b""),
    "no facts": _manifest(lambda m: m.pop("facts")),
    "facts of another type": _manifest(lambda m: m.update(facts=[1, 2])),
    "a time before the epoch": _manifest(lambda m: m.update(time=-5.0)),
    "a time far away": _manifest(lambda m: m.update(time=1e12)),
    "a stack that is not there": _first("buffers", 7, 10**6),
    "a negative index": _first("buffers", 7, -1),
    "a text that is not there": _first("buffers", 4, 10**6),
    "a buffer before memory": _first("buffers", 1, -5),
    "a role that is none": _first("buffers", 3, "borrowed"),
    "a frame that is not there": _manifest(lambda m: m["stacks"].append([10**6])),
    "a file that is not there": _manifest(lambda m: m["frames"].append([10**6, 1, 0])),
    "an owner that is not there": _manifest(lambda m: m["alias_groups"].append([10**6])),
    "a launch without its name": _manifest(lambda m: m["launches"][0][0].__setitem__(1, 10**6)),
    "a view without strides": _manifest(lambda m: m["owners"][0][1].__setitem__(2, [])),
    "a finding's window that is no hexadecimal": _finding(window={"offset": 0, "expected": "zz", "found": "zz"}),
    "a suppressed finding's windows of two sizes": _manifest(_hidden),
    "a finding's windows of two sizes": _finding(window={"offset": 0, "expected": "00", "found": "0000"}),
    "a finding's code of another kind": _finding(code="SG109"),
    "a finding without its bytes": _finding(bytes=None, message=""),
    "a finding with a dtype that numpy cannot show": _manifest(
        lambda m: m["facts"]["findings"][0]["buffer"].update(dtype="O")
    ),
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE.keys())
def test_made_up_dumps(
    whole: bytes, change: Callable[[bytes], bytes], tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each with checksums that are right, where it has any."""
    path = tmp_path / "hostile.safetensors"
    path.write_bytes(change(whole))
    opened: list[object] = []
    real = os.open
    monkeypatch.setattr(os, "open", lambda name, *rest, **more: opened.append(name) or real(name, *rest, **more))
    tracemalloc.start()
    try:
        said = refused(path, None, capsys, DAMAGED)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MEMORY
    assert opened == [path]
    assert [entry.name for entry in tmp_path.iterdir()] == ["hostile.safetensors"]
    assert "damaged" in said


def test_a_file_with_holes_as_long_as_it_says(whole: bytes, tmp_path: Path, capsys: Capture) -> None:
    """Sizes that are true and huge: the manifest would be a tebibyte of zeros."""
    header, _, _ = parts_of(whole)
    header = {name: header[name] for name in ("__metadata__", "manifest")}
    header["manifest"].update(shape=[1 << 40], data_offsets=[0, 1 << 40])
    path = tmp_path / "holes.safetensors"
    begins = sealed(header)
    path.write_bytes(begins)
    os.truncate(path, len(begins) + (1 << 40))
    tracemalloc.start()
    try:
        refused(path, None, capsys, DAMAGED)
        assert tracemalloc.get_traced_memory()[1] < MEMORY
    finally:
        tracemalloc.stop()


def test_a_maker_of_hostile_dumps_makes_good_ones_too(whole: bytes, tmp_path: Path, capsys: Capture) -> None:
    """Else the tests above would prove nothing but that checksums are compared."""
    path = tmp_path / "run.safetensors"
    same = _manifest(lambda m: None), _header(lambda h: None), _text(b"{", b"{"), _row(0, "payload.0")
    assert [change(whole) == whole for change in same] == [True] * 4
    path.write_bytes(_rename("a/b")(with_manifest(whole, lambda m: m["payloads"][0].__setitem__(0, "a/b"))))
    assert main(["report", str(path)]) == 0


def attempt(path: Path, data: bytes) -> None:
    """Any bytes are read or refused in one line; nothing else may happen."""
    path.write_bytes(data)
    for words in ([], ["--json"]):
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = main(["report", str(path), *words])
        assert code in (0, DAMAGED, NEWER, FOREIGN), err.getvalue()
        assert err.getvalue().count("\n") == (code > 0)
        assert bool(out.getvalue()) == (code == 0)


@pytest.mark.fuzz
@given(data=st.binary(max_size=2000))
def test_random_bytes(data: bytes, tmp_path_factory: pytest.TempPathFactory, whole: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz"
    attempt(path, data)
    attempt(path, whole[:PROBE] + data)
    attempt(path, with_manifest_text(whole, lambda text: data))


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


@pytest.mark.fuzz
@given(choices=st.lists(st.integers(0, 10**6), min_size=6, max_size=6), value=values)
def test_random_values_anywhere(
    choices: list[int], value: object, tmp_path_factory: pytest.TempPathFactory, whole: bytes
) -> None:
    def change(manifest: dict[str, Any]) -> None:
        manifest["form"] = ""  # of another version, which may have fields that we do not know
        at: Any = manifest
        for choice in choices:
            keys = list(at) if isinstance(at, dict) else list(range(len(at)))
            if not keys:
                return
            key = keys[choice % len(keys)]
            if not isinstance(at[key], (dict, list)) or choice % 5 == 0:
                at[key] = value
                return
            at = at[key]

    attempt(tmp_path_factory.getbasetemp() / "fuzz", with_manifest(whole, change))
