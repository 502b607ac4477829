"""`tools/third_party_suites.py`, of a project of four tests."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import third_party_suites as tool

TESTS = """
import pytest
def test_passes(): pass
def test_skips(): pytest.skip("not here")
def test_fails(): assert 0, "always"
@pytest.mark.xfail
def test_is_expected_to_fail(): assert 0
class TestOne:
    @pytest.mark.parametrize("size", [1, 2])
    def test_of_a_class(self, size): assert size
    def test_differs(self, pytestconfig):
        assert not pytestconfig.getoption("--shadowgraph"), f"not with it, in {__file__}"
"""
FILE = "small/tests/test_small.py"


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tests = tmp_path / "src" / "small" / "tests"
    tests.mkdir(parents=True)
    (tmp_path / "src" / "conftest.py").write_text("")
    (tests.parent / "__init__.py").write_text("__version__ = '1.2'")
    (tests / "test_small.py").write_text(TESTS)
    suite = tool.Suite("small", ("small/tests",), options=("-p", "no:hypothesispytest"))
    monkeypatch.setattr(tool, "SUITES", {"small": suite})
    return tmp_path / "src"


@pytest.mark.slow
def test_outcomes_are_compared_by_test(checkout: Path, tmp_path: Path) -> None:
    out = tmp_path / "third_party.json"
    out.write_text(json.dumps({"suites": {"another": {"tests": 3}}}))
    assert tool.main([f"small={checkout}@abc", "--out", str(out)]) == 1
    suites = json.loads(out.read_text())["suites"]
    assert suites["another"] == {"tests": 3}, "of a suite that did not run nothing changes"
    made = suites["small"]
    assert (made["commit"], made["versions"]["small"], made["tests"]) == ("abc", "1.2", 7)
    counts = {way: {key: value for key, value in made[way].items() if key != "seconds"} for way in tool.WAYS}
    assert counts == {
        "plain": {"passed": 4, "skipped": 2, "failure": 1},
        "shadowgraph": {"passed": 3, "skipped": 2, "failure": 2},
    }
    (differing,) = made["differing"]
    assert differing["test"] == f"{FILE}::TestOne::test_differs"
    assert (differing["plain"], differing["shadowgraph"]) == ("passed", "failure")
    assert differing["again"] == {"plain": "passed", "shadowgraph": "failure"}
    assert "AssertionError: not with it" in differing["message"]
    assert made["summary"][0] == "no findings"


@pytest.mark.slow
def test_alike_outcomes_are_a_success(checkout: Path, tmp_path: Path) -> None:
    file = checkout / FILE
    file.write_text(file.read_text().replace("assert not pytestconfig", "assert pytestconfig or"))
    out = tmp_path / "third_party.json"
    assert tool.main([f"small={checkout}@abc", "--out", str(out)]) == 0
    assert json.loads(out.read_text())["suites"]["small"]["differing"] == []


def test_a_run_that_was_not_watched_is_no_evidence(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool, "WAYS", {"plain": (), "shadowgraph": ()})
    with pytest.raises(SystemExit, match="the tests were not watched"):
        tool.ran("small", checkout, "abc", sys.executable, 0)


def test_a_suite_that_collects_nothing_is_no_evidence(checkout: Path) -> None:
    (checkout / FILE).write_text("")
    with pytest.raises(SystemExit, match="no test ran"):
        tool.ran("small", checkout, "abc", sys.executable, 0)


@pytest.mark.parametrize("word", ["small", "unknown=.", "small=/does/not/exist"])
def test_what_is_no_suite(word: str, checkout: Path) -> None:
    with pytest.raises(SystemExit, match="one of small"):
        tool.place_of(word)


@pytest.mark.parametrize(
    ("classname", "expected"),
    [
        ("a.test_b", "a/test_b.py::test_c[x-1]"),
        ("a.test_b.TestD", "a/test_b.py::TestD::test_c[x-1]"),
        ("a.test_b.TestD.TestE", "a/test_b.py::TestD::TestE::test_c[x-1]"),
    ],
)
def test_names_are_those_that_pytest_takes(classname: str, expected: str) -> None:
    assert tool.node_id("a/test_b.py", classname, "test_c[x-1]") == expected
