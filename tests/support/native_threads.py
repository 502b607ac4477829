"""`native_threads.cpp`, compiled once for a run of the tests."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from shadowgraph.graphs.observer import building
from shadowgraph.graphs.observer.building import Build

SOURCE = Path(__file__).with_suffix(".cpp")


def native_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library's path. Workers of one run share it."""
    base = tmp_path_factory.getbasetemp()
    made = (base.parent if base.name.startswith("popen-") else base) / "native_threads.so"
    if not made.exists():
        own = made.with_name(f"{made.name}.{os.getpid()}")
        build = Build(building.compiler(), b"", made)
        subprocess.run([*build.command(SOURCE), "-o", str(own)], check=True)
        own.replace(made)
    return made
