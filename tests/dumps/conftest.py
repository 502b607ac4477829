"""Dumps that several tests spoil."""

from __future__ import annotations

import pytest
import torch
from dump_makers import Server, dump_of_a_server, guarded

import shadowgraph as sg


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A small dump with a finding."""
    return dump_of_a_server(tmp_path_factory.mktemp("whole") / "run.safetensors").read_bytes()


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A dump of between 1 and 4 MiB, most of it contents of memory."""
    with sg.debug() as debugger:
        server = Server(debugger)
        kept = [guarded(debugger, 60 << 10, dtype=torch.uint8) for _ in range(30)]
        server.step(past=1)
        path = debugger.dump(tmp_path_factory.mktemp("large") / "run.safetensors")
        del kept
    return path.read_bytes()
