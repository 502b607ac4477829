"""flashinfer imported while a debugger watches: the very first capture is heard of already."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import planning_wrappers as wrappers
import pytest
import torch
from support import warm

import shadowgraph as sg
from shadowgraph.checks.rebound.check import ReboundInputs
from shadowgraph.common.internal_errors import internal_errors
from shadowgraph.graphs.events import listeners
from shadowgraph.integrations import late_attach, notices
from shadowgraph.integrations.flashinfer import adapter as flashinfer_adapter
from shadowgraph.integrations.flashinfer.hooks import Hooks
from shadowgraph.integrations.flashinfer.versions import Wrapper, known
from shadowgraph.model.graphs import Graph

RELEASE = "0.6.12"
SUBMODULES = "from flashinfer import decode, prefill, mla\n"
START = "import sys\nimport shadowgraph as sg\nassert 'flashinfer.decode' not in sys.modules\nsg.install()\n"
_OURS = ("BatchDecodeWithPagedKVCacheWrapper", "BatchMLAPagedAttentionWrapper")


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What the adapter says of this test's flashinfer, which is gone with the test."""
    lines: list[str] = []
    before = internal_errors.total
    assert "flashinfer" not in sys.modules
    monkeypatch.setattr(flashinfer_adapter, "installed", lambda: RELEASE)
    monkeypatch.setattr(flashinfer_adapter, "_attached", None)
    monkeypatch.setattr(notices, "_tell", lines.append)
    monkeypatch.setattr(notices, "_told", set())
    yield lines
    sg.uninstall()
    _kept.clear()
    attachment = flashinfer_adapter.attached()
    if attachment is not None:
        attachment.take_down()
    for name in [name for name in sys.modules if name.partition(".")[0] == "flashinfer"]:
        del sys.modules[name]
    assert late_attach._waiting not in listeners
    assert internal_errors.total == before, internal_errors.counts


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[Graph]:
    """Captures that hooks are told of, each as often as they are."""
    graphs: list[Graph] = []
    original = Hooks.capture_began

    def capture_began(hooks: Hooks, graph: Graph) -> None:
        graphs.append(graph)
        original(hooks, graph)

    monkeypatch.setattr(Hooks, "capture_began", capture_began)
    return graphs


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A flashinfer on the path with every wrapper class; what it does when it is imported is for the test to write."""
    folder = tmp_path / "flashinfer"
    folder.mkdir()
    for wrapper in known(RELEASE):
        with (folder / f"{wrapper.module.rpartition('.')[2]}.py").open("a") as file:
            file.write(_class(wrapper))
    monkeypatch.syspath_prepend(tmp_path)
    return folder


def _class(wrapper: Wrapper) -> str:
    if wrapper.name not in _OURS:
        return f"class {wrapper.name}: pass\n"
    base = "MlaWrapper" if "MLA" in wrapper.name else "DecodeWrapper"
    parts = "plan, begin_forward = base.plan, base.plan" if base == "DecodeWrapper" else "plan = base.plan"
    return f"from planning_wrappers import {base} as base\nclass {wrapper.name}(base):\n    {parts}\n"


_kept: list[sg.HostGraph] = []


def captured(kind: type[wrappers.DecodeWrapper]) -> tuple[wrappers.DecodeWrapper, Graph]:
    """A wrapper, and the graph that captured it, which lives as long as the test."""
    indptr, indices, last = (torch.zeros(n, dtype=torch.int32) for n in (4, 64, 3))
    wrapper = kind(torch.zeros(256, dtype=torch.uint8), indptr, indices, last)
    wrapper.plan(torch.tensor([0, 4, 9, 15], dtype=torch.int32), indices, last)
    graph = sg.HostGraph()
    with sg.host_graph(graph):
        wrapper.run()
    _kept.append(graph)
    return wrapper, graph.model


def bound(wrapper: wrappers.DecodeWrapper) -> list[Graph]:
    debugger = sg.current()
    assert debugger is not None
    return list(debugger.monitor.checks[ReboundInputs].graphs_of(wrapper))


def decode() -> type[wrappers.DecodeWrapper]:
    return import_module("flashinfer.decode").BatchDecodeWithPagedKVCacheWrapper  # type: ignore[no-any-return]


def test_the_first_capture_after_a_late_import_is_bound(package: Path, said: list[str], heard: list[Graph]) -> None:
    (package / "__init__.py").write_text(SUBMODULES)
    sg.install()
    wrapper, graph = captured(decode())
    assert bound(wrapper) == heard == [graph]
    assert late_attach._waiting not in listeners
    assert said == []


def test_a_debugger_that_starts_in_the_middle_of_the_import(package: Path, said: list[str], heard: list[Graph]) -> None:
    (package / "__init__.py").write_text(START + SUBMODULES)
    import_module("flashinfer")
    assert flashinfer_adapter.attached() is None
    first, graph = captured(decode())
    second, another = captured(decode())
    assert (bound(first), bound(second)) == ([graph], [another])
    assert heard == [graph, another]
    assert late_attach._waiting not in listeners
    assert said == []


def test_the_import_hook_of_a_wrap_attaches_before_the_first_capture(
    package: Path, said: list[str], heard: list[Graph]
) -> None:
    """As `arrivals` is called back: in the importing thread, while the package still counts as being imported."""
    hook = "from shadowgraph.wrap.inject import attach\nattach._attach_flashinfer()\n"
    (package / "__init__.py").write_text(START + SUBMODULES + hook)
    import_module("flashinfer")
    attachment = flashinfer_adapter.attached()
    assert attachment is not None
    assert attachment.settled
    assert attachment.hooks in listeners
    assert late_attach._waiting in listeners, "nobody has looked yet"
    wrapper, graph = captured(decode())
    assert bound(wrapper) == [graph]
    assert heard == [graph], "told once"
    assert late_attach._waiting not in listeners
    assert said == []


def test_attached_too_early_it_looks_again(package: Path, said: list[str], heard: list[Graph]) -> None:
    early = "import shadowgraph.integrations.flashinfer.adapter as adapter\nadapter.attach()\n"
    parts = "from flashinfer import decode\n" + early + "from flashinfer import prefill, mla\n"
    (package / "__init__.py").write_text(START + early + parts)
    import_module("flashinfer")
    attachment = flashinfer_adapter.attached()
    assert attachment is not None
    assert not attachment.settled
    mla = import_module("flashinfer.mla").BatchMLAPagedAttentionWrapper
    before = vars(mla)["plan"]
    wrapper, graph = captured(decode())
    assert attachment.settled
    assert (bound(wrapper), heard) == ([graph], [graph])
    assert vars(mla)["plan"] is not before
    assert not hasattr(decode().plan.__wrapped__, "__wrapped__"), "patched once"  # type: ignore[attr-defined]
    attachment.take_down()
    assert vars(mla)["plan"] is before
    assert said == []


def test_a_class_that_is_imported_for_the_first_capture(package: Path, said: list[str], heard: list[Graph]) -> None:
    (package / "__init__.py").write_text("")
    sg.install()
    import_module("flashinfer")
    flashinfer_adapter.attach()
    assert said == [], "they exist and may come"
    wrapper, graph = captured(decode())
    assert bound(wrapper) == heard == [graph]
    assert late_attach._waiting in listeners, "of other modules there may be more"


def test_what_is_not_there_is_said_once_the_import_is_complete(package: Path, said: list[str]) -> None:
    early = "import shadowgraph.integrations.flashinfer.adapter as adapter\nadapter.attach()\n"
    (package / "mla.py").unlink()
    (package / "prefill.py").write_text(early + "class BatchPrefillWithPagedKVCacheWrapper: pass\n")
    (package / "__init__.py").write_text(START + "from flashinfer import decode, prefill\n")
    import_module("flashinfer")
    lacking = "the flashinfer adapter does without {}, which 0.6.12 has not"
    assert said == [lacking.format("BatchMLAPagedAttentionWrapper")], "there is no such module"
    captured(decode())
    captured(decode())
    assert said[1:] == [lacking.format("BatchPrefillWithRaggedKVCacheWrapper")]
    assert late_attach._waiting not in listeners


def test_after_an_import_that_fails_the_next_one_is_waited_for(
    package: Path, said: list[str], heard: list[Graph]
) -> None:
    (package / "__init__.py").write_text(START + "from flashinfer import decode\nraise OSError('broken here')\n")
    with pytest.raises(OSError, match="broken here"):
        import_module("flashinfer")
    captured(wrappers.DecodeWrapper)
    assert flashinfer_adapter.attached() is None
    assert heard == []
    (package / "__init__.py").write_text(SUBMODULES + "# a longer file\n")
    import_module("flashinfer")  # its submodule is still there from the first time
    wrapper, graph = captured(decode())
    assert bound(wrapper) == heard == [graph]
    assert said == []


def test_a_flashinfer_that_nobody_knows_is_looked_at_once(
    said: list[str], monkeypatch: pytest.MonkeyPatch, heard: list[Graph]
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(flashinfer_adapter, "installed", lambda: asked.append(1) or "0.3.1")
    sg.install()
    monkeypatch.setitem(sys.modules, "flashinfer", ModuleType("flashinfer"))
    captured(wrappers.DecodeWrapper)
    captured(wrappers.DecodeWrapper)
    assert len(asked) == 1
    assert len(said) == 1
    assert late_attach._waiting not in listeners
    assert heard == []


def test_a_debugger_started_through_the_session_module_waits_for_it_too() -> None:
    """As the magics of a notebook and the demo start theirs."""
    code = (
        "from shadowgraph.session import debug\nfrom shadowgraph.graphs.events import listeners\n"
        "with debug(backend='host'):\n    print(sorted(type(each).__name__ for each in listeners))"
    )
    done = warm.run([sys.executable, "-c", code], os.environ)
    assert done.stdout == "['Monitor', '_LateAttach']\n", done.stderr
