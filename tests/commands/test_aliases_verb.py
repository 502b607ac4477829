"""`shadowgraph aliases`: who shares bytes with whom, which bytes, and as what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands.verb_makers import Capture, document, printed

import shadowgraph as sg


class Holder:
    """Whatever holds tensors."""

    def __init__(self, **tensors: torch.Tensor) -> None:
        self.__dict__.update(tensors)


@pytest.fixture(scope="module")
def views(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two groups, one of many forms, and a buffer of one owner."""
    with sg.debug() as debugger:
        with debugger.guard():
            table = torch.arange(64, dtype=torch.int32).view(8, 8)
            pages = torch.zeros(16, dtype=torch.int64)
            alone = torch.zeros(4)
        holder = Holder(
            table=table,
            same=table.view(8, 8),
            row=table[2],
            columns=table[:, 4:],
            flat=table.view(64),
            floats=table.view(torch.float32),
            pages=pages,
            first=pages[:10],
            last=pages[6:],
            alone=alone,
        )
        debugger.name("holder", holder)
        path = debugger.dump(tmp_path_factory.mktemp("views") / "run.dump")
        del holder, table, pages, alone
    return path


def groups(capsys: Capture, *words: object) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = document(capsys, "aliases", *map(str, words))["groups"]
    return made


def test_groups_and_relations(views: Path, capsys: Capture) -> None:
    found = {group["buffers"][0]: group for group in groups(capsys, views)}
    table = next(group for group in found.values() if group["nbytes"] == 256)
    chief = table["owners"][0]
    assert (chief["first"], chief["last"], chief["relation"]) == (0, 255, "")
    told = {owner["path"]: (owner["first"], owner["last"], owner["relation"]) for owner in table["owners"]}
    assert set(told) == {f"holder.{name}" for name in ("table", "same", "row", "columns", "flat", "floats")}
    assert chief["path"] == "holder.flat", "of owners of all bytes the one with the shortest path"
    assert told["holder.table"] == (0, 255, ".view(8, 8)")
    assert told["holder.row"] == (64, 95, "[16:24]")
    assert told["holder.columns"] == (16, 255, "bytes [16, 256)")
    assert told["holder.floats"][:2] == (0, 255)
    pages = next(group for group in found.values() if group["nbytes"] == 128)
    told = {owner["path"]: (owner["first"], owner["last"], owner["relation"]) for owner in pages["owners"]}
    assert told == {
        "holder.pages": (0, 127, ""),
        "holder.first": (0, 79, "[0:10]"),
        "holder.last": (48, 127, "[6:16]"),
    }
    assert [group["address"] for group in groups(capsys, views)] == sorted(g["address"] for g in found.values())


def test_owners_that_a_third_one_joins(tmp_path: Path, capsys: Capture) -> None:
    """Nobody owns it all, and the first and the last share no byte."""
    with sg.debug() as debugger:
        with debugger.guard():
            whole = torch.zeros(12, dtype=torch.int32)
        holder = Holder(first=whole[:5], middle=whole[4:8], last=whole[7:])
        debugger.name("holder", holder)
        path = debugger.dump(tmp_path / "run.dump")
        del holder
    (group,) = groups(capsys, path)
    told = {owner["path"]: (owner["first"], owner["last"], owner["relation"]) for owner in group["owners"]}
    assert told["holder.last"] == (0, 19, ""), "the widest, with the shortest path"
    assert told["holder.first"] == (-28, -9, None)
    assert told["holder.middle"] == (-12, 3, "bytes [0, 4)")
    text = printed(capsys, "aliases", str(path))
    assert "holder.first  int32[5]  bytes -28 to -9  beside it, joined by another owner\n" in text


def test_of_one_buffer(views: Path, capsys: Capture) -> None:
    (group,) = groups(capsys, "row", views)
    assert group["nbytes"] == 256
    assert groups(capsys, "holder.alone", views) == []
    said = "no two owners share bytes with holder.alone, as far as they have names\n"
    assert printed(capsys, "aliases", "holder.alone", str(views)) == said


def test_memory_that_nobody_tracks(tmp_path: Path, capsys: Capture) -> None:
    with sg.debug() as debugger:
        array = np.zeros(16, dtype=np.int32)
        holder = Holder(whole=torch.from_numpy(array), half=torch.from_numpy(array)[8:])
        debugger.name("holder", holder)
        path = debugger.dump(tmp_path / "run.dump")
        del holder
    (group,) = groups(capsys, path)
    assert [(owner["path"], owner["relation"]) for owner in group["owners"]] == [
        ("holder.whole", ""),
        ("holder.half", "[8:16]"),
    ]


def test_text(views: Path, capsys: Capture) -> None:
    text = printed(capsys, "aliases", str(views))
    assert "\n  holder.last  int64[10]  bytes 48 to 127  is holder.pages[6:16]\n" in text
    assert text.endswith("9 owners in 2 groups that share bytes\n")


def test_a_terminal_gets_the_first_owners(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    with sg.debug() as debugger:
        with debugger.guard():
            table = torch.zeros(64, dtype=torch.int32)
        debugger.name("kept", [table, *(table[i:] for i in range(30))])
        path = debugger.dump(tmp_path / "run.dump")
        del table
    assert len(printed(capsys, "aliases", str(path)).splitlines()) == 32
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    shown = printed(capsys, "aliases", str(path))
    assert "  ... and 18 more owners\n" in shown


def test_redacted_and_cuda_like(redacted: Path, cuda_like: Path, capsys: Capture) -> None:
    (group,) = groups(capsys, redacted)
    assert [owner["path"] for owner in group["owners"]] == ["worker.table", "worker.rows"]
    (group,) = groups(capsys, cuda_like)
    assert [(owner["path"], owner["relation"]) for owner in group["owners"]] == [
        ("model.table", ""),
        ("model.rows", "[1:3]"),
    ]
