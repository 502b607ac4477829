"""A real sglang server on a CPU with made-up weights, and somebody who sends it requests until SIGTERM.

    python tools/soak_wrap.py --minutes 20 -- python tools/sglang_cpu.py

It knows nothing of shadowgraph; `tools/soak_wrap.py` runs it under `wrap`. sglang must be importable, and shadowgraph
installed for its adapter to be found.
"""

from __future__ import annotations

import contextlib
import json
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from live_engine import SMALL, VOCABULARY, write_model

FLAGS = (
    "--load-format dummy --skip-tokenizer-init --device cpu --attention-backend torch_native --dtype bfloat16 "
    "--grammar-backend none --sampling-backend pytorch --disable-cuda-graph --disable-piecewise-cuda-graph "
    "--disable-overlap-schedule --max-total-tokens 1024 --max-running-requests 4 --host 127.0.0.1 --log-level warning"
)
MOST = 4  # requests at once
_PAUSE = 0.1  # seconds between batches


def free_port() -> int:
    """One that is free together with the one 10,000 above it, which sglang takes too."""
    for port in range(11_000, 32_000):
        with socket.socket() as one, socket.socket() as other, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", port))
            other.bind(("127.0.0.1", port + 10_000))
            return port
    raise SystemExit("no free port")


def generate(port: int, prompts: list[list[int]], tokens: int) -> Any:
    """Greedy tokens for a batch of prompts."""
    sampling = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/generate",
        json.dumps({"input_ids": prompts, "sampling_params": sampling}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def drive(port: int, server: subprocess.Popen[bytes], asked: threading.Event) -> None:
    """Batches of mixed sizes and lengths, one after another, until the server ends or somebody asked for the end."""
    rng, answered = random.Random(7), 0
    while server.poll() is None and not asked.wait(_PAUSE):
        size, tokens = rng.randint(1, MOST), rng.randint(1, 24)
        prompts = [[rng.randrange(3, VOCABULARY) for _ in range(rng.randint(1, 60))] for _ in range(size)]
        try:
            generate(port, prompts, tokens)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(1)
            continue
        answered += size
        if answered == size:
            print("serving", flush=True)
    print(f"{answered} requests answered", flush=True)


def main() -> int:
    """Start the server, send requests, end with it."""
    with tempfile.TemporaryDirectory() as folder:
        model, port = write_model(Path(folder), SMALL, 256), free_port()
        words = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(model), "--port", str(port)]
        with subprocess.Popen([*words, *FLAGS.split()]) as server:
            asked = threading.Event()
            signal.signal(signal.SIGTERM, lambda *_: asked.set())
            drive(port, server, asked)
            server.terminate()
            return server.wait()


if __name__ == "__main__":
    sys.exit(main())
