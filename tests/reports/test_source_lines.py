"""The text of the lines that allocated a buffer and launched a culprit, where it is known for sure."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace
from support.finding_samples import BUFFER, CULPRIT, FINDING, altered, run_of

import shadowgraph as sg
from shadowgraph.demos.kernels import fill
from shadowgraph.dumps.redaction import redacted
from shadowgraph.model.stacks import Frame
from shadowgraph.monitor.source_lines import source_line
from shadowgraph.render.html.cards import card_of
from shadowgraph.render.text.text import Report

OLD = 1_000_000_000


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text("first\n\n    table = zeros(4)\t# caf\x1b[31m\n" + f"x = '{'y' * 300}'\n", encoding="utf-8")
    os.utime(path, (OLD, OLD))
    return path


def line(path: Path, number: int) -> str:
    return source_line(Frame(str(path), number, "main"))


def test_a_line_is_stripped_and_cut_and_harmless(program: Path) -> None:
    assert line(program, 1) == "first"
    assert line(program, 3) == "table = zeros(4) # caf [31m"
    assert len(line(program, 4)) == 120
    assert line(program, 4).endswith("y...")


@pytest.mark.parametrize("number", [0, -1, 2, 99])
def test_no_such_line(program: Path, number: int) -> None:
    assert line(program, number) == ""


def test_a_file_that_may_have_changed_since_it_was_imported(program: Path) -> None:
    os.utime(program)
    assert line(program, 1) == ""


def test_files_that_cannot_be_read(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert line(program.parent / "gone.py", 1) == ""
    assert line(program.parent, 1) == "", "a folder"
    assert source_line(Frame("<stdin>", 1, "f")) == ""
    assert source_line(Frame("zip\0file", 1, "f")) == ""
    monkeypatch.setattr("shadowgraph.monitor.source_lines._LARGEST", 8)
    assert line(program, 1) == ""


def test_a_file_that_is_no_text(program: Path) -> None:
    program.write_bytes(b"a\xff = 1\n")
    os.utime(program, (OLD, OLD))
    assert line(program, 1) == "a\ufffd = 1"


def overrun() -> sg.Debugger:
    with sg.debug() as debugger:
        with debugger.guard():
            table = torch.zeros(4, dtype=torch.int32)
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            _kept = table * 2
        fill[(1,)](table, 0, table.numel() + 3, 1, BLOCK=64)
        graph.replay()
    return debugger


def test_a_finding_of_a_run() -> None:
    debugger = overrun()
    (found,) = debugger.findings
    allocated, launched = (
        "table = torch.zeros(4, dtype=torch.int32)",
        "fill[(1,)](table, 0, table.numel() + 3, 1, BLOCK=64)",
    )
    assert (found.buffer.allocated_source, found.culprit.launched_source) == (allocated, launched)
    lines = str(debugger.report(quiet=True)).splitlines()
    assert lines[lines.index(f"                 {allocated}") - 1].startswith("  allocated  ")
    assert lines[lines.index(f"                 {launched}") - 1].startswith("  launched   ")
    told = found.to_dict()
    assert (told["buffer"]["allocated_source"], told["culprit"]["launched_source"]) == (allocated, launched)


def test_redaction_leaves_the_text_out_and_the_place_in() -> None:
    (found,) = overrun().findings
    hidden = redacted(found)
    assert (hidden.buffer.allocated_source, hidden.culprit.launched_source) == ("", "")
    assert hidden.buffer.allocated == found.buffer.allocated
    assert hidden.culprit.stack == found.culprit.stack


def test_a_page_shows_the_text_below_its_line() -> None:
    finding = replace(
        FINDING,
        buffer=replace(BUFFER, allocated_source="self.kv = empty(3, 128)"),
        culprit=replace(CULPRIT, launched_source="fill_indices[grid](self.kv)"),
    )
    groups = {group.label: group.lines for group in card_of(finding).facts}
    assert groups["allocated"][:2] == ("/srv/app/backend.py:41 in init_state", "    self.kv = empty(3, 128)")
    assert groups["launched"][:2] == ("/srv/app/draft.py:120 in prepare", "    fill_indices[grid](self.kv)")
    assert "\n                 \n" not in str(Report(run_of(altered()))), "no empty line without text"


def test_a_line_of_a_notebook_cell() -> None:
    pytest.importorskip("IPython")
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    try:
        shell.run_cell("a = 1\n\nb = 2", store_history=True)
        number = len(shell.user_ns["In"]) - 1
        assert [source_line(Frame(f"In[{number}]", at, "<module>")) for at in (1, 3, 4)] == ["a = 1", "b = 2", ""]
        assert source_line(Frame(f"In[{number + 7}]", 1, "<module>")) == ""
    finally:
        InteractiveShell.clear_instance()
