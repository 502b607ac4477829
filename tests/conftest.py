"""Settings that must stand before the first import of Triton, which tests a run has, what a test needs to run here."""

from __future__ import annotations

import argparse
import gc
import os
import signal
from contextlib import suppress

import pytest

pytest_plugins = ["pytester"]  # allowed in no other conftest
PUSH, DEEP = "push", "deep"
WORKER = "PYTEST_XDIST_WORKER"

if WORKER in os.environ:  # a worker for each core: two threads of each would wait for one another, and spin meanwhile
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch and numpy read it when they are imported


def only_distributes(options: argparse.Namespace) -> bool:
    """Whether this process leaves all tests to workers: it needs neither torch nor hypothesis, which take seconds."""
    distributes = bool(getattr(options, "numprocesses", None)) and not options.collectonly
    return distributes and WORKER not in os.environ


def has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Called as soon as this file is imported, before a conftest of a folder may import Triton."""
    parser.addoption("--slow", action="store_true", help="run the tests marked slow, and no others")
    if not only_distributes(pluginmanager.get_plugin("pytestconfig").known_args_namespace) and not has_gpu():
        os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # of a shell's background job; programs of tests inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if only_distributes(config.option):
        return
    with suppress(ImportError):  # where only tests marked gpu are run
        from hypothesis import HealthCheck, settings

        always = {"deadline": None, "suppress_health_check": list(HealthCheck)}
        settings.register_profile(PUSH, max_examples=20, **always)
        settings.register_profile(DEEP, max_examples=120, **always)
        settings.load_profile(DEEP if config.getoption("--slow") else PUSH)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """GPU tests run where there is a GPU; the others where kernels are interpreted. Without ``--slow`` the tests marked
    ``slow`` are left out, with it all others but those with random input, which have far more of it then. What is
    named runs, and so does every test of a GPU where there is one."""
    here = has_gpu()
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
