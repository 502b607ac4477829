"""`tools/live_vllm.py` and its engine program: run in full over a fake `vllm` on host graphs, whose planted faults are
real ones, and what is held against a run. No test needs a GPU or vLLM."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import live_vllm
import live_vllm_engine as engine
import pytest
from support import vllm_source

HERE = Path(__file__).resolve().parent
TOOLS = HERE.parents[1] / "tools"
# The tool, where torch says that there is a card, with a few short requests in the place of many.
DRIVER = """
import sys
import torch
torch.cuda.is_available = lambda: True
torch.cuda.get_device_name = lambda: "no card"
torch.cuda.get_device_capability = lambda: (9, 0)
sys.path.insert(0, TOOLS)
import live_vllm
small = ("--batch", "4", "--requests", "7", "--tokens", "6")
live_vllm.MIXED = small + MORE
live_vllm.TIMED = (*small, "--told")
live_vllm.PLANTED = (*small, "--request", "5", "--plant")
live_vllm.WARM = 1
sys.exit(live_vllm.main())
"""


class Place:
    """A folder with results, and the fake `vllm` on the path."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.out = folder, folder / "out"
        info = folder / "site" / "vllm-0.21.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.21.0\n")

    def run(self, *words: str, more: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        fakes = (HERE / "fake_vllm", HERE.parent / "integrations", self.folder / "site", HERE.parents[1])
        environment = {**os.environ, "HOME": str(self.folder / "home"), "OMP_NUM_THREADS": "1"}
        environment |= {"PYTHONPATH": os.pathsep.join(map(str, fakes)), "TRITON_INTERPRET": "1"}
        program = DRIVER.replace("TOOLS", repr(str(TOOLS))).replace("MORE", repr(more))
        command = [sys.executable, "-c", program, *words, "--out", str(self.out)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)

    def kept(self, plan: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.out / f"live_vllm_{plan}.json").read_text())
        return found


@pytest.mark.slow
def test_a_plan_that_is_run_in_parts_ends_as_expected(tmp_path: Path) -> None:
    place = Place(tmp_path)
    done = place.run("full", "--steps", "plain,wrapped")
    assert done.returncode == live_vllm.LEFT, done.stderr
    before = place.kept("full")
    assert [each["step"] for each in before["steps"]] == ["plain", "wrapped"]
    done = place.run("full", "--blocks", "2")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    kept = place.kept("full")
    assert kept["steps"][:2] == before["steps"], "what was over is not run again"
    assert (kept["card"], kept["packages"]["vllm"], len(kept["source"])) == ("no card", "0.21.0", 12)
    assert kept["unexpected"] == []
    plain, wrapped, again = kept["steps"]
    assert again["step"] == "plain again"
    assert {each["said"]["outputs"] for each in kept["steps"]} == {plain["said"]["outputs"]}
    assert kept["tokens"] == {"batches": 3, "plain_agrees": 3, "wrapped_differs": []}
    assert len(set(plain["said"]["batches"])) == 3
    assert (wrapped["findings"], wrapped["notes"], wrapped["told"], wrapped["faults"]) == ([], [], [], {})
    assert wrapped["replays"]["checked"] == wrapped["replays"]["made"] > 0
    turns = kept["turns"]
    assert turns["throughput"]["same_tokens"] is True
    assert turns["throughput"]["ratio"] > 0
    assert [each["step"] for each in turns["steps"]] == ["plain", "wrapped"]
    assert place.run("full").returncode == 0
    assert place.kept("full") == kept, "nothing is left to run"


@pytest.mark.slow
def test_planted_faults_are_named_with_buffer_line_and_request(tmp_path: Path) -> None:
    place = Place(tmp_path)
    done = place.run("faults")
    kept = place.kept("faults")
    assert (done.returncode, done.stderr) == (0, ""), kept
    slots, metadata, positions = kept["steps"]
    assert [each["step"] for each in kept["steps"]] == list(live_vllm.FAULTS)
    (found,) = slots["findings"]
    assert (found["code"], found["phase"]) == ("SG101", "prepare")
    assert found["buffer"]["name"] == "runner.input_batch.block_table.block_tables[0].slot_mapping.gpu"
    assert (found["bytes"]["first"], found["bytes"]["count"]) == (found["buffer"]["nbytes"], 8)
    assert found["culprit"]["name"] == "_compute_slot_mapping_kernel"
    assert {each["code"] for step in (metadata, positions) for each in step["findings"]} == {"SG104"}
    for step in kept["steps"]:
        assert "5" in [each.split("-")[0] for each in step["findings"][0]["batch"]["requests"]]
        assert step["said"]["requests"] == 7


