"""Which dump of a run the verbs and pages read, and what they say of findings that came after it."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import pytest
from verb_makers import Capture

from shadowgraph.commands.main import main
from shadowgraph.dumps.reader import read_dump
from shadowgraph.render.text.run_text import RunReport
from shadowgraph.wrap.folder.reader import read_run
from shadowgraph.wrap.status.dumped import NewestDumps

PROGRAM = """
import torch
import shadowgraph as sg
from shadowgraph.demos.kernels import fill


class Server:
    def __init__(self):
        self.table = torch.zeros(4, 2, dtype=torch.int32)
        self.other = torch.zeros(4, 2, dtype=torch.int32)
        self.graph = sg.HostGraph()
        with sg.host_graph(self.graph):
            self.output = self.table * 2 + self.other


def serve():
    server = Server()
    for step in range(4):
        for place, tensor in enumerate((server.table, server.other)):
            fill[(1,)](tensor, 0, 8 + (step == place + 1), 1, BLOCK=16)
        server.graph.replay()


serve()
"""


def wrapped(folder: Path, moments: str) -> Path:
    """A run with two findings, of which the buffers are freed at its exit."""
    program, run = folder / "serve.py", folder / "run"
    program.write_text(PROGRAM)
    words = ["wrap", "--run-dir", str(run), "--dump", moments, "--", sys.executable, str(program)]
    ran = subprocess.run([sys.executable, "-m", "shadowgraph", *words], cwd=folder, capture_output=True, text=True)
    assert "shadowgraph: 2 findings" in ran.stdout + ran.stderr
    return run


@pytest.fixture(scope="module")
def early(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the dump of its first finding alone."""
    return wrapped(tmp_path_factory.mktemp("early"), "findings")


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With another dump at its exit."""
    return wrapped(tmp_path_factory.mktemp("both"), "findings,exit")


def test_a_later_finding_is_told_and_not_called_unknown(early: Path, capsys: Capture) -> None:
    assert main(["hexdump", str(early), "server.other", "--around", "2"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert "-finding.dump was made at finding #1; #2 came later and is not in it: " in shown.err
    assert "--dump findings,exit" in shown.err
    assert main(["map", str(early), "--finding", "2"]) == 2
    assert "#2 came later" in capsys.readouterr().err
    assert main(["hexdump", str(early), "server.other", "--around", "9"]) == 2
    assert "no finding #9; there are: #1" in capsys.readouterr().err


def test_a_map_tells_the_findings_it_lacks(early: Path, capsys: Capture) -> None:
    assert main(["map", str(early)]) == 0
    assert "was made at finding #1; #2 came later and is not in it" in capsys.readouterr().err
    assert main(["hexdump", str(early), "server.table", "--around", "1"]) == 0
    assert capsys.readouterr().err == "", "the finding asked for is in the dump"


def test_a_page_tells_the_findings_its_map_lacks(early: Path, tmp_path: Path, capsys: Capture) -> None:
    assert main(["report", str(early), "--html", str(tmp_path / "page.html")]) == 0
    assert "was made at finding #1; #2 came later and is not in it</h2>" in (tmp_path / "page.html").read_text()


def test_bytes_of_a_finding_come_from_the_dump_that_has_them(both: Path, capsys: Capture) -> None:
    exit_dump = next(both.glob("*-exit.dump"))
    assert main(["hexdump", str(exit_dump), "server.table", "--around", "1"]) == 0
    assert "freed before the dump was made" in capsys.readouterr().out, "else the choice would not matter"
    assert main(["hexdump", str(both), "server.table", "--around", "1"]) == 0
    shown = capsys.readouterr()
    assert "freed before the dump was made" not in shown.out
    assert "note: read from dump-" in shown.err
    assert "-finding.dump: dump-" in shown.err
    assert main(["hexdump", str(both), "server.table"]) == 0
    assert "freed before the dump was made" not in capsys.readouterr().out
    assert main(["map", str(both), "--kind", "bytes", "--finding", "1"]) == 0
    assert "freed before the dump was made" not in capsys.readouterr().out


def test_a_later_finding_is_named_with_the_dump_that_has_it(both: Path, capsys: Capture) -> None:
    assert main(["map", str(both)]) == 0
    shown = capsys.readouterr()
    assert "server.other" in shown.out
    assert "#2 came later and is not in it: dump-" in shown.err
    assert "-exit.dump has it" in shown.err
    assert main(["map", str(both), "--finding", "2"]) == 0
    assert "#2 SG101" in capsys.readouterr().out


def test_status_pages_take_the_dump_with_the_bytes(both: Path) -> None:
    report, dumps = RunReport(read_run(both)), NewestDumps()
    findings = report.facts.findings
    memory = dumps.memory(report.run, findings, "")
    assert memory is not None
    assert "-finding.dump" in memory.about
    found = dumps.finding(report.run, findings[0], findings, "")
    assert found is not None
    assert "-finding.dump" in found.about
    with read_dump(next(both.glob("*-exit.dump"))) as dump:
        assert len(dump.buffers) < 3


def test_one_dump_is_read_without_notes(both: Path, capsys: Capture) -> None:
    """A file is what was asked for."""
    for path in both.glob("*.dump"):
        assert main(["map", str(path)]) == 0
        assert capsys.readouterr().err == ""
    gc.collect()
