"""Dumps that the tests of several verbs look at."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands.verb_makers import worker_dump
from support.node_makers import dump_of_nodes


@pytest.fixture(scope="session")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dump of a host run with an SG101, an SG102 and an SG104."""
    return worker_dump(tmp_path_factory.mktemp("worker") / "run.dump")


@pytest.fixture(scope="session")
def redacted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same without values."""
    return worker_dump(tmp_path_factory.mktemp("redacted") / "run.dump", redact=True)


@pytest.fixture(scope="session")
def cuda_like(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dump with device nodes as on CUDA, and an SG101."""
    return dump_of_nodes(tmp_path_factory.mktemp("cuda") / "run.dump", past=3)
