"""Wrapped programs whose planner refuses: what was known of it is in the report, however the program ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.flashinfer_site import install, lay, path
from support.wrapping import program, wrap

REFUSAL = "kv_indptr[3]15 - kv_indptr[2]32 should be non-negative"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A flashinfer with one wrapper, whose planner and kernel are torch operators."""
    return lay(tmp_path)


@pytest.mark.parametrize(("how", "code"), [("crash", 1), ("caught", -9), ("child", 1)])
def test_a_planner_that_refuses(tmp_path: Path, site: Path, how: str, code: int) -> None:
    install(site, "0.6.11.post1")
    wrapped = wrap(tmp_path, *program("planning.py", how), env=path(site))
    assert wrapped.code == code, wrapped.err
    (failure,) = wrapped.run.merged().failures
    assert (failure.kind, failure.said) == ("planner", REFUSAL)
    plan = failure.plan
    assert plan is not None
    assert (plan.indptr, plan.broken, plan.failed) == ((0, 16, 32, 15, 20), (3,), True)
    assert plan.buffer in ("kv_indptr", "wrappers[4]._paged_kv_indptr_buf")
    assert [(writer.entry, writer.culprit.name, writer.replay) for writer in plan.writers] == [
        (2, "aten.copy_.default", 1),
        (3, "aten.copy_.default", 1),
    ]
    assert len({writer.graph for writer in plan.writers}) == 2
    assert plan.found.startswith("SG102 in-graph mutation: aten.copy_.default")
    assert f"the program's planner refused: RuntimeError: {REFUSAL}" in wrapped.err
    assert "  broken     [3] = 15 after [2] = 32\n" in wrapped.err
    assert not wrapped.run.merged().faults


def test_redacted_no_value_is_in_the_folder(tmp_path: Path, site: Path) -> None:
    install(site, "0.6.11.post1")
    wrapped = wrap(tmp_path, *program("planning.py", "crash"), env=path(site), options=("--redact",))
    (failure,) = wrapped.run.merged().failures
    assert failure.plan is not None
    assert (failure.said, failure.plan.indptr, failure.plan.broken) == ("", (), (3,))
    assert "should be non-negative" not in "".join(file.read_text() for file in (tmp_path / "run").glob("*.jsonl"))


def test_the_report_as_json_has_it(tmp_path: Path, site: Path) -> None:
    install(site, "0.4.1")
    document = tmp_path / "report.json"
    wrap(tmp_path, *program("planning.py", "crash"), env=path(site), options=("--json", str(document)))
    (failure,) = json.loads(document.read_text())["failures"]
    assert failure["plan"]["broken"] == [3]


@pytest.mark.parametrize("version", ["0.3.1", "0.8.0"])
def test_a_version_that_nobody_knows_is_said_once(tmp_path: Path, site: Path, version: str) -> None:
    install(site, version)
    wrapped = wrap(tmp_path, *program("planning.py", "crash"), env=path(site))
    said = (
        f"the flashinfer adapter is off: it knows versions 0.4 to 0.7, and this is {version}; generic tracking goes on"
    )
    assert wrapped.err.count(said) == 1
    (failure,) = wrapped.run.merged().failures
    assert (failure.kind, failure.replay, failure.plan) == ("planner", 1, None), "what generic tracking knows"
    assert [finding.code for finding in wrapped.run.merged().findings][:1] == ["SG102"], "generic tracking goes on"


def test_what_a_version_lacks_is_said_once(tmp_path: Path, site: Path) -> None:
    install(site, "0.6.11.post1")
    wrapped = wrap(tmp_path, *program("planning.py", "crash"), env=path(site))
    lacking = "the flashinfer adapter does without BatchMLAPagedAttentionWrapper, which 0.6.11.post1 has not"
    assert wrapped.err.count(lacking) == 1
