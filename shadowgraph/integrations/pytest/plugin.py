"""The pytest entry point, loaded in every run: options, markers, the fixture. Other modules load on demand, but for the
table of options."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shadowgraph.common.options import add_flags

if TYPE_CHECKING:
    from shadowgraph.integrations.pytest.handle import WatchedTest
    from shadowgraph.integrations.pytest.hooks import Hooks
    from shadowgraph.integrations.pytest.options import Asked

_asked: pytest.StashKey[Asked] = pytest.StashKey()
_hooks: pytest.StashKey[Hooks] = pytest.StashKey()
_MARKERS = (
    "shadowgraph(expect=None, allow=(), **settings): watch this test; expect: codes of findings that it must have, "
    "allow: codes that do not fail it, settings: fields of shadowgraph.Settings",
    "no_shadowgraph: do not watch this test",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("shadowgraph", "memory of CUDA graphs")
    group.addoption("--shadowgraph", action="store_true", help="watch every test; one that breaks memory fails")
    add_flags(group.addoption, "pytest", prefix="shadowgraph_")
    group.addoption(
        "--shadowgraph-option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a field of shadowgraph.Settings; may be given several times",
    )
    group.addoption("--shadowgraph-dump", metavar="DIR", help="write a dump for each failing test into this directory")
    parser.addini("shadowgraph", "watch every test, as --shadowgraph does", type="bool", default=False)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Select Triton's interpreter on a host, before the first conftest can import Triton."""
    known = early_config.known_args_namespace
    asked = known.shadowgraph or early_config.getini("shadowgraph")
    if known.shadowgraph_backend != "host" and (not asked or known.shadowgraph_backend == "cuda"):
        return
    from shadowgraph.integrations.pytest.backend import interpret_triton, is_host

    if known.shadowgraph_backend == "host" or is_host():
        interpret_triton()


def pytest_configure(config: pytest.Config) -> None:
    for line in _MARKERS:
        config.addinivalue_line("markers", line)
    if config.getoption("help", False) or config.getoption("version", 0):
        return
    if _is_asked(config):
        from shadowgraph.integrations.pytest.options import asked_for

        config.stash[_asked] = asked = asked_for(config)
        if asked.everywhere and not config.getoption("collectonly") and not _spreads(config):
            hooks_of(config)
    if _is_asked(config) or _spreads(config):
        _summarise(config)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if _hooks in config.stash or config.getoption("collectonly"):
        return
    if any(item.get_closest_marker("shadowgraph") or "shadowgraph" in _fixtures(item) for item in items):
        hooks_of(config)


@pytest.fixture(name="shadowgraph")
def _shadowgraph(request: pytest.FixtureRequest) -> WatchedTest:
    """The debugger of this test: guard(), name(), protect(), findings and the rest."""
    return hooks_of(request.config).handle(request.node)


def hooks_of(config: pytest.Config) -> Hooks:
    """The hooks that watch tests; registered once."""
    if _hooks not in config.stash:
        import torch  # noqa: F401  # first: under `shadowgraph wrap`, importing torch imports what these modules import

        from shadowgraph.integrations.pytest.hooks import Hooks
        from shadowgraph.integrations.pytest.options import asked_for

        asked = config.stash[_asked] if _asked in config.stash else asked_for(config)
        config.stash[_hooks] = hooks = Hooks(config, asked)
        config.pluginmanager.register(hooks, "shadowgraph-hooks")
        _summarise(config)
    return config.stash[_hooks]


def _summarise(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput") and not config.pluginmanager.hasplugin("shadowgraph-summary"):
        from shadowgraph.integrations.pytest.summary import Summary

        config.pluginmanager.register(Summary(config), "shadowgraph-summary")


def _is_asked(config: pytest.Config) -> bool:
    """Whether any option of the plugin was given."""
    words = ("shadowgraph", "shadowgraph_backend", "shadowgraph_option", "shadowgraph_dump")
    return any(map(config.getoption, words)) or bool(config.getini("shadowgraph"))


def _spreads(config: pytest.Config) -> bool:
    """Whether this process only distributes tests to workers (pytest-xdist)."""
    return config.getoption("dist", "no") != "no" and not hasattr(config, "workerinput")


def _fixtures(item: pytest.Item) -> list[str]:
    return getattr(item, "fixturenames", [])
