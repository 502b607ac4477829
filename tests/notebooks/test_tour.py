"""The tour runs from its first cell to its last in a fresh kernel, and prints what its text says."""

from __future__ import annotations

from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat")
for needed in ("nbclient", "ipykernel", "matplotlib", "triton"):
    pytest.importorskip(needed)

from notebook_running import HOME, MACHINE_PATH, code_of, execute, printed, saved  # noqa: E402 - after the checks

TOUR = HOME / "tour.ipynb"
OF_CELL = {
    "first-graph": ["tensor([70, 70, 70])"],
    "run-without": ["[20.296875, 21.1875, 21.8359375]"],
    "run-watched": [
        "SG101 out-of-bounds write: fill_kv_indices wrote 864 bytes past the end of draft.kv_indices",
        "while preparing replay 1 of",
        "triton fill_kv_indices, grid 3x2x4",
        "row 1 is 128 wide; 208 entries beyond it, into row 2 and past the end of the buffer; 208 entries lost",
        "next by address: draft.positions",
        "43 1 2 3",
        "1 finding",
    ],
    "as-data": [
        "SG101 in prepare of replay 1",
        "bytes 1536 to 2399",
        "past the end: 864 bytes",
        "positions overwritten in the unwatched run: 864 bytes",
    ],
    "run-fixed": ["fixed:  [135.8125, 140.4375, 145.125]", "no findings"],
    "attention": [
        "plan: [0, 5, 10, 15, 20]",
        "SG102 in-graph mutation: aten.copy_.default (node 1) changed 4 bytes of attention.kv_indptr",
        "confidence high",
    ],
    "run-inferred": ["SG102", "the host, tolist", "confidence medium", "1 finding"],
    "run-restored": ["plan: [0, 16, 32, 48, 64]\nplan: [0, 16, 32, 48, 64]", "no findings"],
    "run-watch": ["4 changes; the last by node 1", "watch kv_indptr: 4 changes", "wrote [4, 19]", "no findings"],
}


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Code cells by id, with their outputs. A cell that raises, or a kernel that dies, raises here."""
    return code_of(execute(TOUR, str(tmp_path_factory.mktemp("kernel"))))


@pytest.mark.slow
def test_no_cell_raises(executed: dict[str, Any]) -> None:
    assert "error" not in {output.output_type for cell in executed.values() for output in cell.outputs}
    assert [cell.execution_count for cell in executed.values()] == list(range(1, len(executed) + 1))


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_CELL)
def test_cell_prints_what_the_text_says(executed: dict[str, Any], name: str) -> None:
    text = printed(executed[name])
    assert [fact for fact in OF_CELL[name] if fact not in text] == [], text


@pytest.mark.slow
def test_only_the_broken_programs_are_reported(executed: dict[str, Any]) -> None:
    reported = {name for name, cell in executed.items() if "SUMMARY: shadowgraph" in printed(cell)}
    assert reported == {"run-watched", "attention", "run-inferred"}


@pytest.mark.slow
def test_the_map_is_a_picture(executed: dict[str, Any]) -> None:
    (output,) = executed["run-map"].outputs
    assert output.data["image/png"].startswith("iVBORw0KGgo")


def test_the_saved_file_is_clean() -> None:
    notebook = saved(TOUR)
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.id for cell in code if cell.outputs or cell.execution_count is not None] == []
    assert [cell.id for cell in notebook.cells if cell.metadata] == []
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert TOUR.stat().st_size < 50_000


def test_the_saved_file_names_no_machine() -> None:
    assert MACHINE_PATH.search(TOUR.read_text(encoding="utf-8")) is None
    assert MACHINE_PATH.search('"/tmp/ipykernel_1/2.py"'), "the pattern finds what it is for"


def test_triton_is_imported_after_the_switch() -> None:
    first = next(cell.source for cell in saved(TOUR).cells if cell.cell_type == "code")
    assert 0 <= first.index("TRITON_INTERPRET") < first.index("import triton")
