"""A real sglang server on a CPU, wrapped: it starts, answers, stops cleanly, and its scheduler is watched.

The package is installed for it, as far as sglang's plugin loader can see, by a ``.dist-info`` on its path.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.wrapping import ROOT, environment, wrap_words

from shadowgraph.common.version import VERSION
from shadowgraph.demos.sglang.host import SGLANG_VERSION, sglang_version
from shadowgraph.dumps.reader import read_dump
from shadowgraph.render.text.run_text import RunReport
from shadowgraph.wrap.folder.process_record import ProcessRecord
from shadowgraph.wrap.folder.reader import read_run

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
MODEL = "$MODEL"  # becomes the folder of the model
START = (sys.executable, "-m", "sglang.launch_server", "--model-path", MODEL)
PATIENCE = 240  # seconds; about 30 on an idle machine


def free_port() -> int:
    """A port that is free, low enough for the one that sglang takes 10,000 above it, and below those that the system
    hands out to whoever asks for any."""
    for port in range(11_000 + os.getpid() % 20_000, 32_000):
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


ENTRY = "shadowgraph.integrations.sglang.plugin:plugin"


def installed(folder: Path) -> Path:
    """A directory for the path on which this package is installed with its entry point, as `pip` would leave it."""
    facts = folder / "site" / f"shadowgraph-{VERSION}.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: shadowgraph\nVersion: {VERSION}\n")
    (facts / "entry_points.txt").write_text(f"[sglang.srt.plugins]\nshadowgraph = {ENTRY}\n")
    return facts.parent


@contextlib.contextmanager
def served(
    folder: Path, *before: str, start: Sequence[str] = START, **more: str
) -> Iterator[tuple[subprocess.Popen[str], int, Path]]:
    """A server that is ready, with its port and its log; `before` is what runs it, `start` what starts it."""
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(json.dumps(CONFIG))
    port, log = free_port(), folder / "log"
    command = [str(folder / "model") if word == MODEL else word for word in start]
    words = [*before, *command, *FLAGS.split(), "--port", str(port)]
    path = [str(installed(folder)), str(Path(__file__).parent / "standins"), str(ROOT)]
    env = environment(PYTHONPATH=os.pathsep.join(path), **more)
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
            yield server, port, log
        finally:
            if server.poll() is None:
                os.killpg(server.pid, signal.SIGKILL)


def scheduler_of(folder: Path) -> ProcessRecord:
    """The process of a run that is sglang's scheduler; it must be watched."""
    run = read_run(folder)
    watched = [process for process in run.processes if process.backend == "host"]
    (scheduler,) = [process for process in watched if "run_scheduler_process" in process.title]
    return scheduler


def memory_said(log: Path) -> set[str]:
    """What sglang says of the memory that it takes for tokens."""
    return set(
        re.findall(r"max_total_num_tokens=\d+|#tokens: \d+|K size: [\d.]+ GB|V size: [\d.]+ GB", log.read_text())
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_wrapped_server_serves_and_stops(number: signal.Signals, tmp_path: Path) -> None:
    with served(tmp_path, *wrap_words(tmp_path / "run")) as (server, _, log):
        server.send_signal(number)
        code = server.wait(90)
    said = log.read_text()
    run = read_run(tmp_path / "run")
    assert "is not watched" not in said
    assert not re.search("Failed to (load plugin|execute general plugin|apply hooks)", said)
    # sglang ends by killing its own process group's members, itself included; what we return is that.
    assert code == (-signal.Signals[run.manifest["signal"]] if "signal" in run.manifest else run.manifest["exit_code"])
    assert scheduler_of(tmp_path / "run").born == "multiprocessing"
    assert not [event for process in run.processes for event in process.events if "sglang" in event]
    assert not run.merged().findings
    assert not run.merged().faults
    assert all(process.ended != "running" for process in run.processes)


def readme_line(verb: str) -> list[str]:
    """The words of the README's line with a verb, with the Python that runs the tests."""
    lines = re.findall(rf"^shadowgraph {verb} .*$", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE)
    words = shlex.split(lines[0], comments=True)
    return [sys.executable, "-m", *(sys.executable if word == "python" else word for word in words)]


def test_the_readmes_lines_wrap_a_server_and_report_of_it_while_it_serves(tmp_path: Path) -> None:
    words = readme_line("wrap")
    run, status = (words.index(option) + 1 for option in ("--run-dir", "--status"))
    words[run], words[status] = str(tmp_path / words[run]), "0"  # its port may be taken here
    cut = words.index("--") + 1
    with served(tmp_path, *words[:cut], start=words[cut:]) as (server, port, log):
        assert re.search(r"http://127\.0\.0\.1:\d+/\w+", log.read_text())
        report = readme_line("report run")
        done = subprocess.run(report, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert "multiprocessing of" in done.stdout, "its processes"
        assert len(generate(port)["output_ids"]) == 4, "it serves on"
        server.send_signal(signal.SIGTERM)
        server.wait(90)
    scheduler_of(tmp_path / "run")


def test_the_adapter_names_buffers_and_changes_no_memory_of_sglangs(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "wrapped").mkdir()
    with served(tmp_path / "plain") as (server, _, log):
        before = memory_said(log)
    folder = tmp_path / "wrapped" / "run"
    with served(tmp_path / "wrapped", *wrap_words(folder)) as (server, port, log):
        pid = scheduler_of(folder).pid
        os.kill(pid, signal.SIGUSR2)
        deadline = time.monotonic() + PATIENCE
        while not (dumps := list(folder.glob(f"dump-{pid}-*-signal.dump"))) and time.monotonic() < deadline:
            assert server.poll() is None
            time.sleep(0.2)
        assert len(generate(port)["output_ids"]) == 4, "it serves on"
        assert memory_said(log) == before != set()
        server.send_signal(signal.SIGTERM)
        server.wait(90)
    with read_dump(dumps[0]) as dump:
        names = {owner.path for owner in dump.manifest.owners}
        sized = {owner.path: owner.view.shape for owner in dump.manifest.owners}
    assert "target.req_to_token_pool.req_to_token" in names
    assert sized["target.token_to_kv_pool.k_buffer[1]"][1:] == (2, 64)
    assert not read_run(folder).merged().faults


def test_a_whitelist_without_us_is_one_line_of_the_report(tmp_path: Path) -> None:
    with served(tmp_path, *wrap_words(tmp_path / "run"), SGLANG_PLUGINS="other") as (server, _, _):
        server.send_signal(signal.SIGTERM)
        server.wait(90)
    run = read_run(tmp_path / "run")
    said = [event for process in run.processes for event in process.events if "sglang" in event]
    assert said == ["the sglang adapter is off: SGLANG_PLUGINS does not name shadowgraph; generic tracking goes on"]
    assert str(RunReport(run)).count(said[0]) == 1
