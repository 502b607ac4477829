"""`tools/live_runs.py`: how servers find their adapters, what is kept of a run, and for which other runs it counts."""

from __future__ import annotations

import argparse
import json
import os
import sys
from importlib.metadata import Distribution, DistributionFinder, MetadataPathFinder
from pathlib import Path
from typing import Any

import live_runs
import pytest

RUN = live_runs.ROOT / "notebooks" / "data" / "eagle_h200"
SERVER = live_runs.Server("live_toy", "live_toy_engine.py", "live_toy", (Path(".cache", "toy"),))
ABOUT = {"card": "a card", "packages": {"torch": "2.11.0"}, "source": "0123", "date": "2026-11-30"}


def test_a_run_that_is_cut_short_says_how_far_it_came() -> None:
    lines = ['PART {"requests": 2}', "noise", 'PART {"requests": 3}', 'PART {"reque']
    assert live_runs.latest(lines, "PART ") == {"requests": 3}
    assert live_runs.latest(lines, "LIVE ") is None


def test_servers_find_their_adapters_without_an_installation(tmp_path: Path) -> None:
    live_runs.write_entry_points(tmp_path)
    context = DistributionFinder.Context(name="shadowgraph", path=[str(tmp_path)])
    (found,) = MetadataPathFinder().find_distributions(context)
    assert isinstance(found, Distribution)
    groups = {entry.group: entry.value for entry in found.entry_points}
    assert groups["sglang.srt.plugins"] == "shadowgraph.integrations.sglang.plugin:plugin"
    assert groups["vllm.general_plugins"] == "shadowgraph.integrations.vllm.plugin:plugin"


def test_what_is_kept_of_a_real_run() -> None:
    kept = live_runs.summary(RUN)
    (found,) = kept["findings"]
    assert (found["code"], found["buffer"]["name"]) == ("SG101", "draft.cuda_graph_kv_indices")
    assert found["bytes"]["last"] - found["bytes"]["first"] + 1 == 5952
    assert found["culprit"]["line"] == "srt/layers/attention/flashinfer_backend.py:1561"
    assert (kept["notes"], kept["faults"], kept["told"]) == ([], {}, [])
    assert "lines" not in found, "no buffer was let go"


def test_a_folder_that_is_no_run_is_said(tmp_path: Path) -> None:
    assert "shadowgraph: error" in live_runs.summary(tmp_path)["report"]


def test_restored_caches_are_no_newer_than_their_notes(tmp_path: Path) -> None:
    home, folder = tmp_path / "home", tmp_path / "home" / ".cache"
    folder.mkdir(parents=True)
    (folder / "made.so").write_text("x")
    os.utime(folder / "made.so", ns=(1_700_000_000_999_999_999,) * 2)
    live_runs.save_caches(tmp_path / "caches.txz", home, [folder, home / "missing"])
    live_runs.restore_caches(tmp_path / "caches.txz", tmp_path / "other")
    assert (tmp_path / "other/.cache/made.so").stat().st_mtime_ns == 1_700_000_000 * 10**9


def test_lines_of_a_finding_are_those_of_its_stacks(monkeypatch: pytest.MonkeyPatch) -> None:
    def stack(file: str, line: int) -> list[dict[str, Any]]:
        return [{"file": file, "line": line, "function": "f"}, {"file": "/else.py", "line": 1, "function": "g"}]

    here = str(live_runs.ROOT / "tools" / "live_toy_engine.py")
    monkeypatch.setattr(sys, "path", ["", "/some/site", "/some", *sys.path])
    detail = {
        "freed_by": stack(here, 12),
        "replaced_by": {"allocated": stack("/a/b/c/d/e/made.py", 13)},
        "now": {"allocated": stack("/some/site/server/worker/runner.py", 14)},
    }
    found = live_runs.places({"culprit": {"name": "k", "stack": []}, "buffer": {"name": "b"}, "detail": detail})
    assert found["culprit"] == {"name": "k", "status": None, "line": None}
    assert found["lines"] == {
        "freed_by": "tools/live_toy_engine.py:12",
        "replaced_by": "c/d/e/made.py:13",
        "now": "server/worker/runner.py:14",
    }


def evidence(folder: Path, monkeypatch: pytest.MonkeyPatch, *wrap: str, **other: Any) -> live_runs.Evidence:
    monkeypatch.setattr(live_runs, "circumstances", lambda command: {"command": command, **ABOUT, **other})
    monkeypatch.setattr(live_runs, "HOME", folder / "home")
    return live_runs.Evidence(SERVER, argparse.Namespace(plan="full", out=folder, wrap=list(wrap)))


def test_evidence_is_kept_at_once_and_goes_on_where_nothing_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = evidence(tmp_path, monkeypatch, "--every", "2")
    first.keep_step({"step": "plain", "said": None})
    first.keep_step({"step": "wrapped", "said": 1})
    first.keep_step({"step": "plain", "said": 2})
    written = json.loads((tmp_path / "live_toy_full.json").read_text())
    assert written["command"] == "tools/live_toy.py full --out DIR -- --every 2"
    assert written["steps"] == [{"step": "wrapped", "said": 1}, {"step": "plain", "said": 2}]
    later = evidence(tmp_path, monkeypatch, "--every", "2", date="2026-12-01")
    later.keep({"turns": 3})
    written = json.loads((tmp_path / "live_toy_full.json").read_text())
    assert [each["said"] for each in written["steps"]] == [1, 2]
    assert (written["turns"], written["date"]) == (3, "2026-12-01")


@pytest.mark.parametrize("other", [{"source": "4567"}, {"card": "another"}, {"packages": {}}, {}])
def test_evidence_of_other_circumstances_does_not_count(
    other: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    evidence(tmp_path, monkeypatch).keep_step({"step": "plain", "said": 1})
    options = () if other else ("--every", "2")
    assert evidence(tmp_path, monkeypatch, *options, **other).steps == []
    assert f"is of another {next(iter(other), 'command')}; begun anew" in capsys.readouterr().out


def test_caches_are_kept_with_the_first_result_unless_others_compile_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path / "home" / ".cache" / "toy" / "made.so"
    made.parent.mkdir(parents=True)
    made.write_text("x")
    kept = evidence(tmp_path, monkeypatch)
    kept.keep_step({"step": "plain", "said": 1}, caches=False)
    assert not (tmp_path / "caches.txz").exists()
    kept.keep_step({"step": "wrapped", "said": 1})
    live_runs.restore_caches(tmp_path / "caches.txz", tmp_path / "other")
    assert (tmp_path / "other" / ".cache" / "toy" / "made.so").read_text() == "x"