def test_a_finding_in_a_run_without_a_fault_is_one_line_and_a_failure(tmp_path: Path) -> None:
    place = Place(tmp_path)
    done = place.run("full", "--steps", "wrapped", more=("--plant", "slots", "--request", "5"))
    assert done.returncode == live_vllm.UNEXPECTED
    (line,) = done.stderr.splitlines()
    assert line.startswith("live_vllm: wrapped: SG101 out-of-bounds write: _compute_slot_mapping_kernel wrote 8 bytes")
    assert [line] == [f"live_vllm: {each}" for each in place.kept("full")["unexpected"]]


def test_a_step_that_is_ended_leaves_what_it_served_and_is_run_again(tmp_path: Path) -> None:
    place = Place(tmp_path)
    done = place.run("full", "--steps", "plain", "--limit", "0.1")
    assert done.returncode == live_vllm.UNEXPECTED
    assert done.stderr == "live_vllm: plain: ended after 0 s, 0 requests served\n"
    assert place.kept("full")["steps"][0]["said"] is None
    assert place.run("full", "--steps", "plain").returncode == live_vllm.LEFT
    (step,) = place.kept("full")["steps"]
    assert step["said"]["requests"] == 7


def test_engines_that_end_in_the_middle_of_their_turns_are_one_line(tmp_path: Path) -> None:
    place = Place(tmp_path)
    done = place.run("full", "--steps", "turns", "--limit", "0.1")
    assert done.returncode == live_vllm.UNEXPECTED
    line = "turns: the engine ended before it said UP; see its log"
    assert done.stderr == f"live_vllm: {line}\n"
    assert place.kept("full")["unexpected"] == [line]


def test_without_a_card_nothing_is_begun(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(TOOLS / "live_vllm.py"), "full", "--out", str(tmp_path / "out")],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == live_vllm.NO_CUDA
    assert done.stderr == "live_vllm: there is no CUDA device here, and a live run needs one\n"
    assert not (tmp_path / "out").exists()


def test_without_vllm_nothing_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr(live_vllm.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "argv", ["live_vllm.py", "full", "--out", str(tmp_path / "out")])
    assert live_vllm.main() == live_vllm.NO_VLLM
    assert capsys.readouterr().err.startswith(
        "live_vllm: vLLM is not installed here; `tools/pack_gpu.py --server vllm`"
    )
    assert not (tmp_path / "out").exists()


# -- what is held against a run ------------------------------------------------------------------------------------


def step(name: str, *batches: str, code: int | str = 0, **more: Any) -> dict[str, Any]:
    return {"step": name, "code": code, "said": {"batches": list(batches)}, **more}


def wrapped(*batches: str, **more: Any) -> dict[str, Any]:
    clean: dict[str, Any] = {
        "findings": [],
        "notes": [],
        "told": [],
        "faults": {},
        "replays": {"made": 9, "checked": 9},
    }
    return step("wrapped", *batches, **clean | more)


def test_tokens_are_compared_where_plain_runs_agree() -> None:
    steps = {"plain": step("plain", "a", "b", "c"), "plain again": step("plain again", "a", "x", "c")}
    assert live_vllm.compared(steps) is None, "the wrapped run is missing"
    for batches, differ in ((("a", "b", "c"), []), (("a", "y", "c"), []), (("y", "b", "c"), [0]), (("a", "b"), [2])):
        found = live_vllm.compared({**steps, "wrapped": wrapped(*batches)})
        assert found == {"batches": 3, "plain_agrees": 2, "wrapped_differs": differ}


def test_a_run_that_was_cut_short_is_compared_as_far_as_it_came() -> None:
    short = {**step("plain again"), "said": None, "until_then": {"requests": 4, "batches": ["a"]}}
    steps = {"plain": step("plain", "a", "b"), "plain again": short, "wrapped": wrapped("a", "z")}
    assert live_vllm.compared(steps) == {"batches": 2, "plain_agrees": 1, "wrapped_differs": []}
    assert live_vllm.failures_of({**short, "code": -9}) == ["ended with code -9, 4 requests served"]


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({}, None),
        ({"findings": [{"message": "SG101 a write"}]}, "SG101 a write"),
        ({"notes": ["SG103 a row"]}, "note: SG103 a row"),
        ({"replays": {"made": 9, "checked": 8}}, "8 of 9 replays were checked"),
        ({"replays": {"made": 0, "checked": 0}}, "no graph was replayed"),
        ({"told": ["the vllm adapter is off"]}, "the vllm adapter is off"),
        ({"faults": {"ledger": 1}}, "a fault of shadowgraph's own: ledger"),
        ({"code": 1}, "ended with code 1"),
    ],
)
def test_what_a_run_without_a_fault_is_held_to(more: dict[str, Any], sentence: str | None) -> None:
    expected = [sentence] if sentence is not None else []
    assert live_vllm.failures_of(wrapped("a", **more)) == expected
    turns = {"turns": {"steps": [wrapped(**more)], "throughput": {}}}
    assert live_vllm.unexpected("full", turns) == [f"wrapped, in turns: {each}" for each in expected]


