"""The compiled observer of operators, built once for a run of the tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from shadowgraph.graphs.observer import building


def cache_with_the_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for `XDG_CACHE_HOME` that has the library. Workers of one run share it, and one of them builds."""
    base = tmp_path_factory.getbasetemp()
    home = (base.parent if base.name.startswith("popen-") else base) / "cache-of-the-observer"
    home.mkdir(mode=0o700, exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(home))
        patch.delenv("CXX", raising=False)
        building.library()
    return home
