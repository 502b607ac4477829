"""A real sglang server on a CPU, wrapped: it starts, answers, stops cleanly, and its scheduler is watched."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from wrapping import ROOT, environment, wrap_words

from shadowgraph.integrations.sglang_host import SGLANG_VERSION, sglang_version
from shadowgraph.runs.reader import read_run

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.slow,
    pytest.mark.skipif(sglang_version() != SGLANG_VERSION, reason=f"needs sglang {SGLANG_VERSION}"),
]

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 1000,
    "max_position_embeddings": 256,
    "torch_dtype": "bfloat16",
}
FLAGS = (
    "--load-format dummy --skip-tokenizer-init --device cpu --attention-backend torch_native --dtype bfloat16 "
    "--grammar-backend none --sampling-backend pytorch --disable-cuda-graph --disable-piecewise-cuda-graph "
    "--disable-overlap-schedule --max-total-tokens 1024 --max-running-requests 4 --host 127.0.0.1"
)
PATIENCE = 240  # seconds; about 30 on an idle machine


def free_port() -> int:
    """A port that is free, and low enough for the one that sglang takes 10,000 above it."""
    for port in range(21_000 + os.getpid() % 20_000, 55_000):
        with socket.socket() as made, contextlib.suppress(OSError):
            made.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no free port")


def generate(port: int) -> Any:
    body = {"input_ids": [5, 6, 7, 8], "sampling_params": {"max_new_tokens": 4, "temperature": 0, "ignore_eos": True}}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/generate", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def first_answer(port: int, server: subprocess.Popen[str], log: Path) -> Any:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        assert server.poll() is None, log.read_text()[-4000:]
        try:
            return generate(port)
        except (urllib.error.URLError, ConnectionError):
            time.sleep(1)
    raise AssertionError(log.read_text()[-4000:])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_wrapped_server_serves_and_stops(number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(CONFIG))
    port, log = free_port(), tmp_path / "log"
    command = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(tmp_path / "model")]
    words = [*wrap_words(tmp_path / "run"), *command, *FLAGS.split(), "--port", str(port)]
    env = environment(PYTHONPATH=os.pathsep.join([str(Path(__file__).parent / "standins"), str(ROOT)]))
    with (
        log.open("w") as out,
        subprocess.Popen(words, env=env, stdout=out, stderr=out, text=True, start_new_session=True) as server,
    ):
        try:
            answer = first_answer(port, server, log)
            assert len(answer["output_ids"]) == 4
            while "ready to roll" not in log.read_text():  # its own warm-up waits two minutes for a server that is gone
                assert server.poll() is None
                time.sleep(0.2)
            server.send_signal(number)
            code = server.wait(90)
        finally:
            if server.poll() is None:
                os.killpg(server.pid, signal.SIGKILL)
    said = log.read_text()
    run = read_run(tmp_path / "run")
    assert "is not watched" not in said
    # sglang ends by killing its own process group's members, itself included; what we return is that.
    assert code == (-signal.Signals[run.manifest["signal"]] if "signal" in run.manifest else run.manifest["exit_code"])
    watched = [process for process in run.processes if process.backend == "host"]
    scheduler = [process for process in watched if "run_scheduler_process" in process.title]
    assert [process.born for process in scheduler] == ["multiprocessing"], run.processes
    assert not run.merged().findings
    assert not run.merged().faults
    assert all(process.ended != "running" for process in run.processes)
