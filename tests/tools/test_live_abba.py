"""`tools/live_abba.py`: engines that take turns, here small programs that answer as `tools/live_engine.py` does."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from test_live_sglang import load_tool

abba = load_tool("live_abba")
BLOCK = abba.Block

PROGRAM = """
import json, sys
print("noise")
print("UP " + json.dumps({"seconds": 1.5}), flush=True)
for at, _ in enumerate(sys.stdin):
    if at == ENDS_AT:
        sys.exit(7)
    print("a warning", flush=True)
    print("ROUND " + json.dumps({"rate": RATE, "outputs": "OUTPUTS" + str(at)}), flush=True)
print("LIVE " + json.dumps({"rounds": at + 1}), flush=True)
"""


def player(folder: Path, name: str, rate: float = 1.0, outputs: str = "same", ends_at: int = -1) -> abba.Player:
    program = PROGRAM.replace("RATE", str(rate)).replace("OUTPUTS", outputs).replace("ENDS_AT", str(ends_at))
    return abba.Player([sys.executable, "-c", program], dict(os.environ), folder, folder / f"{name}.log", 60)


def test_rounds_are_taken_in_turn_after_some_that_do_not_count(tmp_path: Path) -> None:
    with player(tmp_path, "plain", 4.0) as plain, player(tmp_path, "wrapped", 3.0) as wrapped:
        assert plain.heard("UP ") == wrapped.heard("UP ") == {"seconds": 1.5}
        assert abba.play(plain, wrapped, 3) == ([BLOCK(4.0, 3.0, 3.0, 4.0)] * 3, True)
        said, code, _ = plain.end()
    assert (said, code) == ({"rounds": abba.WARM + 6}, 0)
    assert (tmp_path / "plain.log").read_text().startswith("noise")


def test_other_tokens_are_told(tmp_path: Path) -> None:
    with player(tmp_path, "plain") as plain, player(tmp_path, "wrapped", outputs="other") as wrapped:
        assert abba.play(plain, wrapped, 1)[1] is False


def test_an_engine_that_ends_in_the_middle_is_one_clear_error(tmp_path: Path) -> None:
    with (
        player(tmp_path, "plain") as plain,
        player(tmp_path, "wrapped", ends_at=abba.WARM) as wrapped,
        pytest.raises(abba.EndedError, match="ended before it said ROUND"),
    ):
        abba.play(plain, wrapped, 1)


def test_a_drift_of_the_machine_is_no_cost() -> None:
    """Both are half as fast from the second block on; one comes after the other only."""
    blocks = [BLOCK(100, 90, 90, 100), BLOCK(50, 45, 45, 50), BLOCK(50, 45, 45, 50)]
    found = abba.measured(blocks)
    assert found["ratio"] == 0.9
    assert found["ratio_of_blocks"] == [0.9, 0.9, 0.9]
    assert found["blocks"] == 3
    assert found["plain_tokens_per_s"][1] == 50


def test_plain_rounds_beside_each_other_tell_the_noise() -> None:
    steady = [BLOCK(100, 90, 90, 100)] * 3
    assert abba.measured(steady)["plain_beside_plain"] == [1, 1, 1]
    shaken = [BLOCK(100, 90, 90, 120), BLOCK(100, 90, 90, 120), BLOCK(100, 90, 90, 120)]
    assert abba.measured(shaken)["plain_beside_plain"] == [1.2, 1.2, 1.2]


def test_a_slow_round_weighs_as_long_as_it_lasts() -> None:
    """Tokens over the time of all rounds, not the mean of rates."""
    assert abba.measured([BLOCK(100, 100, 10, 100)] * 2)["ratio"] == round(2 / 11, 3)
