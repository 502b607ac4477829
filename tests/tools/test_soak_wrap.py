"""The soak script: what it calls growth, and a short soak of its own program."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "soak_wrap.py"
MIB = 1 << 20


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("soak_wrap", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("sizes", "grew"),
    [
        ([100 * MIB] * 30, False),
        ([at * 40 * MIB for at in range(10)] + [400 * MIB] * 20, False),  # a warm-up
        ([(300 + at) * MIB for at in range(30)], True),
        ([at * MIB // 100 for at in range(30)], False),  # less than anybody would notice
    ],
)
def test_what_growth_is(sizes: list[int], grew: bool, tool: ModuleType) -> None:
    assert tool.judged(sizes)["grew"] is grew


@pytest.mark.slow
def test_a_short_soak(tool: ModuleType) -> None:
    found = tool.soak([sys.executable, str(TOOL), "--serve"], 13, replays=True)
    assert found["exit_code"] == 0
    assert {"supervisor", "run folder without dumps"} < set(found["sizes"])
    assert float(found["last_metrics"]["replays_total"]) > 100
    assert float(found["last_metrics"]["findings"]) == 1
    assert float(found["last_metrics"]["faults_total"]) == 0
