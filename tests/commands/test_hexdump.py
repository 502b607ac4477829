"""`shadowgraph hexdump`: which bytes it shows, how it decodes and marks them, what it says of missing ones."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from commands.verb_makers import Capture, document, of_process, printed, refused, run_folder
from dumps.dump_makers import guarded, with_manifest

import shadowgraph as sg
from shadowgraph.commands.main import main
from shadowgraph.dumps.reader import read_dump
from shadowgraph.engines.numpy_engine import NumpyEngine
from shadowgraph.views.byte_dump import dumped_buffer
from shadowgraph.views.byte_rows import ByteRow, Fate, Kind
from shadowgraph.views.byte_values import DTYPES, SMALL_FLOATS, decoded
from shadowgraph.views.dumped_rows import dumped_rows


def shown(capsys: Capture, *words: object) -> dict[str, Any]:
    """The one buffer of the document."""
    (buffer,) = document(capsys, "hexdump", *map(str, words))["buffers"]
    made: dict[str, Any] = buffer
    return made


def held(buffer: dict[str, Any]) -> dict[int, int]:
    """Bytes by their offset."""
    return {
        at: value
        for stretch in buffer["stretches"]
        for at, value in enumerate(bytes.fromhex(stretch["hex"]), stretch["offset"])
    }


def rows(text: str) -> dict[int, str]:
    """Rows by their offset."""
    found = re.findall(r"^ +([+-][\d,]+)  (.*)$", text, flags=re.MULTILINE)
    return {int(offset.replace(",", "")): row for offset, row in found}


# -- which bytes -------------------------------------------------------------------------------------------------------


def test_a_small_buffer_whole(worker: Path, capsys: Capture) -> None:
    buffer = shown(capsys, "indptr", worker)
    assert (buffer["name"], buffer["dtype"], buffer["shape"], buffer["nbytes"]) == ("worker.indptr", "int32", [9], 36)
    wanted = np.array([0, *(8 * i for i in range(1, 9))], dtype=np.int32)
    data = bytes(held(buffer)[at] for at in range(36))
    assert data == wanted.tobytes()
    assert buffer["missing"] == []
    text = printed(capsys, "hexdump", "indptr", str(worker))
    assert rows(text)[0].endswith("  0 8 16 24")
    assert "worker.indptr  int32[9]  36 bytes at 0x" in text


def test_an_address_and_a_part_stand_for_the_buffer(worker: Path, capsys: Capture) -> None:
    with read_dump(worker) as dump:
        start = next(owner.view.address for owner in dump.manifest.owners if owner.path == "worker.table")
    named = shown(capsys, "worker.table", worker)
    assert shown(capsys, hex(start + 31), worker) == named
    assert shown(capsys, "rows", worker) == named


def test_around_a_finding(worker: Path, capsys: Capture) -> None:
    (found,) = (f for f in read_dump(worker).manifest.facts.findings if f.code == "SG101")
    buffer = shown(capsys, "table", worker, "--around", found.id)
    assert (buffer["first"], buffer["stop"]) == (-32, 112), "64 bytes on either side, whole rows"
    assert sorted(held(buffer)) == list(range(-32, 112))
    (mark,) = buffer["marks"]
    assert (mark["finding"], mark["code"], mark["ranges"][0][0], mark["ranges"][-1][1]) == (found.id, "SG101", 32, 43)
    start = 2 * (32 - mark["window"])
    assert mark["found"][start : start + 24] == np.array([9, 10, 11], dtype=np.int32).tobytes().hex()


def test_changed_bytes_and_guards_are_marked(worker: Path, capsys: Capture) -> None:
    (found,) = (f for f in read_dump(worker).manifest.facts.findings if f.code == "SG101")
    text = printed(capsys, "hexdump", "table", str(worker), "--around", str(found.id))
    row = rows(text)
    assert re.fullmatch(r"([0-9a-f]{2}\|){16}", row[-16].strip()), "the guard before it"
    assert re.match(r"01 00 00 00 02 00 00 00 .* 1 2 3 4$", row[0])
    again = r"([0-9a-f]{2}\+){12}([0-9a-f]{2}\|){4}"
    assert re.fullmatch(again, row[32].strip()), "twelve changed and were armed again, the guard goes on"
    assert f"#{found.id} found  09*00*00*00*0a*00*00*00*0b*00*00*00*" in text
    assert re.search(r"^ +not  ([0-9a-f]{2} ?){16}$", text, flags=re.MULTILINE)
    assert f"  #{found.id} SG101: bytes 32 to 43\n" in text
    assert "* a finding says it changed   + so, and armed again since   | guard" in text


def test_only_a_guard_that_holds_its_canary_again_was_armed_again(worker: Path) -> None:
    (found,) = (f for f in read_dump(worker).manifest.facts.findings if f.code == "SG101")
    with read_dump(worker) as dump:
        home = next(b for b in dump.buffers if b.serial == found.buffer.serial)
        shown = dumped_buffer(dump, home, "worker.table", found, None, None)

    def fates(change: Callable[[memoryview], None]) -> list[Fate]:
        (held,) = (each for each in shown.stretches if each.offset <= 32 and each.offset + len(each.data) >= 44)
        data = bytearray(held.data)
        change(memoryview(data)[32 - held.offset :][:12])
        made = msgspec.structs.replace(shown, stretches=(msgspec.structs.replace(held, hex=data.hex()),))
        rows = [row for row in dumped_rows(made, "int32") if isinstance(row, ByteRow) and row.kind is Kind.HELD]
        (row,) = (row for row in rows if row.offset == 32)
        return [cell.fate for cell in row.cells]

    def damaged(data: memoryview) -> None:
        data[:] = bytes.fromhex(shown.marks[0].found)[32 - shown.marks[0].window :][:12]

    def in_part(data: memoryview) -> None:
        data[4:8] = b"\1\2\3\4"

    assert fates(lambda data: None) == [Fate.REARMED] * 12 + [Fate.APART] * 4
    assert fates(damaged) == [Fate.CHANGED] * 12 + [Fate.APART] * 4, "the damage stands there still"
    assert fates(in_part) == [Fate.REARMED] * 4 + [Fate.CHANGED] * 4 + [Fate.REARMED] * 4 + [Fate.APART] * 4


def test_without_asking_findings_come_first(tmp_path: Path, capsys: Capture) -> None:
    """Damage far behind the first 4,096 bytes is shown all the same."""
    from shadowgraph.demos.kernels import fill

    with sg.debug() as debugger:
        table = guarded(debugger, 5000)
        debugger.name("server.table", [table])
        fill[(1,)](table[4996:], 0, 6, 1, BLOCK=256)
        path = debugger.dump(tmp_path / "run.dump")
    buffer = shown(capsys, "table[0]", path)
    assert {0, 3000, 20_000, 20_007} <= held(buffer).keys()
    assert len(held(buffer)) == 4096
    assert buffer["more"] > 15_000
    text = printed(capsys, "hexdump", "table[0]", str(path))
    assert "\n        ...\n" in text, "rows that do not follow each other"
    assert "  the same to +" in text
    assert " more bytes in the dump: --start and --count show them\n" in text


def test_start_and_count(worker: Path, capsys: Capture) -> None:
    buffer = shown(capsys, "table", worker, "--start", "8", "--count", "0x10")
    assert sorted(held(buffer)) == list(range(8, 24))
    assert bytes(held(buffer)[at] for at in range(8, 24)) == np.arange(3, 7, dtype=np.int32).tobytes()
    text = printed(capsys, "hexdump", "table", str(worker), "--start", "8", "--count", "16")
    assert rows(text)[0].startswith(".. .. .. .. .. .. .. .. 03 00 00 00 04 00 00 00 ")
    assert rows(text)[0].endswith("  3 4")
    assert sorted(held(shown(capsys, "table", worker, "--start=-8", "--count", "8"))) == list(range(-8, 0))
    assert held(shown(capsys, "table", worker, "--count", "0")) == {}


def test_what_the_dump_does_not_hold(worker: Path, capsys: Capture) -> None:
    buffer = shown(capsys, "large", worker)
    assert buffer["missing"] == [
        {"offset": 4096, "nbytes": 120_000 - 8192, "reason": "left out: the buffer was large, or the dump full"}
    ]
    text = printed(capsys, "hexdump", "large", str(worker), "--start", "4088", "--count", "16")
    assert rows(text)[4080].startswith(".. .. .. .. .. .. .. .. 00 00 80 3f 00 00 80 3f")
    assert "  not in the dump: bytes 4,096 to 4,103 (left out: the buffer was large, or the dump full)\n" in text
    assert list(rows(text)) == [4080]


def test_a_redacted_dump_has_no_bytes(redacted: Path, capsys: Capture) -> None:
    buffer = shown(capsys, "table", redacted)
    assert buffer["stretches"] == []
    assert buffer["missing"] == [{"offset": 0, "nbytes": 32, "reason": "left out: redacted"}]
    text = printed(capsys, "hexdump", "table", str(redacted))
    assert rows(text) == {}
    assert "SG101: bytes 32 to 43; what it saw there is not in the dump\n" in text
    assert "  not in the dump: bytes 0 to 31 (left out: redacted)\n" in text


def test_a_buffer_that_was_freed(worker: Path, capsys: Capture) -> None:
    (found,) = (f for f in read_dump(worker).manifest.facts.findings if f.code == "SG104")
    buffer = next(
        each
        for each in document(capsys, "hexdump", "worker.scale", str(worker))["buffers"]
        if each["serial"] == found.buffer.serial
    )
    assert (buffer["alive"], buffer["stretches"]) == (False, [])
    assert buffer["missing"] == [{"offset": 0, "nbytes": 32, "reason": "freed before the dump was made"}]


def test_mirrored_bytes_of_a_dead_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    from dumps.dump_makers import Server

    def dead(*_: object, **__: object) -> Any:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with sg.debug() as debugger:
        server = Server(debugger)
        server.step()
        with monkeypatch.context() as patch:
            for method in ("read", "read_many", "check", "fetch", "write_canaries"):
                patch.setattr(NumpyEngine, method, dead)
            path = debugger.dump(tmp_path / "run.dump")
        del server
    buffer = shown(capsys, "indptr", path)
    assert [stretch["why"] for stretch in buffer["stretches"]] == ["shadow"]
    assert buffer["stretches"][0]["values"] == [str(i) for i in range(9)], "as they were when the replay began"
    assert "  mirrored: as host memory had them when its graph last began to replay\n" in printed(
        capsys, "hexdump", "indptr", str(path)
    )
    lost = shown(capsys, "weights", path)
    assert lost["missing"][0]["reason"].startswith("could not be read: CUDA error: an illegal memory access")


# -- values ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if hasattr(torch, dtype)])
def test_every_dtype_is_decoded_as_torch_does(dtype: str) -> None:
    """All codes of eight bits, and random bytes for wider ones."""
    kind = getattr(torch, dtype)
    width = torch.empty(0, dtype=kind).element_size()
    data = bytes(range(256)) if width == 1 else np.random.default_rng(1).bytes(256 * width)
    if dtype == "bool":
        data = bytes([0, 1]) * 64
    wanted = torch.frombuffer(bytearray(data), dtype=kind)
    told = decoded(data, dtype).split()
    assert len(told) == len(data) // width
    if dtype in SMALL_FLOATS:
        values = np.array([float(text) for text in told])
        np.testing.assert_allclose(values, wanted.to(torch.float64).numpy(), rtol=1e-5)
    elif kind.is_floating_point:
        values = torch.tensor([float(text) for text in told], dtype=torch.float64)
        torch.testing.assert_close(
            values.to(kind), wanted, rtol=0.0, atol=0.0, equal_nan=True
        )  # as many digits as it takes
    elif kind.is_complex:
        values = torch.tensor([complex(text) for text in told], dtype=torch.complex128)
        torch.testing.assert_close(values, wanted.to(torch.complex128), rtol=1e-6, atol=0.0, equal_nan=True)
    else:
        assert told == [str(value) for value in wanted.tolist()]


def test_another_dtype(worker: Path, capsys: Capture) -> None:
    buffer = shown(capsys, "table", worker, "--dtype", "int16", "--count", "8")
    assert buffer["decoded_as"] == "int16"
    assert buffer["stretches"][0]["values"] == ["1", "0", "2", "0"]


def test_a_buffer_of_half_floats(tmp_path: Path, capsys: Capture) -> None:
    with sg.debug() as debugger:
        kept = [guarded(debugger, 8, dtype=kind) for kind in (torch.bfloat16, torch.float8_e4m3fn)]
        for tensor in kept:
            tensor.copy_(torch.tensor([0.5, -2, 3, 0, 1, 1.5, -0.25, 448]))
        debugger.name("kept", {"half": kept[0], "eighth": kept[1]})
        path = debugger.dump(tmp_path / "run.dump")
    wanted = [0.5, -2, 3, 0, 1, 1.5, -0.25, 448]
    for name in ("half", "eighth"):
        values = shown(capsys, f'kept["{name}"]', path)["stretches"][0]["values"]
        assert [float(value) for value in values] == wanted


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["table", "--dtype", "flaot32"], "no dtype 'flaot32' (did you mean float32?); dtypes are: bool, uint8, "),
        (["table", "--dtype", "int33"], "no dtype 'int33' (did you mean int32 or uint32?); dtypes are: bool, uint8, "),
        (["table", "--dtype", "O"], "no dtype 'O'"),
        (["table", "--count", "-1"], "--count must be from 0 to 1,048,576, not -1"),
        (["table", "--start", "x"], "argument --start: invalid"),
        (["table", "--around", "99"], "no finding #99; there are: #1, #2, #3"),
        (["table", "--around", "1", "--start", "3"], "goes without --start and --count"),
    ],
)
def test_what_does_not_fit_is_one_line(words: list[str], said: str, worker: Path, capsys: Capture) -> None:
    assert said in refused(capsys, 2, "hexdump", *words, str(worker))


def test_a_finding_of_another_buffer_or_without_bytes(worker: Path, capsys: Capture) -> None:
    by_code = {finding.code: finding for finding in read_dump(worker).manifest.facts.findings}
    number = by_code["SG101"].id
    said = refused(capsys, 2, "hexdump", "indptr", str(worker), "--around", str(number))
    assert f"finding #{number} is about worker.table, not about 'indptr'" in said
    number = by_code["SG104"].id
    assert main(["hexdump", "scale", str(worker), "--around", str(number)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"finding #{number} (SG104) is about the whole buffer: its bytes from the start"
    assert "worker.scale" in lines[1]


def test_two_processes_with_the_same_finding(worker: Path, tmp_path: Path, capsys: Capture) -> None:
    data = worker.read_bytes()
    folder = run_folder(
        tmp_path / "run", dump_7_1_exit=of_process(data, 7, 1.0), dump_8_1_exit=of_process(data, 8, 2.0)
    )
    (found,) = (f for f in read_dump(worker).manifest.facts.findings if f.code == "SG101")
    words = ["hexdump", "table", str(folder), "--around", str(found.id)]
    assert "processes 7, 8 have a finding" in refused(capsys, 2, *words)
    assert shown(capsys, *words[1:], "--pid", "8")["pid"] == 8


def test_huge_numbers_cost_nothing(worker: Path, tmp_path: Path, capsys: Capture) -> None:
    def change(manifest: dict[str, Any]) -> None:
        manifest["form"] = ""
        for finding in manifest["facts"]["findings"]:
            if finding["bytes"] is not None:
                finding["bytes"].update(last=1 << 60, ranges=[[-(1 << 60), 1 << 60]])

    path = tmp_path / "run.dump"
    path.write_bytes(with_manifest(worker.read_bytes(), change))
    assert shown(capsys, "table", path, "--start=-0x1000", "--count", "0x100000")["stretches"]
    said = refused(capsys, 2, "hexdump", "table", str(path), "--count", "0x2000000000000")
    assert "--count must be from 0 to 1,048,576" in said
    assert "SG101" in printed(capsys, "hexdump", "table", str(path))
