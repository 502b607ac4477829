"""Which versions of vLLM the adapter takes on, how it attaches, and the lines that say why it is off."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from threading import Thread
from types import ModuleType
from typing import Any

import pytest
import vllm_runner as fakes

import shadowgraph as sg
from shadowgraph.integrations import late_attach, notices
from shadowgraph.integrations.vllm import adapter as vllm_adapter
from shadowgraph.integrations.vllm import plugin as vllm_plugin
from shadowgraph.integrations.vllm.adapter import attach
from shadowgraph.integrations.vllm.versions import GROUP, NAME, PARTS, parsed, why_off

ROOT = Path(__file__).resolve().parents[2]
OURS = EntryPoint(NAME, "shadowgraph.integrations.vllm.plugin:plugin", GROUP)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The notices; vLLM is of a known version, and none of its modules is imported."""
    lines: list[str] = []
    monkeypatch.setattr(notices, "_tell", lines.append)
    monkeypatch.setattr(notices, "_told", set())
    monkeypatch.setattr(vllm_adapter, "installed", lambda: "0.21.0")
    monkeypatch.setattr(vllm_adapter, "_off", False)
    monkeypatch.setattr(vllm_adapter, "_attached", None)
    yield lines
    if vllm_adapter._attached is not None:
        vllm_adapter._attached.take_down()


