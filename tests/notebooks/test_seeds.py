"""Each investigation runs from symptom to silence in a fresh kernel, and its text, outputs and findings agree."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

for needed in ("nbformat", "nbclient", "ipykernel", "matplotlib", "triton"):
    pytest.importorskip(needed)

import nbformat  # noqa: E402 - after the check that they are there
from notebook_running import (  # noqa: E402
    MACHINE_PATH,
    ROOT,
    SEEDS,
    code_of,
    comparable,
    execute,
    pictures,
    printed,
    saved,
    seed,
    store,
)

CLEAN = "shadowgraph: no findings\ncoverage: guarded exactly against out-of-bounds writes: "
GUARDED = "buffers of the graph without guards: 0"


@dataclass(frozen=True)
class Claims:
    """What a notebook's cells print: facts by cell, lines of the program by the report's label, cells with a report."""

    facts: dict[str, list[str]]
    lines: dict[str, str]  # the first line that the report names, and what stands there
    reported: set[str]
    silent: set[str]
    mapped: bool = True


CLAIMS = {
    "kv_indptr": Claims(
        facts={
            "run-without": [
                "batch of 2: plan [0, 5, 10, 15, 20]",
                "batch of 4: PlanError: kv_indptr[5]25 - kv_indptr[4]64 should be non-negative",
            ],
            "run-watched": [
                'SG102 in-graph mutation: aten.copy_.default (node 1) changed 8 bytes of attn.metadata["kv_indptr"]',
                "bytes      4 to 32 of a 36-byte buffer, 8 changed in 8 places",
                "0 5 10 15  was",
                "read by    the host, tolist at In[2]:",
                'alias      attn.wrappers[2]._paged_kv_indptr_buf is attn.metadata["kv_indptr"][0:5]',
                "SG109 invariant broken",
                "rule       nondecreasing: [5] = 25 after [4] = 64",
                "confidence medium",
                "shadowgraph: 3 findings\ncoverage: ",
            ],
            "run-protected": ["SG102 replay 1 node 1 aten.copy_.default high"],
            "run-locate": [
                'batch of 4: node 1 aten.copy_.default changed bytes 4-32 of attn.metadata["kv_indptr"]',
                'batch of 2: node 1 aten.copy_.default changed bytes 4-16 of attn.metadata["kv_indptr"]',
            ],
            "run-restored": ["[[0, 16, 32, 48, 64, 80, 96, 112, 128], [0, 16, 32, 48, 64], ", CLEAN],
            "run-restored-protected": ["[('SG102', 'replay', 1)]"],
            "run-planned": ["[[0, 5, 10, 15, 20, 25, 30, 35, 40], [0, 16, 32, 48, 64], ", CLEAN],
            "run-one-off": ["[('SG102', True, 1, 4)]"],
        },
        lines={
            "allocated": 'self.metadata = {"kv_indptr": torch.arange',
            "launched": "indptr[1:] = self.lens[: bs * HEADS].cumsum(0)",
            "read by": "indptr = self._paged_kv_indptr_buf.tolist()",
        },
        reported={"run-watched"},
        silent={"run-restored", "run-planned"},
    ),
    "kv_indices": Claims(
        facts={
            "run-without": [
                "step 4: draft tokens [10, 11, 12, 13, 14, 15, 16, 17, 18, ",
                "step 5: draft tokens [974, 975, 976, 977, 978, 979, 980, 981, 18, ",
                "step 6: IndexError: index out of range in self",
            ],
            "run-watched": [
                "SG101 out-of-bounds write: fill_kv_indices wrote 32 bytes past the end of draft.kv_indices",
                "(int32[3, 128], 1,536 bytes) while preparing replay 5 of",
                "bytes      1,536 to 1,567 of a 1,536-byte buffer, 32 changed; starts 0 bytes past the end",
                "culprit    triton fill_kv_indices, grid 3x2x4, defined at In[2]:",
                "(confirmed)",
                "row 2 is 128 wide; 8 entries beyond it, past the end of the buffer",
                "974 975 976 977  was",
                "shadowgraph: 1 finding\ncoverage: ",
            ],
            "nodes": [
                "aten.embedding.default {'weight': 'draft.embedding', 'indices': 'draft.draft_tokens'",
                "aten.sum.dim_IntList {'self': 'draft.kv_indices'",
            ],
            "run-fixed": [CLEAN, GUARDED],
            "run-one-short": ["[('SG101', 'draft.kv_indices', 50, 4)]"],
        },
        lines={"allocated": "return torch.zeros(shape", "launched": "fill_kv_indices[(STEPS, REQUESTS, TOPK)]("},
        reported={"run-watched"},
        silent={"run-fixed"},
    ),
    "page_table": Claims(
        facts={
            "run-without": [
                "length  9: [nan, nan, 0.42, 0.58]",
                "length 10: [nan, nan, 0.42, 0.58]",
                "as int32: [102, ",
            ],
            "run-watched": [
                "SG101 out-of-bounds write: set_page_table wrote 4 bytes past the end of fa3.page_table",
                "(int32[4, 2], 32 bytes) while preparing replay 2 of",
                "bytes      32 to 35 of a 32-byte buffer, 4 changed; starts 0 bytes past the end",
                "row 0 is 2 wide; 1 entry beyond it, into row 1; 1 entry lost",
                "row 3 is 2 wide; 1 entry beyond it, past the end of the buffer",
                "read by",
                "66 00 00 00",
                "shadowgraph: 1 finding\ncoverage: ",
            ],
            "run-scatter": [
                "without a debugger: index 2 is out of bounds for dimension 1 with size 2",
                "stopped before the scatter ran; page_table [4, 5, 36, 37, 68, 69, 100, 101]",
                "SG109 invariant broken: aten.scatter_.src was given an index out of range for fa3.page_table",
                "rule       index in range: 2 along dim 1, which ends at 2; index holds 0 to 2",
            ],
            "run-fixed": ["Fixed NaN: False", "FixedScattered NaN: False", CLEAN, GUARDED],
            "run-cuts": [
                "3 slots, length 9 - 2 pages: silent",
                "4 slots, length 8 - 2 pages: silent",
                "4 slots, length 9 - 3 pages: ['SG101']",
            ],
        },
        lines={"allocated": "return torch.zeros(shape", "launched": "set_page_table[(ROWS,)]("},
        reported={"run-watched", "run-scatter"},
        silent={"run-fixed"},
    ),
    "padding": Claims(
        facts={
            "run-without": ["req_pool_indices  [2, 5, 4, 7]", "positions         [19, 20, 11, 12]", "[40, 41, 42, 43]"],
            "run-watched": [
                "SG103 stale rows: rows 2 to 3 of decode.req_pool_indices (int64[4]) still hold what was written for",
                "SG103 stale rows: rows 2 to 3 of decode.positions",
                "SG103 stale rows: rows 2 to 3 of decode.input_ids",
                "bytes      16 to 31 of a 32-byte buffer, 16 stale",
                "culprit    aten.copy_.default (candidate)",
                "refreshed  rows 0 to 1",
                "unlike     decode.seq_lens, which was written there for this replay",
                "shadowgraph: 3 findings\ncoverage: ",
            ],
            "run-declared": ["SG103 decode.req_pool_indices [(2, 3, 1)]", "SG103 decode.positions [(2, 3, 1)]"],
            "run-watch": ["aten.copy_.default bytes 0 to 15 in prepare"],
            "run-fixed": ["[0, 0, 0, 0], [0, 0, 0, 0]]", "[('SG103', 'decode.positions')]"],
            "run-all-fixed": [CLEAN, GUARDED],
            "run-one-missed": ["SG103 decode.req_pool_indices replay 35", "SG103 decode.positions replay 35"],
        },
        lines={"allocated": "self.input_ids = torch.zeros(", "launched": "self.input_ids[:count].copy_(ids)"},
        reported={"run-watched"},
        silent={"run-all-fixed"},
        mapped=False,
    ),
    "aiter": Claims(
        facts={
            "run-without": [
                "lengths (4, 4): new keys to slots [3, 103], keys [[13.0, 14.0, 0.0], [23.0, 24.0, 0.0]]",
                "lengths (5, 5): new keys to slots [103, 104], keys [[13.0, 14.0, 0.0], [23.0, 15.0, 25.0]]",
            ],
            "run-watched": [
                "SG101 out-of-bounds write: create_kv_indices wrote 8 bytes past the end of aiter.kv_indices (int32[8]",
                "while preparing replay 3 of",
                "bytes      32 to 39 of a 32-byte buffer, 8 changed; starts 0 bytes past the end",
                "alias      aiter.unified.page_table is aiter.kv_indices.view(2, 4)",
                "103 104 ",
                "watch out_cache_loc: 3 changes",
                "shadowgraph: 1 finding\ncoverage: ",
            ],
            "run-fixed": [
                CLEAN,
                GUARDED,
                "keys: [[13.0, 14.0, 15.0], [23.0, 24.0, 25.0]]",
                "(128,) guarded exactly: True",
            ],
            "run-one-short": ["SG101 aiter.kv_indices replay 61 - 16 bytes past the end"],
        },
        lines={"allocated": "return torch.zeros(shape", "launched": "create_kv_indices[(MAX_BS,)]("},
        reported={"run-watched"},
        silent={"run-fixed"},
    ),
}


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Runs a notebook once; its code cells by id, with their outputs."""
    runs: dict[str, dict[str, Any]] = {}

    def of(name: str) -> dict[str, Any]:
        if name not in runs:
            runs[name] = code_of(execute(seed(name), str(tmp_path_factory.mktemp(name))))
        return runs[name]

    return of


