"""Settings that must stand before the first import of Triton, which tests a run has, what a test needs to run here."""

from __future__ import annotations

import gc
import os
from contextlib import suppress

import pytest
import torch

pytest_plugins = ["pytester"]  # allowed in no other conftest
PUSH, DEEP = "push", "deep"

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the tests marked slow, and no others")


def pytest_configure(config: pytest.Config) -> None:
    with suppress(ImportError):  # where only tests marked gpu are run
        from hypothesis import HealthCheck, settings

        always = {"deadline": None, "suppress_health_check": list(HealthCheck)}
        settings.register_profile(PUSH, max_examples=20, **always)
        settings.register_profile(DEEP, max_examples=300, **always)
        settings.load_profile(DEEP if config.getoption("--slow") else PUSH)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """GPU tests run where there is a GPU; the others where kernels are interpreted. Without ``--slow`` the tests marked
    ``slow`` are left out, with it all others but those with random input, which have far more of it then. What is
    named runs, and so does every test of a GPU where there is one."""
    here = torch.cuda.is_available()
    slow = config.getoption("--slow")
    named = any("::" in word for word in config.args)
    left: list[pytest.Item] = []
    for item in items:
        gpu = item.get_closest_marker("gpu") is not None
        if gpu and not here:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
        marked = item.get_closest_marker("slow") is not None
        wanted = marked or item.get_closest_marker("fuzz") is not None if slow else not marked
        if not (wanted or named or (gpu and here)):
            left.append(item)
    if left:
        config.hook.pytest_deselected(items=left)
        dropped = set(map(id, left))
        items[:] = [item for item in items if id(item) not in dropped]


def pytest_collection_finish(session: pytest.Session) -> None:
    """What was imported for good is no garbage: a full collection, of which tests ask for thousands, takes a tenth."""
    gc.collect()
    gc.freeze()