def test_a_run_without_a_report_is_told() -> None:
    assert live_vllm.failures_of(step("wrapped", "a", report="no run")) == ["has no report: no run"]
    assert live_vllm.failures_of_fault(step("slots", report="no run"), live_vllm.FAULTS["slots"]) == [
        "has no report: no run"
    ]


@pytest.mark.parametrize(
    ("tokens", "sentences"),
    [
        ({"batches": 3, "plain_agrees": 2, "wrapped_differs": []}, []),
        ({"batches": 3, "plain_agrees": 2, "wrapped_differs": [0, 2]}, ["wrapped: other tokens in batches 0, 2"]),
        (
            {"batches": 3, "plain_agrees": 0, "wrapped_differs": []},
            ["the plain runs agree in no batch, so that tokens say nothing"],
        ),
        (None, []),
    ],
)
def test_what_tokens_are_held_to(tokens: dict[str, Any] | None, sentences: list[str]) -> None:
    assert live_vllm.unexpected("full", {"tokens": tokens}) == sentences


PLANTED = {"fault": "slots", "request": 20, "file": "block_table.py", "first": 10, "last": 20}
NAMED = {
    "code": "SG101",
    "message": "SG101 slots",
    "buffer": {"name": "runner.tables[0].slot_mapping.gpu"},
    "culprit": {"line": "v1/worker/block_table.py:12"},
    "batch": {"requests": ["19-aa", "20-bb"]},
}
OTHER_LINE = {"culprit": {"line": "v1/worker/block_table.py:21"}}
OTHER_FILE = {"culprit": {"line": "v1/worker/runner.py:12"}}
ELSEWHERE = {"culprit": {"line": None}, "lines": {"freed_by": "v1/worker/block_table.py:10"}}
NOT_ITS_BATCH = {"batch": {"requests": ["2-20", "200-bb"]}}
NO_LINE = "the finding about slot_mapping.gpu does not name the planted line"
NO_REQUEST = "the finding about slot_mapping.gpu does not name request 20"
NONE = "no finding SG101 about slot_mapping.gpu"


@pytest.mark.parametrize(
    ("findings", "sentences"),
    [
        ([NAMED], []),
        ([{**NAMED, **ELSEWHERE}], []),
        ([{**NAMED, **NOT_ITS_BATCH}, NAMED], []),
        ([], [NONE]),
        ([{**NAMED, "code": "SG103"}], [NONE]),
        ([{**NAMED, **OTHER_LINE}], [NO_LINE]),
        ([{**NAMED, **OTHER_FILE}], [NO_LINE]),
        ([{**NAMED, **NOT_ITS_BATCH}], [NO_REQUEST]),
        ([{**NAMED, "batch": None}], [NO_REQUEST]),
        ([{**NAMED, **OTHER_LINE, **NOT_ITS_BATCH}], [f"{NO_LINE} and request 20"]),
        ([NAMED, {**NAMED, "message": "SG109 else", "buffer": {"name": "runner.positions"}}], ["SG109 else"]),
    ],
)
def test_what_a_planted_fault_is_held_to(findings: list[dict[str, Any]], sentences: list[str]) -> None:
    result = step("slots", planted=PLANTED, findings=findings)
    assert live_vllm.unexpected("faults", {"steps": [result]}) == [f"slots: {each}" for each in sentences]


def test_a_fault_that_was_not_planted_is_told() -> None:
    result = step("slots", code=1, findings=[NAMED])
    assert live_vllm.unexpected("faults", {"steps": [result]}) == [
        "slots: ended with code 1, before the fault was planted"
    ]


def test_a_fault_may_end_the_engine_once_it_is_found() -> None:
    ended = {"said": None, "planted": PLANTED}
    assert live_vllm.is_over({**ended, "findings": [NAMED]})
    assert not live_vllm.is_over({**ended, "findings": []})
    assert not live_vllm.is_over({"said": None, "findings": [NAMED]}), "a run without a fault is to be whole"


