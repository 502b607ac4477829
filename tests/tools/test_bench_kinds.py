"""What each kind of finding costs an observed step."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from test_live_sglang import load_tool

from shadowgraph.checks.base import Check, Context
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


class Busy(Check):
    """Overrides every hook; each takes its time, `parts` as it is iterated."""


def busy(name: str) -> Callable[..., Any]:
    def hook(check: Check, *given: object) -> Any:
        time.sleep(0.001)
        if name == "checkpoint_ends":
            check.recheck(*given)  # type: ignore[arg-type]

    def iterated(check: Check, *given: object) -> Iterator[int]:
        time.sleep(0.001)
        yield 1

    return iterated if name in ("parts", "node_parts") else hook


# Not by type: what a new hook is made of is not known here.
NAMES = [name for name in vars(Check) if not name.startswith("_") and callable(getattr(Check, name))]
for name in NAMES:
    setattr(Busy, name, busy(name))


@pytest.mark.parametrize("name", NAMES)
def test_every_hook_is_timed(name: str) -> None:
    check, spent = Busy(cast(Context, None)), Counter[str]()
    tool.watch({"SG101": [check]}, spent)
    for _ in getattr(check, name)("graph") or ():
        pass
    assert spent["SG101"] >= 1_000_000


def test_what_is_not_called_as_a_hook() -> None:
    others = {name for name in vars(Check) if not name.startswith("_")} - {*NAMES}
    assert others == {"needs_every_write", "wants_known_writes", "expects_launches"}


def test_a_hook_that_calls_another_is_counted_once() -> None:
    check, spent = Busy(cast(Context, None)), Counter[str]()
    tool.watch({"SG101": [check]}, spent)
    began = time.perf_counter_ns()
    check.checkpoint_ends(cast(Any, None))
    assert 2_000_000 <= spent["SG101"] <= time.perf_counter_ns() - began
