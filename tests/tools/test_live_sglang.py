"""`tools/live_sglang.py`: its steps, how sglang finds the adapter, and what it keeps of a run. No test needs a GPU."""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.metadata import Distribution, MetadataPathFinder
from pathlib import Path
from types import ModuleType

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"
RUN = TOOLS.parent / "notebooks" / "data" / "eagle_h200"


def load_tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{name}_under_test", TOOLS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(TOOLS))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(TOOLS))
    return module


live, engine = load_tool("live_sglang"), load_tool("live_engine")


@pytest.mark.parametrize("plan", ["eagle", "triton", "many", "small", "large", "two"])
def test_each_step_is_a_command_that_the_program_takes(plan: str, tmp_path: Path) -> None:
    steps = live.steps_of(plan)
    assert any(step.wrapped for step in steps)
    assert len({step.name for step in steps}) == len(steps)
    for step in steps:
        command = live.command_of(step, tmp_path, tmp_path / "run", ["--every", "2"])
        assert ("wrap" in command) is step.wrapped
        assert command[-len(step.words) :] == list(step.words)


def test_engines_that_take_turns_differ_in_nothing_else() -> None:
    for plan in live.TURNS:
        plain, wrapped = live.steps_of(plan)
        assert (plain.wrapped, wrapped.wrapped) == (False, True)
        assert plain.words == wrapped.words
        assert "--told" in plain.words
        words = plain.words
        tokens = int(words[words.index("--tokens") + 1])
        context = int(words[words.index("--context") + 1]) if "--context" in words else engine.CONTEXT
        assert max(map(len, engine.prompts_of(2, 100, 3))) + tokens <= context


def test_a_run_that_is_cut_short_says_how_far_it_came() -> None:
    lines = ['PART {"requests": 2}', "noise", 'PART {"requests": 3}', 'PART {"reque']
    assert live.latest(lines, "PART ") == {"requests": 3}
    assert live.latest(lines, "LIVE ") is None


def test_sglang_finds_the_adapter_without_an_installation(tmp_path: Path) -> None:
    live.write_entry_points(tmp_path)
    context = importlib.metadata.DistributionFinder.Context(name="shadowgraph", path=[str(tmp_path)])
    (found,) = MetadataPathFinder().find_distributions(context)
    assert isinstance(found, Distribution)
    assert [e.value for e in found.entry_points if e.group == "sglang.srt.plugins"] == [
        "shadowgraph.integrations.sglang.plugin:plugin"
    ]


def test_what_is_kept_of_a_real_run() -> None:
    kept = live.summary(RUN)
    (found,) = kept["findings"]
    assert (found["code"], found["buffer"]["name"]) == ("SG101", "draft.cuda_graph_kv_indices")
    assert found["bytes"]["last"] - found["bytes"]["first"] + 1 == 5952
    assert found["culprit"]["line"] == "srt/layers/attention/flashinfer_backend.py:1561"
    assert kept["notes"] == []


def test_a_folder_that_is_no_run_is_said(tmp_path: Path) -> None:
    assert "shadowgraph: error" in live.summary(tmp_path)["report"]


def test_restored_caches_are_no_newer_than_their_notes(tmp_path: Path) -> None:
    home, folder = tmp_path / "home", tmp_path / "home" / ".cache"
    folder.mkdir(parents=True)
    (folder / "made.so").write_text("x")
    os.utime(folder / "made.so", ns=(1_700_000_000_999_999_999,) * 2)
    live.save_caches(tmp_path / "caches.txz", home, [folder, home / "missing"])
    live.restore_caches(tmp_path / "caches.txz", tmp_path / "other")
    assert (tmp_path / "other/.cache/made.so").stat().st_mtime_ns == 1_700_000_000 * 10**9


def test_batches_are_full_first_and_lose_no_prompt() -> None:
    prompts = engine.prompts_of(200, 100, 3)
    batches = engine.batches_of(prompts, 2, 4)
    assert len(batches[0]) == 2
    assert {len(batch) for batch in batches} == {1, 2}
    assert [prompt for batch in batches for prompt in batch] == prompts
    assert [len(prompt) for prompt in prompts[:2]] == [100, 100]
