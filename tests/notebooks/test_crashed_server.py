"""The post-mortem of a real dump: git has the dump, the notebook reads it, and its text, outputs and asserts agree."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

for needed in ("nbformat", "nbclient", "ipykernel", "matplotlib"):
    pytest.importorskip(needed)

import nbformat  # noqa: E402 - after the check that they are there
from dumps.dump_makers import parts_of, with_manifest  # noqa: E402
from nbclient.exceptions import CellExecutionError  # noqa: E402
from notebook_running import (  # noqa: E402
    CRASHED,
    DATA,
    ROOT,
    code_of,
    comparable,
    execute,
    pictures,
    printed,
    saved,
)

RUN = DATA / "eagle_h200"
MOST = 4 << 20  # bytes that a clone may have to carry for it
SOMEBODYS_PATH = re.compile(rb"(?<![\w.])/(home|root|work|mnt|Users)/")
BACKEND = "sglang/srt/layers/attention/flashinfer_backend.py"
SAYS = {
    "files": ["run.json ", "findings-*.jsonl ", "*.dump "],
    "finding": [
        f"generate_draft_decode_kv_indices, grid (3, 2, 8), {BACKEND}:1561",
        "wrote 4,544 bytes past the end of int32[3, 512]",
        f"which init_cuda_graph_state allocated, {BACKEND}:1618",
    ],
    "run-owners": [
        "draft.attn_backends[0].cuda_graph_kv_indices[0]  int32[512]  bytes 0 to 2,047",
        "._paged_kv_indices_buf  int32[512]  bytes 2,048 to 4,095  is draft.cuda_graph_kv_indices[1]",
    ],
    "run-hexdump": ["  guards: ", " found  ", "SG101: bytes 6,144 to 10,687"],
    "slots": ["values past the end, all below the KV cache's"],
    "arithmetic": [
        "tokens in the batch: 200 by the bytes past the end",
        "row 0: 1,616 entries for 512: 1,104 beyond the row, 80 of them beyond the table",
        "row 1: 1,632 entries for 512: 1,120 beyond the row, 608 of them beyond the table",
        "row 2: 1,648 entries for 512: 1,136 beyond the row, 1,136 of them beyond the table",
    ],
    "run-nodes": [" nodes in "],
    "run-lines": ["flashinfer/decode.py:", "graphs that decode: "],
    "run-timeline": [f"{BACKEND}:1618 in init_cuda_graph_state", f"{BACKEND}:1561", "found     SG101"],
    "run-fix": ["a row has 4,096 entries; this batch needs 1,648, the longest 4,096"],
    "run-diff": ["findings: 0 gone, 0 new, ", "  = SG101 out-of-bounds write: generate_draft_decode_kv_indices"],
    "run-missing": ["bytes of memory in the dump: ", "bytes that could not be read: ", "device: "],
}


def git(*words: str) -> list[str]:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def files() -> list[Path]:
    """The files of the run folder."""
    if not RUN.is_dir():
        pytest.skip(f"no {RUN.relative_to(ROOT)} here: take a clone, or see notebooks/data/README.md")
    return sorted(path for path in RUN.rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def executed(files: list[Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Code cells by id, with their outputs. An assert of the notebook that fails raises here."""
    return code_of(execute(CRASHED, str(tmp_path_factory.mktemp("crashed"))))


# -- the dump ----------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="these sources are no clone")
def test_git_has_all_of_the_run() -> None:
    known = {Path(name) for name in git("ls-files", str(RUN.relative_to(ROOT)))}
    assert {"run.json", ".dump", ".jsonl"} <= {path.name for path in known} | {path.suffix for path in known}
    assert {path.relative_to(ROOT) for path in RUN.rglob("*") if path.is_file()} == known


def test_it_is_small(files: list[Path]) -> None:
    assert 0 < sum(path.stat().st_size for path in files) <= MOST


