"""Reports in a notebook's own kernel: shown once, as HTML with the text beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat")
for needed in ("nbclient", "ipykernel", "triton"):
    pytest.importorskip(needed)

from notebook_running import execute  # noqa: E402 - after the checks

START = "import contextlib, io, torch\nimport shadowgraph as sg\n%load_ext shadowgraph"
SUMMARY = "shadowgraph: no findings"
BLOCK = "with sg.debug() as dbg:\n    pass\n"
ONCE = {  # cells that show one report
    "magic": "%%shadowgraph\nx = torch.zeros(3)",
    "value": "dbg.report()",
    "silenced": "dbg.report();",
    "kept": "kept = dbg.report(); kept",
    "kept-first": "kept = dbg.report()\n'after it'",
    "later": "kept",
    "displayed": "display(dbg.report())",
    "displayed-later": "display(kept)",
    "line-magic": "%shadowgraph report",
    "quiet": "dbg.report(quiet=True)",
    "quiet-displayed": "display(dbg.report(quiet=True))",
}
REDIRECTED = "with contextlib.redirect_stdout(io.StringIO()) as held:\n    dbg.report()\nprint(held.getvalue())"
TWICE = "again = dbg.report()\ndisplay(again)\ndisplay(again)"  # asked for one more


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """Outputs by cell; a cell that raises raises here."""
    home = tmp_path_factory.mktemp("kernel")
    cells = {"start": START, "block": BLOCK, **ONCE, "redirected": REDIRECTED, "twice": TWICE}
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in cells.values()])
    path = Path(home, "cells.ipynb")
    nbformat.write(made, path)
    run = execute(path, str(home))
    return {name: cell.outputs for name, cell in zip(cells, run.cells, strict=True)}


def reports(outputs: list[Any]) -> list[Any]:
    return [each.data for each in outputs if "sg-cell" in each.get("data", {}).get("text/html", "")]


@pytest.mark.slow
@pytest.mark.parametrize("name", ONCE)
def test_a_report_is_shown_once_as_html(outputs: dict[str, list[Any]], name: str) -> None:
    (report,) = reports(outputs[name])
    assert SUMMARY in report["text/plain"]
    assert "\x1b" not in report["text/plain"]
    assert not [each for each in outputs[name] if each.output_type == "stream"], "not printed as well"


@pytest.mark.slow
def test_what_is_redirected_is_text(outputs: dict[str, list[Any]]) -> None:
    (stream,) = outputs["redirected"]
    assert SUMMARY in stream.text


@pytest.mark.slow
def test_a_report_can_be_displayed_again(outputs: dict[str, list[Any]]) -> None:
    assert len(reports(outputs["twice"])) == 2
