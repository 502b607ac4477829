"""The magics in a real IPython shell: what a cell leaves, shows and refuses."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import warm

pytest.importorskip("IPython")
pytest.importorskip("triton")

from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

import shadowgraph as sg

OVERRUN = """\
import torch
from shadowgraph.demos.kernels import fill
with dbg.guard():
    table = torch.zeros(4, dtype=torch.int32)
graph = sg.HostGraph()
with sg.host_graph(graph):
    doubled = table * 2
fill[(1,)](table, 0, table.numel() + 3, 1, BLOCK=64)
graph.replay()
"""
ANSI = re.compile(r"\x1b\[[0-9;]*m")


class Notebook:
    """A shell and what its cells print."""

    def __init__(self, shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
        self.shell, self._capsys = shell, capsys

    def run(self, cell: str) -> Any:
        """A cell, numbered and kept like a user's; what IPython says of how it went."""
        self._capsys.readouterr()
        result = self.shell.run_cell(cell, store_history=True)
        shown = self._capsys.readouterr()
        self.out, self.err = ANSI.sub("", shown.out), ANSI.sub("", shown.err)
        return result

    def refused(self, cell: str) -> str:
        """The one line that a cell was refused with."""
        result = self.run(cell)
        assert not result.success
        assert self.out == ""
        assert self.err.startswith("UsageError: ")
        assert self.err.count("\n") == 1
        return self.err

    @property
    def names(self) -> dict[str, Any]:
        return self.shell.user_ns


@pytest.fixture
def notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Notebook]:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setattr("shadowgraph.session._latest", None)  # of a test before
    main = sys.modules["__main__"]
    InteractiveShell.clear_instance()
    config = Config(HistoryManager={"enabled": False}, InteractiveShell={"colors": "nocolor"})
    shell = InteractiveShell.instance(config=config)
    try:
        made = Notebook(shell, capsys)
        assert made.run("import shadowgraph as sg\n%load_ext shadowgraph").success
        yield made
    finally:
        sg.uninstall()
        shell.restore_sys_module_state()
        InteractiveShell.clear_instance()
        sys.modules["__main__"] = main


def test_a_cell_is_watched_and_reported(notebook: Notebook) -> None:
    assert notebook.run(f"%%shadowgraph --backend host\n{OVERRUN}").success
    assert sg.current() is None, "watched no longer than the cell"
    (finding,) = notebook.names["dbg"].findings
    assert (finding.code, finding.past_end) == ("SG101", 12)
    assert finding.buffer.name == "table", "named by the notebook's variable"
    number = notebook.shell.execution_count - 1
    launched = finding.culprit.stack[0]
    assert (launched.file, launched.line) == (f"In[{number}]", 1 + 8), "counted as the notebook shows the cell"
    assert OVERRUN.splitlines()[7].startswith("fill[")
    assert "SG101 out-of-bounds write: fill wrote 12 bytes past the end of table (int32[4], 16 bytes)" in notebook.out
    assert notebook.out.rstrip().splitlines()[-2] == "shadowgraph: 1 finding"
    assert notebook.names["doubled"].tolist() == notebook.names["table"].mul(2).tolist(), "names stay"


def test_other_buffers_are_named_for_maps(notebook: Notebook) -> None:
    from shadowgraph.views.memory_map import MemoryMap

    assert notebook.run(f"%%shadowgraph\n{OVERRUN}\nheld = {{'k': torch.zeros(3)}}\ntable").success
    known = {buffer.name for buffer in MemoryMap.of(notebook.names["dbg"]).buffers}
    assert {"table", "doubled"} <= known
    assert not known & {"_", "__", "Out[2]", "_2"}, "results that IPython keeps are no names"


def test_the_last_value_is_the_cells(notebook: Notebook) -> None:
    result = notebook.run("%%shadowgraph --name mine\nx = 20\nx + mine.settings.every")
    assert result.result == 21
    assert isinstance(notebook.names["mine"], sg.Debugger)
    assert "dbg" not in notebook.names
    assert notebook.run("%%shadowgraph\n7;").result is None, "silenced"


