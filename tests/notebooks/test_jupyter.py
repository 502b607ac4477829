"""The notebook on notebooks: magics and the interactive map, in a fresh kernel as in the stored run."""

from __future__ import annotations

import html
import json
import re
from typing import Any

import pytest

for needed in ("nbformat", "nbclient", "ipykernel", "bokeh", "triton"):
    pytest.importorskip(needed)

from notebook_running import (  # noqa: E402 - after the check that they are there
    JUPYTER,
    MACHINE_PATH,
    code_of,
    comparable,
    execute,
    printed,
    saved,
)

CLEAN = "shadowgraph: no findings\ncoverage: guarded exactly against out-of-bounds writes: "
SAYS = {
    "run-watched": [
        "SG101 out-of-bounds write: pack wrote 12 bytes past the end of table (int32[8], 32 bytes)",
        "allocated  In[3]:3 in <module>",
        "launched   In[3]:7 in <module>",
        "alias      recent is table[4:8]",
        "neighbour  next by address: positions (int32[16])",
        "shadowgraph: 1 finding\ncoverage: guarded exactly against out-of-bounds writes: ",
        "156",
    ],
    "after": ["table 12 bytes past the end; [1, 2, 3, 4, 5, 6, 7, 8]"],
    "run-map": ["<InteractiveMap: 3 buffers, 104 B, 3 guarded; 1 finding on 1 buffer>"],
    "save-map": ["wrote memory.html\nTrue it holds all that it needs"],
    "run-explain": ["SG101: out-of-bounds write"],
    "run-sync": [
        "stopped: SG101 out-of-bounds write: pack wrote 12 bytes past the end of table (",
        "launched   In[8]:5",
    ],
    "run-fixed": [CLEAN],
}


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return code_of(execute(JUPYTER, str(tmp_path_factory.mktemp("jupyter"))))


@pytest.mark.slow
@pytest.mark.parametrize("cell", SAYS)
def test_each_cell_prints_what_the_text_says(executed: dict[str, Any], cell: str) -> None:
    assert [fact for fact in SAYS[cell] if fact not in printed(executed[cell])] == []


@pytest.mark.slow
def test_a_fresh_run_prints_what_the_stored_one_did(executed: dict[str, Any]) -> None:
    stored = code_of(saved(JUPYTER))
    hexes = re.compile(r"^ +\+\d+ .*$", re.MULTILINE)  # canary bytes depend on addresses
    fresh, kept = ({at: hexes.sub("", comparable(cell)) for at, cell in cells.items()} for cells in (executed, stored))
    assert fresh == kept
    assert [cell.execution_count for cell in stored.values()] == list(range(1, len(stored) + 1))


@pytest.mark.slow
def test_the_map_is_shown_in_a_frame(executed: dict[str, Any]) -> None:
    (output,) = executed["run-map"].outputs
    page = output.data["text/html"]
    assert page.startswith("<iframe srcdoc=")
    assert '"table"' in html.unescape(page)
    assert "SG101: +12 B past the end by pack" in page


def test_stored_outputs_are_small_and_name_no_machine() -> None:
    text = JUPYTER.read_text("utf-8")
    assert len(text) < 3_500_000  # with the scripts of its map, which is drawn without a network
    assert "cdn.bokeh.org" not in text.replace("--scripts cdn", "")
    assert saved(JUPYTER).metadata.language_info == {"name": "python"}
    assert not MACHINE_PATH.search("\n".join(printed(cell) for cell in code_of(saved(JUPYTER)).values()))
    assert json.loads(text)["nbformat"] == 4
