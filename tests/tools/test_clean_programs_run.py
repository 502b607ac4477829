"""A slice of the clean programs on the host: none is accused, broken or different; in each a planted write is found.

The whole runs by `tools/clean_programs.py`; its counts are under `tools/evidence`.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from corpus import driver
from corpus.summing import Runs, messages, notes

pytestmark = pytest.mark.slow

SOURCES = "patterns,fuzz,optim,modules,ops"
SAMPLE = 40  # one in so many of each source but the patterns, which run in full
CUDA_ONLY = 5 + 3 + 8 + 1  # streams, graphed callables, compiled functions, pinned memory


def ran(folder: Path, *options: str, sources: str = SOURCES) -> list[dict[str, Any]]:
    """The slice, by the command that runs the whole; all of it, in two processes."""
    command = [sys.executable, str(driver.TOOL), "run", "--out", str(folder), "--source", sources]
    command += ["--sample", str(SAMPLE), "--workers", "2", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    name = "planted" if "--planted" in options else "clean"
    results = [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]
    asked = json.loads((folder / f"{name}.about.json").read_text())["asked"]
    assert sorted(result["id"] for result in results) == sorted(asked), "each ran once"
    return results


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The run, made once for all workers: it takes every core."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    kept = shared / "clean-programs.json"
    with (shared / "clean-programs.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            kept.write_text(json.dumps(ran(tmp_path_factory.mktemp("clean"))))
    found: list[dict[str, Any]] = json.loads(kept.read_text())
    return found


# Backward formulas inside a host graph still meet the mode that records it.
LEFT = {"ops/prod/1/bwd"}


def test_what_was_skipped_and_why(clean: list[dict[str, Any]]) -> None:
    """The other tests are worth what ran."""
    skipped = {result["id"]: result["reason"] for result in clean if result["status"] == "skipped"}
    patterns = [reason for pid, reason in skipped.items() if pid.startswith("patterns/")]
    assert patterns == ["cannot be made: for CUDA only"] * CUDA_ONLY
    of = Counter(result["id"].split("/")[0] for result in clean if result["status"] != "skipped")
    assert of["patterns"] > 170
    assert of["ops"] > 50
    assert min(of["fuzz"], of["optim"], of["modules"]) > 1, of


def test_none_is_accused_broken_or_different(clean: list[dict[str, Any]]) -> None:
    told = {result["id"]: messages(result) for result in clean if result["status"] not in ("clean", "skipped")}
    known = {result["id"] for result in clean if result["status"] == "a dispatch mode changes bits"}
    assert known <= LEFT
    assert {pid: said for pid, said in told.items() if pid not in known} == {}


def test_results_were_compared_and_graphs_watched(clean: list[dict[str, Any]]) -> None:
    passed = [result for result in clean if result["status"] == "clean"]
    assert sum(result["compared"] for result in passed) > 0.98 * len(passed)
    assert sum(result["nodes"] > 0 for result in passed) > 0.95 * len(passed)
    answers = [answer for result in passed for answer in result["variants"].values()]
    assert len(answers) == 3 * len(passed)
    assert all(answer["checked"] == answer["began"] >= answer["replays"] > 0 for answer in answers)


def test_notes_are_rare(clean: list[dict[str, Any]]) -> None:
    assert {result["id"]: notes(result) for result in clean if notes(result)} == {}


def test_a_planted_write_is_found_in_each(tmp_path: Path) -> None:
    results = ran(tmp_path, "--planted", sources="patterns,fuzz")
    assert [result["id"] for result in results if result["status"] not in ("planted", "skipped")] == []
    for variant, counted in Runs(tmp_path).summary()["planted"]["variants"].items():
        planted = counted["ran"] - counted.get("not planted", 0)
        assert planted > 150, "what was not planted cannot be found"
        assert counted["not_found"].keys() - {"not planted: no buffer that owns its memory"} == set(), variant
        assert counted["found"] == planted
        assert counted["kernel_named"] == planted
        assert counted["bytes_exact"] >= 0.98 * planted