def test_options_reach_the_debugger(notebook: Notebook) -> None:
    assert notebook.run(
        "%%shadowgraph --layout faithful --no-infer --far-guard 64K --every 3 --overhead-percent 5\npass"
    ).success
    settings = notebook.names["dbg"].settings
    assert (settings.layout, settings.infer, settings.far_guard) == ("faithful", False, 65536)
    assert (settings.every, settings.overhead_percent) == (3, 5.0)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--layuot isolate", "unrecognized arguments: --layuot isolate (did you mean --layout?)"),
        ("--layout tight", "layout must be one of isolate, faithful, not 'tight'"),
        ("--far-guard much", "--far-guard must be a number of bytes such as 65536 or 64K, not 'much'"),
        ("--every often", "--every must be a number, not 'often'"),
        ("--name 3x", "--name must be the name of a variable, not '3x'"),
        ("--name", "argument --name: expected one argument"),
        ("--layout 'isolate", "cannot read the options: No closing quotation"),
        ("stray", "unrecognized arguments: stray"),
    ],
)
def test_wrong_options_run_nothing(notebook: Notebook, line: str, said: str) -> None:
    assert said in notebook.refused(f"%%shadowgraph {line}\nran = True")
    assert "ran" not in notebook.names
    assert sg.current() is None


def test_an_exception_is_shown_as_the_users_own(notebook: Notebook) -> None:
    plain = notebook.run("def f(n):\n    return 1 // n\n\nf(0)")
    expected = notebook.out
    assert isinstance(plain.error_in_exec, ZeroDivisionError)
    cell = f"%%shadowgraph\n{OVERRUN}f(0)"
    result = notebook.run(cell)
    assert isinstance(result.error_in_exec, ZeroDivisionError)
    report, bar, trace = notebook.out.partition("-" * 75)
    assert bar
    assert "SG101 out-of-bounds write: fill wrote 12 bytes past the end of table" in report
    assert "integrations" not in trace
    assert "run_cell_magic" not in trace
    assert re.findall(r"^(?:Cell|File) .*", trace, re.MULTILINE)[0].endswith(f"line {len(cell.splitlines())}")
    assert trace.rstrip().endswith("ZeroDivisionError: integer division or modulo by zero")
    assert len(re.findall("^Cell ", trace, re.MULTILINE)) == len(re.findall("^Cell ", expected, re.MULTILINE)) == 2
    assert sg.current() is None
    notebook.names["kept"] = result.error_in_exec
    notebook.run("def again():\n    raise kept\nagain()")
    assert "in again()" in notebook.out, "raised elsewhere it has the traceback of there"


def test_sync_stops_at_the_users_line(notebook: Notebook) -> None:
    result = notebook.run(f"%%shadowgraph --sync\n{OVERRUN}after = 1")
    assert isinstance(result.error_in_exec, sg.FindingsError)
    assert "after" not in notebook.names
    assert "shadowgraph: 1 finding\n" in notebook.out
    assert re.search(r"^-*> *\d+ (fill\[|graph\.replay)", notebook.out, re.MULTILINE)


def test_a_syntax_error_is_the_notebooks_own(notebook: Notebook) -> None:
    result = notebook.run("%%shadowgraph\nran = 1\nx = = 2")
    assert "invalid syntax" in str(result.error_in_exec)
    number = notebook.shell.execution_count - 1
    shown = f"  Cell In[{number}], line 3\n    x = = 2\n        ^\nSyntaxError: invalid syntax\n\n"
    assert notebook.out == shown, "what the notebook itself would show"
    notebook.run("1\n1\nx = = 2")
    assert notebook.out == shown.replace(f"[{number}]", f"[{number + 1}]")
    assert "ran" not in notebook.names


def test_await_is_one_line(notebook: Notebook) -> None:
    assert "write `with sg.debug() as dbg:`" in notebook.refused(
        "%%shadowgraph\nimport asyncio\nawait asyncio.sleep(0)"
    )


def test_magics_and_leading_lines_in_the_cell(notebook: Notebook) -> None:
    lines = ["", "", "%shadowgraph pause", "import inspect", "at = inspect.currentframe().f_lineno"]
    assert notebook.run("\n".join(["%%shadowgraph", *lines, "%shadowgraph resume"])).success
    assert notebook.names["at"] == 6


def test_a_debugger_that_is_active_is_one_line(notebook: Notebook) -> None:
    notebook.run("held = sg.install()")
    assert "a debugger is active already" in notebook.refused("%%shadowgraph\nran = True")
    assert "ran" not in notebook.names
    assert notebook.run("%shadowgraph pause").success
    assert notebook.names["held"].monitor.paused
    assert notebook.run("%shadowgraph resume").success
    assert not notebook.names["held"].monitor.paused
    assert notebook.run("%shadowgraph report").success
    assert "shadowgraph: no findings" in notebook.out