def imported(path: Path) -> ModuleType:
    """A module out of a file, in no table of modules."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# -- the engine program --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", [*live_vllm.MODES, "faults"])
def test_steps_are_words_that_the_engine_program_takes(plan: str) -> None:
    steps = [*live_vllm.steps_of(plan), *live_vllm.turns_of(plan)]
    for each in steps:
        options = engine.parser().parse_args(["--models", "m", *each.words])
        assert (options.plant is not None) is (plan == "faults")
        assert max(map(len, engine.prompts_for(options))) + options.tokens <= options.context
        assert options.request < options.requests
    if plan != "faults":
        plain, observed, again = steps[:3]
        assert (plain.wrapped, observed.wrapped, again.wrapped) == (False, True, False)
        assert plain.words == observed.words == again.words
        assert "--told" in steps[3].words
        assert steps[3].words == steps[4].words


def test_requests_are_mixed_and_the_same_each_time() -> None:
    lengths = engine.lengths_of(100, 64, 6)
    assert lengths == engine.lengths_of(100, 64, 6)
    assert len(lengths) == 100
    assert lengths[:2] == [64, 64]
    assert 16 <= min(lengths) < 24 < max(lengths) <= 64
    assert len(set(lengths)) > 20


def test_weights_fit_the_model_and_are_the_same_each_time(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    size = {"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 4}
    size |= {"num_key_value_heads": 2, "head_dim": 2, "vocab_size": 16}
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        engine.write_weights(tmp_path / name, size)
    one, two = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two"))
    assert one == two
    weights = load_file(tmp_path / "one" / "model.safetensors")
    assert len(weights) == 3 + 2 * 9
    assert weights["model.layers.1.self_attn.k_proj.weight"].shape == (4, 8)
    assert weights["model.layers.0.mlp.down_proj.weight"].shape == (8, 12)
    assert 0.5 < weights["lm_head.weight"].float().std() * 8**0.5 < 1.5


def test_a_kernel_that_is_another_one_gets_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "block_table.py"
    path.write_text("_compute_slot_mapping_kernel = None\n")
    for name in ("vllm", "vllm.v1", "vllm.v1.worker"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    vars(sys.modules["vllm.v1.worker"])["block_table"] = imported(path)
    with pytest.raises(SystemExit, match=r"nothing is planted: .*block_table\.py has no single line"):
        engine.late_kernel(tmp_path / "planted")
    assert not (tmp_path / "planted").exists()


NEEDS_SOURCE = pytest.mark.skipif(
    vllm_source.root() is None, reason="needs vLLM's source: VLLM_SOURCE says where it is"
)


@NEEDS_SOURCE
def test_a_copy_of_vllms_own_kernel_writes_one_element_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    import triton

    for name in (
        *("distributed", "logger", "triton_utils", "utils", "utils.math_utils", "v1", "v1.attention", "v1.utils"),
        *("v1.attention.backends", "v1.attention.backends.utils", "v1.worker", "v1.worker.cp_utils"),
    ):
        monkeypatch.setitem(sys.modules, f"vllm.{name}", MagicMock(PAD_SLOT_ID=-1, tl=triton.language, triton=triton))
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    path = vllm_source.root() / "vllm" / "v1" / "worker" / "block_table.py"  # type: ignore[operator]
    original = imported(path)
    sys.modules["vllm.v1.worker"].block_table = original
    monkeypatch.setitem(sys.modules, "planted_block_table", original)  # taken away again
    for kernel, written in ((original._compute_slot_mapping_kernel, 0), (engine.late_kernel(tmp_path), 1)):
        slots = torch.full((2056,), 7, dtype=torch.int64)
        starts, positions = torch.tensor([0, 3], dtype=torch.int32), torch.arange(3)
        kernel[(2,)](
            3, 2048, starts, positions, torch.tensor([[5]], dtype=torch.int32), 1, 16, slots, TOTAL_CP_WORLD_SIZE=1,
            TOTAL_CP_RANK=0, CP_KV_CACHE_INTERLEAVE_SIZE=1, PAD_ID=-1, BLOCK_SIZE=1024,
        )  # fmt: skip
        assert slots[:4].tolist() == [80, 81, 82, -1]
        assert slots[2047:].tolist() == [-1] * (1 + written) + [7] * (8 - written)


@NEEDS_SOURCE
def test_what_the_faults_are_planted_in_stands_in_the_source() -> None:
    tables = "vllm/v1/worker/block_table.py"
    text = vllm_source.text_of(tables)
    assert text.count(engine.PADDED) == 1
    assert "_compute_slot_mapping_kernel[" in ast.unparse(
        vllm_source.method_of(tables, "BlockTable", "compute_slot_mapping")
    )
    runner = "vllm/v1/worker/gpu_model_runner.py"
    update = vllm_source.method_of(runner, "GPUModelRunner", "_update_states")
    assert vllm_source.parameters(update) == ("self", "scheduler_output")
    assert "num_scheduled_tokens" in ast.unparse(update)
    assert "self.scheduler_metadata = torch.zeros(" in vllm_source.text_of("vllm/v1/attention/backends/flash_attn.py")
    assert "self.positions = torch.zeros(" in vllm_source.text_of(runner)
    assert "num_cudagraph_captured" in vllm_source.text_of("vllm/compilation/counter.py")