def provide(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The modules of the runner; returns its class."""
    for name, module in fakes.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    return sys.modules[fakes.RUNNER].GPUModelRunner  # type: ignore[attr-defined]


def test_the_package_has_the_entry_point() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"][GROUP] == {NAME: OURS.value}
    assert OURS.load() is vllm_plugin.plugin


@pytest.mark.parametrize("version", ["0.21.0", "0.21.0.post1", "0.22.0", "0.22.1+cu130"])
def test_known_versions(version: str) -> None:
    assert why_off(version) is None


@pytest.mark.parametrize("version", ["0.20.2", "0.22.2", "0.33.0", "1.0.0", "0.21.0rc1", "0.21.1.dev7+gabc", "", None])
def test_other_versions(version: str | None, said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_adapter, "installed", lambda: version)
    cls = provide(monkeypatch)
    before = dict(vars(cls))
    assert attach() is None
    assert attach() is None
    assert said == [
        f"the vllm adapter is off: vllm {version} is none of the versions that it knows, 0.21.0 to 0.22.1; "
        "generic tracking goes on"
    ]
    assert dict(vars(cls)) == before


@pytest.fixture
def free(said: list[str], monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each notice, whether another thread could take the adapter's lock meanwhile."""
    seen: list[bool] = []

    def look() -> None:
        seen.append(vllm_adapter._attaching.acquire(blocking=False))
        if seen[-1]:
            vllm_adapter._attaching.release()

    def tell(text: str) -> None:
        other = Thread(target=look)
        other.start()
        other.join()

    monkeypatch.setattr(notices, "_tell", tell)
    return seen


def test_an_unknown_version_is_read_once_and_told_without_the_lock(
    free: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = iter(["0.20.0"])
    monkeypatch.setattr(vllm_adapter, "installed", lambda: next(versions))
    assert attach() is None
    assert attach() is None
    assert free == [True]


def test_a_missing_method_is_told_without_the_lock(free: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    del provide(monkeypatch)._model_forward
    assert attach() is not None
    assert free == [True]


def test_a_release_is_three_numbers() -> None:
    assert parsed("0.21.0.post2") == (0, 21, 0)
    assert parsed("nightly") is None


def test_it_attaches_once_and_puts_everything_back(said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    cls = provide(monkeypatch)
    before = dict(vars(cls))
    methods = {
        each.name
        for part in PARTS
        if part.module == fakes.RUNNER
        for each in part.methods
        if each.owner == cls.__name__
    }
    attachment = attach()
    assert attachment is not None
    patched = {name for name, value in vars(cls).items() if before[name] is not value}
    assert patched == methods
    once = dict(vars(cls))
    for _ in range(2):
        assert attach() is attachment
    assert dict(vars(cls)) == once
    attachment.take_down()
    assert dict(vars(cls)) == before
    assert said == []


def test_a_class_that_lacks_a_method_is_left_alone(said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    cls = provide(monkeypatch)
    del cls._model_forward
    before = dict(vars(cls))
    attach()
    assert dict(vars(cls)) == before
    assert said == [
        "the vllm adapter does without the V1 model runner: vllm 0.21.0 has no GPUModelRunner._model_forward; "
        "generic tracking goes on"
    ]


def test_a_method_with_other_parameters_is_left_alone(said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    cls = provide(monkeypatch)
    monkeypatch.setattr(cls, "_prepare_inputs", lambda self, batch, counts: None)
    attach()
    (line,) = said
    assert "no GPUModelRunner._prepare_inputs with the parameters self, scheduler_output, num_scheduled_tokens" in line
    assert vars(cls)["execute_model"] is not None
    assert not hasattr(vars(cls)["execute_model"], "__wrapped__")


def test_modules_are_patched_as_they_are_imported(said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    waiting: dict[str, Any] = {}
    hook = ModuleType("_shadowgraph_hook")
    hook.when_imported = waiting.__setitem__  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "_shadowgraph_hook", hook)
    attachment = attach()
    assert attachment is not None
    assert list(waiting) == list(dict.fromkeys(part.module for part in PARTS))
    assert not attachment.settled
    cls = provide(monkeypatch)
    waiting[fakes.RUNNER]()
    assert hasattr(vars(cls)["execute_model"], "__wrapped__")
    waiting[fakes.RUNNER]()
    assert not hasattr(vars(cls)["execute_model"].__wrapped__, "__wrapped__")
    assert said == []


def test_a_debugger_of_the_programs_own_looks_at_each_capture(said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_adapter, "_attached", None)
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    late_attach.register()
    with sg.debug(backend="host"):
        cls = provide(monkeypatch)
        assert not hasattr(vars(cls)["execute_model"], "__wrapped__")
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            pass
        assert hasattr(vars(cls)["execute_model"], "__wrapped__")


# -- in a process of its own -----------------------------------------------------------------------------------------


def run(program: str, *path: str, **more: str) -> str:
    keep = {name: text for name, text in os.environ.items() if not name.startswith(("SHADOWGRAPH_", "VLLM_"))}
    env = {**keep, "PYTHONPATH": os.pathsep.join([*path, str(ROOT)]), "TRITON_INTERPRET": "1", **more}
    words = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_without_a_run_the_plugin_is_inert() -> None:
    said = run("""
        import sys
        from shadowgraph.integrations.vllm.plugin import plugin
        plugin()
        plugin()
        print("torch" in sys.modules, "shadowgraph.integrations.vllm.adapter" in sys.modules)
    """)
    assert said == "False False\n"


@pytest.fixture
def package(tmp_path: Path) -> str:
    """A folder with a package ``vllm`` of version 0.21.0, whose runner is that of the tests."""
    site = tmp_path / "site"
    for name in (fakes.RUNNER, fakes.WRAPPER):
        file = site / f"{name.replace('.', '/')}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        for folder in file.relative_to(site).parents:
            if str(folder) != ".":
                (site / folder / "__init__.py").touch()
        names = (each.owner for part in PARTS if part.module == name for each in part.methods)
        classes = dict.fromkeys(names) if name == fakes.RUNNER else ["CUDAGraphWrapper"]
        file.write_text(f"from vllm_runner import {', '.join(classes)}\n")
    (site / "vllm-0.21.0.dist-info").mkdir()
    (site / "vllm-0.21.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.21.0\n")
    return str(site)


SERVER = """
import sys
import torch
import vllm_runner as fakes
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

runner = GPUModelRunner(fakes.config(), torch.device("cpu"))
runner.profile_cudagraph_memory()
runner.initialize_kv_cache(fakes.cache_config())
runner.capture_model()
runner.step([5, 6, 7, 8])
tables = runner.input_batch.block_table
commit = tables.commit_block_table


def corrupt(num_reqs):
    commit(num_reqs)
    tables[0].block_table.gpu[0, 5] = 99


if sys.argv[1:] == ["buggy"]:
    tables.commit_block_table = corrupt
for _ in range(4):
    runner.step([9, 10, 11])
print(len(runner.results))
"""


@pytest.mark.parametrize("buggy", [False, True])
def test_under_wrap_it_attaches_by_itself(package: str, tmp_path: Path, buggy: bool) -> None:
    program = tmp_path / "server.py"
    program.write_text(SERVER)
    report, path = tmp_path / "report.json", (package, str(ROOT / "tests" / "integrations"), str(ROOT))
    words = [sys.executable, "-m", "shadowgraph", "wrap", "--backend", "host", "--json", str(report)]
    words += ["--run-dir", str(tmp_path / "run"), "--", sys.executable, str(program), *(["buggy"] if buggy else [])]
    keep = {name: text for name, text in os.environ.items() if not name.startswith(("SHADOWGRAPH_", "VLLM_"))}
    env = {**keep, "PYTHONPATH": os.pathsep.join(path), "TRITON_INTERPRET": "1"}
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "5\n"), done.stderr[-4000:]
    findings = json.loads(report.read_text())["findings"]
    if not buggy:
        assert findings == [], done.stderr[-4000:]
        return
    (finding,) = findings
    assert (finding["code"], finding["buffer"]["name"]) == (
        "SG109",
        "runner.input_batch.block_table.block_tables[0].block_table.gpu",
    )
    assert (finding["phase"], finding["replay"], finding["batch"]["size"]) == ("prepare", 2, 3)
    assert finding["culprit"]["file"] == str(program)
