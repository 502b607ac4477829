"""The compiled observer, built once for a run of the tests; each test gets an observer that is on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.compiled_observer import cache_with_the_library

from shadowgraph.graphs.observer import building
from shadowgraph.graphs.observer.library import Library, loaded
from shadowgraph.graphs.observer.observer import OperatorObserver


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cache_with_the_library(tmp_path_factory)


@pytest.fixture
def cached(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache that has the library, in this test's environment."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.delenv("CXX", raising=False)
    return cache


@pytest.fixture
def library(cached: object) -> Library:
    return loaded(building.library())


@pytest.fixture
def observer(cached: Path) -> Iterator[OperatorObserver]:
    made = OperatorObserver()
    made.start()
    assert made.wait(60), made.sentence()
    yield made
    made.stop()
    assert made.failures == 0


@pytest.fixture
def switching() -> Iterator[None]:
    """Threads that take turns as often as Python lets them."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)
