"""Every acceptance case as a program that knows nothing of a debugger: each bug is found, each fix is silent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.wrapping import program, wrap

from shadowgraph.demos.case import Case
from shadowgraph.demos.runner import ACCEPTANCE

BUGS = [case for case in ACCEPTANCE if not case.control and not case.declared]
DECLARED = [case for case in ACCEPTANCE if case.declared and not case.control]
CONTROLS = [case for case in ACCEPTANCE if case.control]


@pytest.mark.parametrize("case", BUGS, ids=lambda case: case.id)
def test_a_bug_is_found_and_named(case: Case, tmp_path: Path) -> None:
    done = wrap(tmp_path, *program("case.py", case.id, "buggy"))
    assert (done.code, done.out) == (0, f"{case.id} buggy is done\n")
    facts = done.run.merged()
    assert not facts.faults
    for expected in case.expected:
        buffer = expected.buffer.rpartition(".")[2]  # without the name that the case gives to the debugger
        assert replace(expected, buffer=buffer).missing(facts.findings) is None
    for finding in (*facts.findings, *facts.notes):
        assert finding.buffer.names, finding.message


@pytest.mark.parametrize("case", BUGS, ids=lambda case: case.id)
def test_a_fix_is_silent(case: Case, tmp_path: Path) -> None:
    done = wrap(tmp_path, *program("case.py", case.id, "fixed"), options=("--error-exitcode", "9"))
    assert (done.code, done.out) == (0, f"{case.id} fixed is done\n"), done.err
    facts = done.run.merged()
    assert facts.coverage.written
    assert not facts.faults


@pytest.mark.slow
@pytest.mark.parametrize("case", CONTROLS, ids=lambda case: case.id)
def test_a_control_is_silent(case: Case, tmp_path: Path) -> None:
    done = wrap(tmp_path, *program("case.py", case.id, "buggy"), options=("--error-exitcode", "9"))
    assert done.code == 0, done.err
    facts = done.run.merged()
    assert facts.coverage.written
    assert not facts.faults


@pytest.mark.slow
@pytest.mark.parametrize("case", DECLARED, ids=lambda case: case.id)
def test_a_declared_bug_is_found_with_nothing_declared(case: Case, tmp_path: Path) -> None:
    """By what captured code was seen to use, so at a later replay perhaps."""
    for folder in ("buggy", "fixed"):
        (tmp_path / folder).mkdir()
    facts = wrap(tmp_path / "buggy", *program("case.py", case.id, "buggy")).run.merged()
    assert {finding.code for finding in facts.findings} == {expected.code for expected in case.expected}
    fixed = wrap(tmp_path / "fixed", *program("case.py", case.id, "fixed"), options=("--error-exitcode", "9"))
    assert fixed.code == 0, fixed.err