def test_it_names_nobodys_folders(files: list[Path]) -> None:
    assert SOMEBODYS_PATH.search(b'["/home/somebody/run.py"]'), "the pattern finds what it is for"
    assert {path.name: found[0] for path in files if (found := SOMEBODYS_PATH.search(path.read_bytes()))} == {}


# -- the notebook ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", SAYS)
def test_each_cell_prints_what_the_text_says(executed: dict[str, Any], name: str) -> None:
    text = printed(executed[name])
    assert [fact for fact in SAYS[name] if fact not in text] == [], text


@pytest.mark.slow
def test_a_fresh_run_prints_what_the_stored_one_did(executed: dict[str, Any]) -> None:
    stored = code_of(saved(CRASHED))
    assert {at: comparable(cell) for at, cell in executed.items()} == {at: comparable(c) for at, c in stored.items()}
    assert [cell.execution_count for cell in stored.values()] == list(range(1, len(executed) + 1))


@pytest.mark.slow
def test_nothing_goes_wrong_on_the_way(executed: dict[str, Any]) -> None:
    outputs = [output for cell in executed.values() for output in cell.outputs]
    assert {output.output_type for output in outputs} == {"stream", "execute_result"}
    assert {output.name for output in outputs if output.output_type == "stream"} == {"stdout"}
    assert [at for at, cell in executed.items() if pictures(cell)] == ["run-map", "run-bytes"]


@pytest.mark.slow
def test_the_report_is_a_page(executed: dict[str, Any]) -> None:
    (output,) = executed["run-report"].outputs
    page = output.data["text/html"]
    assert (
        "generate_draft_decode_kv_indices wrote up to 5,952 bytes past the end of draft.cuda_graph_kv_indices" in page
    )
    assert "flashinfer_backend.py:1561" in page


def findings_in(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """Those that the notebook is about."""
    found: list[dict[str, Any]] = manifest["facts"]["findings"]
    return [each for each in found if each["buffer"]["name"] == "draft.cuda_graph_kv_indices"]


def shorter(manifest: dict[str, Any]) -> None:
    """A bug that is one entry smaller."""
    for finding in findings_in(manifest):
        finding["bytes"]["last"] -= 4
        finding["bytes"]["ranges"][-1][1] -= 4


def elsewhere(manifest: dict[str, Any]) -> None:
    """Another line of the same file."""
    for finding in findings_in(manifest):
        finding["culprit"]["stack"][0]["line"] += 1


def fixed(manifest: dict[str, Any]) -> None:
    """A run in which nothing was found."""
    manifest["facts"]["findings"] = []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "error"), [(shorter, "AssertionError"), (elsewhere, "AssertionError"), (fixed, "StopIteration")]
)
def test_another_dump_is_refused(files: list[Path], change: Any, error: str, tmp_path: Path) -> None:
    folder = tmp_path / "data" / RUN.name
    shutil.copytree(RUN, folder)
    dumps = list(folder.glob("*.dump"))
    assert any(findings_in(parts_of(path.read_bytes())[1]) for path in dumps), "as it is, it is taken"
    for path in dumps:
        path.write_bytes(with_manifest(path.read_bytes(), change))
    with pytest.raises(CellExecutionError) as caught:
        execute(CRASHED, str(tmp_path))
    assert caught.value.ename == error
    assert "BACKEND = " in str(caught.value), "in the cell that asserts the finding"


def test_the_stored_file_is_one_to_show() -> None:
    notebook, text = saved(CRASHED), CRASHED.read_bytes()
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    assert [cell.id for cell in notebook.cells if cell.metadata] == []
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert len(text) < 700_000
    assert b"Traceback" not in text
    assert SOMEBODYS_PATH.search(text) is None
    assert len(notebook.cells[-1].source.split("## What it could not have told")) == 2


def test_the_text_stays_true_of_another_run() -> None:
    """What changes from run to run is printed, and not written down: addresses, processes, times."""
    for cell in saved(CRASHED).cells:
        assert re.search(r"0x[0-9a-f]{6,}|\bprocess \d|\d\d:\d\d:\d\d|graph#\d", cell.source) is None, cell.id
