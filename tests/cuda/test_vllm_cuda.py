"""A real vLLM engine on a GPU under `shadowgraph wrap`: served all the same, silent, and named with a line left out."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest
from test_wrap_cuda import Wrapped, wrap

from shadowgraph.integrations.vllm.versions import why_off

pytestmark = pytest.mark.gpu

SERVED = "served 80"  # 8 tokens, and three times 24
TABLE = "runner.input_batch.block_table.block_tables[0].block_table.gpu"
EVERY = ("--watch-eager", "always")


def vllm_version() -> str | None:
    try:
        return version("vllm")
    except PackageNotFoundError:
        return None


if why_off(vllm_version()) is not None:
    pytest.skip("needs a vLLM that the adapter knows on the path", allow_module_level=True)


def told(done: Wrapped) -> list[str]:
    """Lines of the run about the adapter."""
    return [line for process in done.run.processes for line in process.events if "vllm adapter" in line]


def served(done: Wrapped) -> Any:
    assert SERVED in done.out, done.err[-4000:]
    assert told(done) == []
    facts = done.run.merged()
    assert facts.faults == {}
    assert facts.replays.made == facts.replays.checked > 0, "a silence over nothing"
    return facts


@pytest.mark.parametrize("mode", ["full", "decode", "pieces", "measured"])
def test_the_engine_is_served_and_silent(tmp_path: Path, mode: str) -> None:
    done = wrap(tmp_path, "vllm_server.py", mode, options=EVERY)
    facts = served(done)
    assert (done.code, facts.findings) == (0, ()), done.err[-4000:]


@pytest.mark.parametrize(
    ("mode", "attention"), [("full", "TRITON_ATTN"), ("full", "FLASH_ATTN"), ("decode", "FLASH_ATTN")]
)
def test_padded_rows_that_keep_old_blocks(
    tmp_path: Path, mode: str, attention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attention is one operator with a body in Python: of Triton kernels, or of an operator that is given the table."""
    monkeypatch.setenv("ATTENTION", attention)
    done = wrap(tmp_path, "vllm_server.py", mode, "kept", options=EVERY)
    facts = served(done)
    assert done.code == 9, done.err[-4000:]
    found = next(each for each in facts.findings if each.buffer.name == TABLE)
    assert (found.code, found.severity, found.phase) == ("SG103", "error", "prepare")
    assert found.batch is not None
    assert (found.batch.size, found.batch.padded_to) == (3, 4)
    assert len(found.batch.requests) == len(found.batch.lengths) == 3


@pytest.mark.parametrize("mode", ["full", "decode"])
def test_a_block_number_that_is_none(tmp_path: Path, mode: str) -> None:
    done = wrap(tmp_path, "vllm_server.py", mode, "outside", options=EVERY)
    facts = served(done)
    assert done.code == 9, done.err[-4000:]
    found = next(each for each in facts.findings if each.buffer.name == TABLE)
    assert (found.code, found.phase) == ("SG109", "prepare")
    # The kernel that reads the table right after counts as a writer of it.
    assert found.culprit.stack[0].function in ("commit_block_table", "compute_slot_mapping")
    assert found.batch is not None
    assert found.batch.size == 3


def test_a_sleep_that_keeps_the_weights(tmp_path: Path) -> None:
    done = wrap(tmp_path, "vllm_server.py", "full", "level1", options=EVERY)
    facts = served(done)
    assert "same again True" in done.out
    assert (done.code, facts.findings) == (0, ()), done.err[-4000:]


def test_weights_that_a_sleep_dropped(tmp_path: Path) -> None:
    done = wrap(tmp_path, "vllm_server.py", "full", "level2", options=EVERY)
    facts = served(done)
    assert done.code == 9, done.err[-4000:]
    found = [each for each in facts.findings if each.code == "SG116"]
    assert found
    assert {each.detail.how for each in found} == {"vllm sleep(level=2)"}
    assert any(line.function == "sleep" for line in found[0].detail.stack)
