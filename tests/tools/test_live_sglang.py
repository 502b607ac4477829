"""`tools/live_sglang.py`: its steps and requests. No test needs a GPU."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import live_runs
import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"


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
        command = live_runs.command_of(live.SERVER, step, tmp_path, tmp_path / "run", ["--every", "2"])
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


def test_batches_are_full_first_and_lose_no_prompt() -> None:
    prompts = engine.prompts_of(200, 100, 3)
    batches = engine.batches_of(prompts, 2, 4)
    assert len(batches[0]) == 2
    assert {len(batch) for batch in batches} == {1, 2}
    assert [prompt for batch in batches for prompt in batch] == prompts
    assert [len(prompt) for prompt in prompts[:2]] == [100, 100]


ENGINE = """
__version__ = "0.5.12"

class Engine:
    def __init__(self, **given):
        print("noise", sorted(given)[:1], flush=True)

    def generate(self, input_ids, sampling_params):
        return [{"output_ids": [len(each)] * sampling_params["max_new_tokens"]} for each in input_ids]

    def get_server_info(self):
        return {"max_total_num_tokens": 7}

    def shutdown(self):
        print("shut down", flush=True)
"""


def test_the_engine_program_says_what_it_served_and_takes_turns(tmp_path: Path) -> None:
    (tmp_path / "sglang.py").write_text(ENGINE)
    words = ["--models", str(tmp_path / "models"), "--requests", "5", "--batch", "2", "--tokens", "3", "--told"]
    done = subprocess.run(
        [sys.executable, str(TOOLS / "live_engine.py"), *words], input="round\nround\n", capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)}, timeout=60, check=True,
    )  # fmt: skip
    said = [line.split(" ", 1) for line in done.stdout.splitlines() if line.split()[0].isupper()]
    assert [word for word, _ in said][-4:] == ["UP", "ROUND", "ROUND", "LIVE"]
    parts = [json.loads(text)["requests"] for word, text in said if word == "PART"]
    assert (parts[0], parts[-1]) == (2, 5)
    one, other = (json.loads(text) for word, text in said if word == "ROUND")
    assert one["outputs"] == other["outputs"]
    assert one["rate"] > 0
    live_line = json.loads(said[-1][1])
    assert (live_line["requests"], live_line["tokens"], live_line["max_total_num_tokens"]) == (5, 15, 7)
    assert live_line["outputs"] == json.loads([text for word, text in said if word == "PART"][-1])["outputs"]
    assert done.stdout.endswith("shut down\n")