@pytest.mark.parametrize("inner", ["%%shadowgraph\nran = True", "sg.debug().__enter__()"], ids=["magic", "block"])
def test_a_cell_in_a_cell_has_no_report_of_nothing(notebook: Notebook, inner: str) -> None:
    result = notebook.run(f"%%shadowgraph\n{inner}")
    assert "end it: shadowgraph.uninstall()" in str(result.error_in_exec)
    assert "no findings" not in notebook.out
    assert "ran" not in notebook.names
    assert sg.current() is None


def test_a_cell_that_fails_later_tells_what_was_seen(notebook: Notebook) -> None:
    assert notebook.run(f"%%shadowgraph\n{OVERRUN}sg.debug().__enter__()").error_in_exec is not None
    assert "SG101 out-of-bounds write" in notebook.out


def test_lines(notebook: Notebook, tmp_path: Path) -> None:
    assert "no debugger yet" in notebook.refused("%shadowgraph report")
    assert "takes one of: report, map, pause, resume, explain" in notebook.refused("%shadowgraph")
    assert "no 'reprot' (did you mean report?); " in notebook.refused("%shadowgraph reprot")
    assert "takes nothing more" in notebook.refused("%shadowgraph report now")
    assert notebook.run("%shadowgraph explain SG101").success
    assert notebook.out.startswith("SG101: out-of-bounds write")
    assert "no kind of finding is called 'SG999'" in notebook.refused("%shadowgraph explain SG999")
    notebook.run(f"%%shadowgraph\n{OVERRUN}")
    assert notebook.run("%shadowgraph report").success
    assert "shadowgraph: 1 finding\n" in notebook.out
    assert "the last debugger has stopped" in notebook.refused("%shadowgraph pause")
    pytest.importorskip("bokeh")
    drawn = notebook.run("%shadowgraph map --scripts cdn").result
    assert [damage.code for damage in drawn.map.damages] == ["SG101"]
    path = tmp_path / "map.html"
    assert notebook.run(f"%shadowgraph map {path}").success
    assert notebook.out == f"wrote {path}\n"
    assert path.read_bytes().lstrip().startswith(b"<!DOCTYPE html>")


def test_lines_after_a_block(notebook: Notebook) -> None:
    watched = "with sg.debug() as dbg:\n" + "".join(f"    {line}\n" for line in OVERRUN.splitlines())
    assert notebook.run(watched).success
    assert notebook.run("%shadowgraph report").success
    assert "shadowgraph: 1 finding\n" in notebook.out
    pytest.importorskip("bokeh")
    drawn = notebook.run("%shadowgraph map").result
    assert [damage.code for damage in drawn.map.damages] == ["SG101"]
    assert drawn.scripts == "inline"
    notebook.run("with sg.debug() as other:\n    pass")
    assert notebook.run("%shadowgraph map").result.map.damages == (), "that of the latest block"


def test_a_report_is_shown_once(notebook: Notebook) -> None:
    notebook.run("with sg.debug() as dbg:\n    pass")
    summary = "shadowgraph: no findings"
    assert notebook.run("dbg.report()").success
    assert notebook.out.count(summary) == 1
    assert "<Report" not in notebook.out
    notebook.run("kept = dbg.report()\n'after it'")
    assert notebook.out.count(summary) == 1
    assert "after it" in notebook.out
    notebook.run("kept")
    assert "<Report: 0 findings, 0 notes>" in notebook.out, "printed in another cell"
    assert "verdict" in notebook.names["kept"]._repr_html_()
    notebook.run("dbg.report(quiet=True)")
    assert "<Report: 0 findings, 0 notes>" in notebook.out, "and not printed at all"
    notebook.run("import io\ndbg.report(io.StringIO())")
    assert "<Report: 0 findings, 0 notes>" in notebook.out, "printed elsewhere"


def test_unloading(notebook: Notebook) -> None:
    assert notebook.run("%unload_ext shadowgraph").success
    notebook.run("%%shadowgraph\nran = True")
    assert "not found" in notebook.err
    assert notebook.run("%load_ext shadowgraph\n%shadowgraph explain SG101").success


