"""Which versions of sglang the adapter takes on, and the line that says why it is off."""

from __future__ import annotations

import itertools
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from shadowgraph.common.errors import UsageError
from shadowgraph.common.internal_errors import internal_errors
from shadowgraph.demos.sglang.host import SGLANG_VERSION
from shadowgraph.integrations import notices
from shadowgraph.integrations.sglang import adapter as sglang_adapter
from shadowgraph.integrations.sglang import plugin as sglang_plugin
from shadowgraph.integrations.sglang import versions as sglang_versions
from shadowgraph.integrations.sglang.versions import GROUP, LAYOUTS, NAME, layout_of, parsed, why_off
from shadowgraph.wrap.inject.attach import expect_adapters

ROOT = Path(__file__).resolve().parents[2]
OURS = EntryPoint(NAME, "shadowgraph.integrations.sglang.plugin:plugin", GROUP)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[EntryPoint]:
    """Entry points of the group; the installed version is the one that all was tested on."""
    entries = [OURS]
    monkeypatch.setattr(sglang_versions, "installed", lambda: SGLANG_VERSION)
    monkeypatch.setattr(sglang_versions, "entry_points", lambda group: entries if group == GROUP else [])
    return entries


def test_the_package_has_the_entry_point() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"][GROUP] == {NAME: OURS.value}
    assert OURS.load() is sglang_plugin.plugin


def test_an_error_of_the_adapter_does_not_reach_sglang(monkeypatch: pytest.MonkeyPatch) -> None:
    def attach() -> None:
        raise UsageError("no adapter")

    monkeypatch.setenv("SHADOWGRAPH_WRAP", "a run")
    monkeypatch.setattr(sglang_adapter, "attach", attach)
    before = internal_errors.total
    sglang_plugin.plugin()
    assert internal_errors.total == before + 1
    internal_errors.clear()


def test_ranges_are_in_order_and_leave_no_gap() -> None:
    ends = [end for layout in LAYOUTS for end in (layout.first, layout.last)]
    assert ends == sorted(ends)
    assert all(b.first == (*a.last[:2], a.last[2] + 1) for a, b in itertools.pairwise(LAYOUTS))


@pytest.mark.parametrize(
    ("version", "layout"),
    [
        *(("0.5.11", 0), (SGLANG_VERSION, 0), ("0.5.13", 0), ("0.5.14", 1), ("0.5.23.post2", 1), ("0.5.17+cu130", 1)),
        *(
            (text, None)
            for text in ("0.5.10", "0.5.24", "1.0.0", "0.5.13rc1", "0.5.13.dev7+gabc", "0.0.0.dev0", "", None)
        ),
    ],
)
def test_versions_by_range(version: str | None, layout: int | None) -> None:
    assert layout_of(version) is (None if layout is None else LAYOUTS[layout])


def test_a_release_is_three_numbers() -> None:
    assert parsed("0.5.12.post1") == (0, 5, 12)
    assert parsed("nightly") is None


def test_nothing_is_said_where_the_adapter_will_start(found: list[EntryPoint]) -> None:
    assert why_off({}) is None
    assert why_off({"SGLANG_PLUGINS": f" other , {NAME} "}) is None
    assert why_off({"SGLANG_PLUGINS": " , "}) is None, "sglang takes that for no restriction"


def test_a_whitelist_that_leaves_it_out(found: list[EntryPoint]) -> None:
    assert why_off({"SGLANG_PLUGINS": "other,shadow"}) == (
        "the sglang adapter is off: SGLANG_PLUGINS does not name shadowgraph; generic tracking goes on"
    )


def test_a_package_that_is_not_installed(found: list[EntryPoint]) -> None:
    found[:] = [EntryPoint("other", "other:plugin", GROUP)]
    assert "shadowgraph is not installed as a package here" in str(why_off({}))


@pytest.mark.parametrize(("version", "said"), [("0.5.10", "older than"), ("0.5.24", "none of"), ("0.6.0a1", "none of")])
def test_an_unknown_version(found: list[EntryPoint], monkeypatch: pytest.MonkeyPatch, version: str, said: str) -> None:
    monkeypatch.setattr(sglang_versions, "installed", lambda: version)
    assert why_off({}) == (
        f"the sglang adapter is off: sglang {version} is {said} the versions that it knows, 0.5.11 to 0.5.23; "
        "generic tracking goes on"
    )
    monkeypatch.setattr(sglang_adapter, "installed", lambda: version)
    assert sglang_adapter.attach() is None


def test_it_is_said_once_and_by_the_process_that_was_not_spawned(
    found: list[EntryPoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGLANG_PLUGINS", "other")
    monkeypatch.setattr(notices, "_tell", None)
    monkeypatch.setattr(notices, "_place", None)
    lines: list[str] = []
    ranks: list[int] = []
    waiting: dict[str, object] = {}
    expect_adapters(lambda name, callback: waiting.setdefault(name, callback), lines.append, ranks.append, first=False)
    in_every_process = ["flashinfer", "torch_memory_saver", "vllm"]  # their classes are patched
    assert list(waiting) == in_every_process
    expect_adapters(lambda name, callback: waiting.setdefault(name, callback), lines.append, ranks.append, first=True)
    assert (list(waiting), lines) == ([*in_every_process, "sglang"], [])
    callback = waiting["sglang"]
    assert callable(callback)
    callback()
    assert len(lines) == 1
    assert "SGLANG_PLUGINS" in lines[0]
    notices.place(3)
    assert ranks == [3]
