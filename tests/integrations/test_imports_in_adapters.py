"""Adapters whose modules are in the middle of their import."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import pytest

from shadowgraph import session
from shadowgraph.graphs.triton import host as triton_host
from shadowgraph.integrations.sglang import adapter as sglang_adapter
from shadowgraph.integrations.sglang import plugin as sglang_plugin
from shadowgraph.integrations.sglang.versions import LAYOUTS


def under_way(name: str) -> ModuleType:
    """A module as it is in ``sys.modules`` while it runs."""
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    module.__spec__._initializing = True  # type: ignore[attr-defined]
    return module


# -- sglang ------------------------------------------------------------------------------------------------------------


def test_hooks_wait_for_a_module_whose_import_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = LAYOUTS[0]
    capture, prepare = (name.rsplit(".", 2)[0] for name in (layout.capture, layout.backends))
    assert capture != prepare
    monkeypatch.setitem(sys.modules, capture, under_way(capture))
    monkeypatch.setitem(sys.modules, prepare, ModuleType(prepare))
    waited: dict[str, Callable[[], None]] = {}
    registered: list[str] = []
    monkeypatch.setitem(sys.modules, "_shadowgraph_hook", SimpleNamespace(when_imported=waited.__setitem__))  # type: ignore[arg-type]
    monkeypatch.setattr(sglang_adapter, "layout_of", lambda _: layout)
    monkeypatch.setattr(sglang_adapter, "register", lambda module, group: registered.append(module))
    monkeypatch.setattr(sglang_adapter, "_attached", None)
    assert sglang_adapter.attach() is not None
    assert capture in waited
    assert capture not in registered
    assert prepare in registered
    assert prepare not in waited


def test_the_plugin_while_our_own_package_is_being_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHADOWGRAPH_WRAP", raising=False)
    monkeypatch.setitem(sys.modules, "shadowgraph.session", under_way("shadowgraph.session"))
    monkeypatch.setattr(sglang_adapter, "attach", lambda: pytest.fail("nobody watches"))
    sglang_plugin.plugin()


# -- Triton ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def triton(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Triton as if its import were under way, with nothing hooked."""
    module = pytest.importorskip("triton")
    assert session.current() is None
    assert not triton_host._patches.installed
    monkeypatch.setattr(triton_host, "_waits", False)
    monkeypatch.setattr(triton_host, "_pending", 0)
    monkeypatch.setattr(module.__spec__, "_initializing", True)
    yield module
    while triton_host._patches.installed:
        triton_host.uninstall()


def test_under_a_wrap_installs_wait_for_tritons_end(triton: ModuleType) -> None:
    triton_host.wait_for_triton()
    triton_host.install()
    triton_host.install()
    assert not triton_host._patches.installed
    triton_host.triton_imported()  # from inside the import: it counts as under way until this returns
    assert triton_host._patches.installed
    triton_host.triton_imported()
    for _ in range(2):
        assert triton_host._patches.installed
        triton_host.uninstall()
    assert not triton_host._patches.installed


def test_an_install_in_the_thread_that_imports_triton_is_made_up_for(triton: ModuleType) -> None:
    triton_host.install()
    assert not triton_host._patches.installed
    assert triton.__spec__ is not None
    triton.__spec__._initializing = False  # type: ignore[attr-defined]
    triton_host.install()
    triton_host.uninstall()
    assert triton_host._patches.installed, "the first one's"
    triton_host.uninstall()
    assert not triton_host._patches.installed


def test_an_install_that_was_undone_before_is_not_made_up_for(triton: ModuleType) -> None:
    triton_host.wait_for_triton()
    thread = threading.Thread(target=triton_host.install)
    thread.start()
    thread.join()
    triton_host.uninstall()
    triton_host.triton_imported()
    assert not triton_host._patches.installed