def stored(name: str) -> dict[str, Any]:
    return code_of(saved(seed(name)))


@pytest.mark.slow
@pytest.mark.parametrize("name", SEEDS)
def test_a_fresh_run_prints_what_the_stored_one_did(executed: Any, name: str) -> None:
    fresh = executed(name)
    assert {at: comparable(cell) for at, cell in fresh.items()} == {
        at: comparable(cell) for at, cell in stored(name).items()
    }
    assert [cell.execution_count for cell in stored(name).values()] == list(range(1, len(fresh) + 1))


@pytest.mark.slow
@pytest.mark.parametrize("name", SEEDS)
def test_each_cell_prints_what_the_text_says(executed: Any, name: str) -> None:
    cells, claims = executed(name), CLAIMS[name]
    missing = {at: [fact for fact in facts if fact not in printed(cells[at])] for at, facts in claims.facts.items()}
    assert {at: facts for at, facts in missing.items() if facts} == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", SEEDS)
def test_the_report_leads_to_the_lines_of_the_program(executed: Any, name: str) -> None:
    cells = executed(name)
    by_number = {cell.execution_count: cell.source.splitlines() for cell in cells.values()}
    report = printed(cells["run-watched"])
    for label, wanted in CLAIMS[name].lines.items():
        found = re.search(rf"^  {label}\b.*?In\[(\d+)\]:(\d+)", report, re.MULTILINE)
        assert found, (label, report)
        assert wanted in by_number[int(found[1])][int(found[2]) - 1], label


