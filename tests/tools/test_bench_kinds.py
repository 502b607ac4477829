"""What each kind of finding costs an observed step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_live_sglang import load_tool

from shadowgraph.checks.kinds import titles

tool = load_tool("bench_kinds")


def test_each_kind_has_its_part_of_a_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tool.main(["--steps", "5", "--json", str(tmp_path / "kinds.json")]) == 0, "nothing is found"
    measured = json.loads((tmp_path / "kinds.json").read_text())
    assert json.loads(capsys.readouterr().out) == measured
    assert list(measured["kinds_us"]) == list(titles())
    assert measured["kinds_us"]["SG103"] > 0
    assert measured["observed_us"] > measured["plain_us"] > 0
    assert sum(measured["kinds_us"].values()) < measured["observed_us"] * 2