def test_shadowgraph_itself_needs_no_ipython() -> None:
    code = "import sys; sys.modules['IPython'] = None; import shadowgraph as sg; sg.load_ipython_extension; sg.debug"
    env = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(sg.__file__))}
    done = warm.run([sys.executable, "-c", code], env)
    assert (done.returncode, done.stderr) == (0, "")


SAMPLER = """\
import torch
class Sampler:
    def __init__(self):
        self.noise = torch.randn(16)
        self.x = torch.zeros(16)
        self.graph = sg.HostGraph()
    def capture(self):
        with sg.host_graph(self.graph):
            self.out = torch.tanh(self.x + self.noise)
    def run(self, steps):
        for step in range(steps):
            {refresh}
            self.graph.replay()
"""
REBINDS, COPIES = "self.noise = torch.randn(16)", "self.noise.copy_(torch.randn(16))"
USES = "s = Sampler(); first = s.noise\ns.capture(); s.run(8)"
MODULE_LEVEL = """\
noise = torch.randn(4); kept = noise
graph = sg.HostGraph()
with sg.host_graph(graph):
    out = noise * 2
for step in range(5):
    {refresh}
    graph.replay()
"""


def codes(notebook: Notebook) -> list[str]:
    return [finding.code for finding in notebook.names["dbg"].findings]


@pytest.mark.parametrize("indented", [False, True], ids=["magic", "block"])
@pytest.mark.parametrize(("refresh", "expected"), [(REBINDS, ["SG108"]), (COPIES, [])], ids=["rebound", "in-place"])
def test_code_of_a_cell_is_read_as_that_of_a_file(
    notebook: Notebook, refresh: str, expected: list[str], indented: bool
) -> None:
    assert notebook.run(SAMPLER.format(refresh=refresh)).success
    block = "with sg.debug() as dbg:\n" + "".join(f"    {line}\n" for line in USES.splitlines())
    assert notebook.run(block if indented else f"%%shadowgraph\n{USES}").success
    assert codes(notebook) == expected
    if expected:
        (finding,) = notebook.names["dbg"].findings
        assert finding.culprit.launched_source == REBINDS


@pytest.mark.parametrize(
    ("refresh", "expected"),
    [("noise = torch.randn(4)", ["SG108"]), ("noise.copy_(torch.randn(4))", [])],
    ids=["rebound", "in-place"],
)
def test_code_below_the_magic_is_read_too(notebook: Notebook, refresh: str, expected: list[str]) -> None:
    assert notebook.run(f"%%shadowgraph\nimport torch\n%alias_magic t timeit\n{MODULE_LEVEL.format(refresh=refresh)}")
    assert codes(notebook) == expected
    if expected:
        assert notebook.names["dbg"].findings[0].culprit.launched_source == refresh


def test_a_cell_that_changed_is_read_anew(notebook: Notebook) -> None:
    for refresh, expected in ((REBINDS, ["SG108"]), (COPIES, []), (REBINDS, ["SG108"])):
        assert notebook.run(SAMPLER.format(refresh=refresh)).success
        assert notebook.run(f"%%shadowgraph\n{USES}").success
        assert codes(notebook) == expected


def test_the_text_of_a_cell(notebook: Notebook) -> None:
    from shadowgraph.model.stacks import cell_source

    def latest() -> str | None:
        return cell_source(f"In[{notebook.shell.execution_count - 1}]")

    notebook.run("%%shadowgraph\n\nx = 1\n%shadowgraph pause")
    first, text = f"In[{notebook.shell.execution_count - 1}]", latest()
    assert text is not None
    assert text.splitlines()[:3] == ["", "", "x = 1"]
    assert "%" not in text.partition("run_line_magic")[0], "Python"
    notebook.run("%%shadowgraph\n\nx = 1\n%shadowgraph pause")
    again = cell_source(first)
    assert again is not None
    assert again.splitlines()[2] == "x = 1", "though the code goes by another number now"
    reads = "import inspect\nfrom shadowgraph.model.stacks import cell_label, cell_source"
    reads += "\nread = cell_source(cell_label(inspect.currentframe().f_code.co_filename))"
    notebook.run(f"%%capture\n{reads}")
    assert notebook.names["read"] == f"{reads}\n", "lines are counted below another magic"
    assert cell_source("In[99]") == ""
    assert cell_source(__file__) is None
