"""`tools/gpu_evidence.py`: what it keeps of GPU tests, here of small ones that need no GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_live_sglang import load_tool

tool = load_tool("gpu_evidence")

PASSES = "def test_passes(record_property): record_property('nodes', 8)\n"
FAILS = "def test_fails(): assert [1, 2] == [1, 3], 'these must be alike'\n"
FAILS_ONCE = """
from pathlib import Path
def test_fails_at_first():
    seen = Path(__file__).with_suffix('.seen')
    first = not seen.exists()
    seen.touch()
    assert not first, 'a capture ended with an error'
"""
NO_SETUP = """
import pytest
@pytest.fixture
def broken(): raise RuntimeError('no device')
def test_needs_it(broken): pass
"""


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    about = {"card": "none", "source": tool.source(), "date": "2026-01-01"}
    monkeypatch.setattr(tool, "circumstances", lambda command: {"command": command, **about})
    return tmp_path / "evidence"


def gpu_tests(folder: Path, *texts: str) -> str:
    """A file of tests that carry the marker."""
    path = folder / "test_small.py"
    path.write_text("\n".join(["import pytest", "pytestmark = pytest.mark.gpu", *texts]))
    (folder / "conftest.py").write_text(
        "def pytest_configure(config): config.addinivalue_line('markers', 'gpu: one')\n"
    )
    return str(path)


def kept(path: Path) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(path.read_text())
    return body


def row(body: dict[str, Any], name: str) -> dict[str, Any]:
    return next(row for row in body["tests"] if row["test"].endswith(f"::{name}"))


@pytest.fixture(autouse=True)
def other_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_ADDOPTS", "-c /dev/null -p no:hypothesispytest")


def test_the_message_of_a_failure_is_kept_without_paths_of_the_machine(tmp_path: Path, out: Path) -> None:
    file = gpu_tests(tmp_path, PASSES, FAILS, NO_SETUP)
    assert tool.tests(out, [file], 1, 100) == 1
    body = kept(out / "gpu_tests.json")
    assert [body[kind] for kind in ("passed", "failure", "error", "skipped")] == [1, 1, 1, 0]
    (failure,) = row(body, "test_fails")["failures"]
    assert failure["run"] == 1
    assert "AssertionError: these must be alike" in failure["message"]
    assert "[1, 2] == [1, 3]" in failure["message"]
    assert "RuntimeError: no device" in row(body, "test_needs_it")["failures"][0]["message"]
    assert row(body, "test_passes")["said"] == {"nodes": "8"}
    assert "failures" not in row(body, "test_passes")


def test_a_long_message_keeps_its_end(tmp_path: Path, out: Path) -> None:
    file = gpu_tests(tmp_path, "def test_fails():\n    print('x' * 9000)\n    assert 0, 'y' * 9000 + ' the end'\n")
    tool.tests(out, [file], 1, 100)
    message = row(kept(out / "gpu_tests.json"), "test_fails")["failures"][0]["message"]
    assert len(message) < 1.3 * tool.LONGEST_MESSAGE
    assert message.startswith("AssertionError: yyy"), "and the error"
    assert "the end" in message


def test_paths_of_the_checkout_are_left_out(tmp_path: Path) -> None:
    xml = tmp_path / "results.xml"
    said = f"{tool.ROOT}/tests/cuda/test_a.py:3: AssertionError"
    xml.write_text(
        f"<testsuite><testcase classname='tests.cuda.test_a' name='test_b' time='1.234'>"
        f"<failure message='short'>{said}</failure></testcase></testsuite>"
    )
    message = "tests/cuda/test_a.py:3: AssertionError"
    expected = {"test": "cuda.test_a::test_b", "outcome": "failure", "seconds": 1.23, "message": message}
    assert tool.rows_of(xml) == [expected]


def test_several_runs_are_one_result(tmp_path: Path, out: Path) -> None:
    file = gpu_tests(tmp_path, PASSES, FAILS_ONCE)
    assert tool.tests(out, [file], 3, 100) == 1
    body = kept(out / "gpu_tests.json")
    assert body["command"] == f"tools/gpu_evidence.py --only tests --times 3 -- {file}"
    assert (body["asked"], [run["failure"] for run in body["runs"]]) == (3, [1, 0, 0])
    assert (body["passed"], body["failure"]) == (1, 1), "a test that failed once has failed"
    assert [failure["run"] for failure in row(body, "test_fails_at_first")["failures"]] == [1]


@pytest.mark.slow
def test_a_call_that_is_out_of_time_is_gone_on_with(tmp_path: Path, out: Path) -> None:
    file = gpu_tests(tmp_path, PASSES)
    for runs in (1, 2, 3):
        assert tool.repeats(out, [file], 3, 0, 1, limit=0) == 0
        assert len(kept(out / "gpu_repeats.json")["runs"]) == runs, "each call makes one"
    body = kept(out / "gpu_repeats.json")
    assert body["command"] == f"tools/gpu_evidence.py --repeat 3 {file} --workers 0"
    assert [run["passed"] for run in body["runs"]] == [1, 1, 1]
    tool.repeats(out, [file], 3, 0, 1, limit=0)
    assert len(kept(out / "gpu_repeats.json")["runs"]) == 1, "what is complete is made anew"


def test_runs_of_other_source_do_not_count(tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = gpu_tests(tmp_path, PASSES)
    tool.tests(out, [file], 3, 0)
    monkeypatch.setattr(tool, "circumstances", lambda command: {"command": command, "source": "another"})
    tool.tests(out, [file], 3, 0)
    body = kept(out / "gpu_tests.json")
    assert (body["source"], len(body["runs"])) == ("another", 1)


@pytest.mark.slow
def test_what_never_wrote_results_is_not_kept(tmp_path: Path, out: Path) -> None:
    assert tool.tests(out, [str(tmp_path / "missing.py")], 1, 100) != 0
    assert not (out / "gpu_tests.json").exists()


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("a.py", True),
        ("engines/kernels.cu", True),
        ("graphs/observer/rows.cpp", True),
        ("graphs/observer/rows.h", True),
        ("render/page.html", True),
        ("checks/explanation.md", False),
        ("checks/__pycache__/a.cpython-311.pyc", False),
        (".ruff_cache/a.py", False),
    ],
)
def test_the_source_is_all_that_runs(name: str, counts: bool, tmp_path: Path) -> None:
    path = tmp_path / "shadowgraph" / name
    path.parent.mkdir(parents=True)
    none = tool.source(tmp_path)
    path.write_text("one")
    one = tool.source(tmp_path)
    path.write_text("other")
    other = tool.source(tmp_path)
    assert len({none, one, other}) == (3 if counts else 1)


@pytest.mark.parametrize(("printed", "known"), [("580.95.05\n580.95.05\n", "580.95.05"), ("", ""), (None, "")])
def test_the_drivers_version(printed: str | None, known: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if printed is not None:
        asked = tmp_path / "nvidia-smi"
        asked.write_text(f"#!/bin/sh\ncat <<END\n{printed}END\n")
        asked.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin" if printed is not None else str(tmp_path))
    assert tool.driver_version() == known