@pytest.mark.slow
@pytest.mark.parametrize("name", SEEDS)
def test_the_broken_programs_are_reported_and_the_fixed_are_not(executed: Any, name: str) -> None:
    texts = {at: printed(cell) for at, cell in executed(name).items()}
    assert {at for at, text in texts.items() if "SUMMARY: shadowgraph" in text} == CLAIMS[name].reported
    assert {at for at, text in texts.items() if "shadowgraph: no findings" in text} == CLAIMS[name].silent
    assert not any("limit:" in text for text in texts.values()), "nothing stood in the way of the checks"


@pytest.mark.slow
@pytest.mark.parametrize("name", SEEDS)
def test_nothing_goes_wrong_on_the_way(executed: Any, name: str) -> None:
    outputs = [output for cell in executed(name).values() for output in cell.outputs]
    assert {output.output_type for output in outputs} <= {"stream", "display_data", "execute_result"}
    assert {output.name for output in outputs if output.output_type == "stream"} == {"stdout"}
    assert len(executed(name)["run-map"].outputs if CLAIMS[name].mapped else []) == CLAIMS[name].mapped
    drawn = [picture for cell in executed(name).values() for picture in pictures(cell)]
    assert [picture[:11] for picture in drawn] == ["iVBORw0KGgo"] * CLAIMS[name].mapped


@pytest.mark.parametrize("name", SEEDS)
def test_the_stored_file_is_one_to_show(name: str) -> None:
    notebook, text = saved(seed(name)), seed(name).read_text(encoding="utf-8")
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    assert [cell.id for cell in notebook.cells if cell.metadata] == []
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert seed(name).stat().st_size < 300_000
    assert "Traceback" not in text
    without = re.sub(r'"image/png": "[^"]*"', "", text)
    assert MACHINE_PATH.search(without) is None
    assert len(notebook.cells[-1].source.split("## What it could not have told")) == 2


@pytest.mark.parametrize("name", SEEDS)
def test_no_debugger_stands_before_the_damage(name: str) -> None:
    cells = list(stored(name).values())
    first = next(index for index, cell in enumerate(cells) if "sg.debug(" in cell.source)
    assert cells[first - 1].id == "run-without"
    assert "assert " in cells[first - 1].source, "the precondition is asserted"
    if any("import triton" in cell.source for cell in cells):
        assert 0 <= cells[0].source.index("TRITON_INTERPRET") < cells[0].source.index("import triton")


def test_every_investigation_is_checked_and_listed() -> None:
    assert {path.name for path in (ROOT / "notebooks").glob("seed_*.ipynb")} == {seed(name).name for name in SEEDS}
    assert set(CLAIMS) == set(SEEDS)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [name for name in SEEDS if f"notebooks/{seed(name).name}" not in readme] == []


@pytest.mark.slow
def test_storing_keeps_what_says_the_same(tmp_path: Path) -> None:
    path = tmp_path / "padding.ipynb"
    path.write_bytes(seed("padding").read_bytes())
    assert not store(path)
    assert path.read_bytes() == seed("padding").read_bytes()
    path.write_text(path.read_text(encoding="utf-8").replace("[2, 5, 4, 7]\\n", "[2, 5, 0, 0]\\n"), encoding="utf-8")
    assert store(path)
    assert path.read_bytes() != seed("padding").read_bytes(), "addresses are those of the new run"
    assert "[2, 5, 0, 0]\\n" not in path.read_text(encoding="utf-8")
