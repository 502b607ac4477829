"""SG116 and vLLM's sleep mode: what its allocator drops, what its worker restores, and what the program must write."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import vllm_runner as fakes
import vllm_sleep as sleeping

import shadowgraph as sg
from shadowgraph.checks.contents_lost.check import ContentsLost
from shadowgraph.common.internal_errors import internal_errors
from shadowgraph.integrations import notices
from shadowgraph.integrations.vllm import adapter as vllm_adapter
from shadowgraph.integrations.vllm.hooks import Hooks
from shadowgraph.integrations.vllm.sleep_mode import ranges_dropped
from shadowgraph.model.ranges import ByteRange

ROOT = Path(__file__).resolve().parents[2]
SCHEDULED = "runner.attn_groups[0][0].metadata_builders[0].scheduler_metadata"


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The notices; vLLM's modules are there, and not patched yet."""
    lines: list[str] = []
    for name, module in sleeping.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(sleeping.CuMemAllocator, "instance", cumem().CuMemAllocator())
    monkeypatch.setattr(vllm_adapter, "installed", lambda: "0.21.0")
    monkeypatch.setattr(vllm_adapter, "_off", False)
    monkeypatch.setattr(vllm_adapter, "_attached", None)
    monkeypatch.setattr(notices, "_tell", lines.append)
    monkeypatch.setattr(notices, "_told", set())
    yield lines
    if vllm_adapter._attached is not None:
        vllm_adapter._attached.take_down()


@pytest.fixture
def attachment(said: list[str]) -> Iterator[Any]:
    before = internal_errors.total
    made = vllm_adapter.attach()
    yield made
    assert internal_errors.total == before, internal_errors.counts
    assert said == []


@pytest.fixture(params=["isolate", "faithful"])
def debugger(request: pytest.FixtureRequest, attachment: Any) -> Iterator[sg.Debugger]:
    with sg.debug(backend="host", layout=request.param) as made:
        made.runner.adjust(stale_rows="note")  # as under `wrap`
        yield made


def cumem() -> Any:
    return sys.modules[sleeping.CUMEM]


def allocator() -> Any:
    return sleeping.CuMemAllocator.get_instance()


def served(debugger: sg.Debugger) -> Any:
    """A worker with its model, its KV cache and its graphs."""
    with debugger.guard():
        worker = sys.modules[sleeping.WORKER].Worker(fakes.config(), sys.modules[fakes.RUNNER].GPUModelRunner)
        worker.load_model()
        worker.initialize_from_config(fakes.cache_config())
    worker.compile_or_warm_up_model()
    debugger.name("model", layers_of(worker))
    return worker


def layers_of(worker: Any) -> sleeping.Layers:
    layers: sleeping.Layers = worker.model_runner.model.runnable.layers
    return layers


def decode(worker: Any, lengths: tuple[int, ...] = (4, 5, 5, 6)) -> list[int]:
    """A step of one token for each request; returns what the model makes of it."""
    worker.model_runner.step(lengths)
    made: list[int] = worker.model_runner.sample_tokens(None)
    return made


def serves_anew(worker: Any) -> list[int]:
    """New requests: their prompts fill the KV cache again, then a decode step."""
    worker.model_runner.step((3, 4, 4, 5), (3, 4, 4, 5))  # larger than any graph
    return decode(worker)


def full(worker: Any, size: int = 4) -> Any:
    descriptor = fakes.BatchDescriptor(size, size, True)
    return worker.model_runner.model.concrete_cudagraph_entries[descriptor].cudagraph.model


def clean(debugger: sg.Debugger, worker: Any, replays: int) -> bool:
    assert full(worker).replays == replays
    assert debugger.facts().faults == {}
    return debugger.findings == debugger.notes == ()


def only(debugger: sg.Debugger) -> Any:
    (finding,) = debugger.findings
    return finding


# -- what a sleep drops ----------------------------------------------------------------------------------------------


def test_weights_that_come_back_and_a_cache_that_is_filled_again(debugger: sg.Debugger) -> None:
    worker = served(debugger)
    before = serves_anew(worker)
    for _ in range(2):
        worker.sleep()
        worker.wake_up()
        assert serves_anew(worker) == before
    assert clean(debugger, worker, 3)


def constant(worker: Any) -> torch.Tensor:
    """A builder whose buffer is written once, when the KV cache is made."""
    builder = worker.model_runner.attn_groups[0][0].metadata_builders[0]
    builder.scheduler_metadata.fill_(2)
    builder.build = lambda num_reqs, seq_lens: builder.scheduler_metadata[:num_reqs]
    made: torch.Tensor = builder.scheduler_metadata
    return made


@pytest.mark.parametrize("rewritten", [False, True], ids=["buggy", "fixed"])
def test_a_table_in_the_pool_of_the_kv_cache(debugger: sg.Debugger, rewritten: bool) -> None:
    worker = served(debugger)
    table = constant(worker)
    before = serves_anew(worker)
    if rewritten:
        worker.model_runner.post_kv_cache_wake_up = lambda: table.fill_(2)
    worker.sleep(level=1)
    worker.wake_up()
    assert (serves_anew(worker) == before) is rewritten
    if rewritten:
        assert clean(debugger, worker, 2)
        return
    found = only(debugger)
    assert (found.code, found.severity, found.confidence) == ("SG116", "error", "high")
    assert (found.phase, found.graph, found.replay) == ("replay", full(worker).name, 2)
    assert found.buffer.name == SCHEDULED
    assert (found.bytes.first, found.bytes.last, found.bytes.count) == (0, 15, 16)
    assert found.culprit.name.startswith("aten.add")
    assert (found.detail.how, found.detail.compared) == ("vllm sleep(level=1)", True)
    places = [frame.function for frame in found.detail.stack[:2]]
    assert places == ["sleep", "test_a_table_in_the_pool_of_the_kv_cache"]
    assert found.detail.stack[0].file == sleeping.__file__
    said = f"reads {SCHEDULED} (int32[4]), which lost its contents in vllm sleep(level=1) and was not written since"
    assert said in found.message


def test_a_sleep_that_drops_all(debugger: sg.Debugger) -> None:
    """The worker restores the model's buffers, the program its weights; nobody the tensor that is neither."""
    worker = served(debugger)
    before = serves_anew(worker)
    worker.sleep(level=2)
    worker.wake_up()
    layers_of(worker).load()
    assert serves_anew(worker) != before
    found = only(debugger)
    assert (found.code, found.graph, found.replay) == ("SG116", full(worker).name, 2)
    assert (found.buffer.name, found.detail.how) == ("model.scale", "vllm sleep(level=2)")
    assert found.culprit.name.startswith("aten.mul")


def test_weights_that_are_not_loaded_again(debugger: sg.Debugger) -> None:
    worker = served(debugger)
    serves_anew(worker)
    worker.sleep(2)
    worker.wake_up()
    layers_of(worker).scale.fill_(2)
    serves_anew(worker)
    assert (only(debugger).code, only(debugger).buffer.name) == ("SG116", "model.weight")


def test_its_fixed_twin_writes_all_of_it_again(debugger: sg.Debugger) -> None:
    worker = served(debugger)
    before = serves_anew(worker)
    worker.sleep(level=2)
    worker.wake_up()
    layers_of(worker).load()
    layers_of(worker).scale.fill_(2)
    assert serves_anew(worker) == before
    assert clean(debugger, worker, 2)


def test_two_sleeps_before_a_step(debugger: sg.Debugger) -> None:
    """Each fills the memory with the same zeros: what it held before the first one counts."""
    worker = served(debugger)
    serves_anew(worker)
    for _ in range(2):
        worker.sleep(2)
        worker.wake_up()
        layers_of(worker).load()
    serves_anew(worker)
    assert only(debugger).buffer.name == "model.scale"


@pytest.mark.parametrize("rewritten", [False, True], ids=["buggy", "fixed"])
def test_a_wake_up_in_two_parts(debugger: sg.Debugger, rewritten: bool) -> None:
    """As in reinforcement learning: weights first, which are written, then the KV cache."""
    worker = served(debugger)
    table = constant(worker)
    before = serves_anew(worker)
    worker.sleep(2)
    worker.wake_up(tags=["weights"])
    layers_of(worker).load()
    layers_of(worker).scale.fill_(2)
    assert not awaits(debugger, table)
    worker.wake_up(["kv_cache"])
    assert awaits(debugger, table)
    if rewritten:
        table.fill_(2)
    assert (serves_anew(worker) == before) is rewritten
    assert clean(debugger, worker, 2) if rewritten else only(debugger).buffer.name == SCHEDULED


def awaits(debugger: sg.Debugger, tensor: torch.Tensor) -> bool:
    """Whether a read of a tensor must be preceded by a write."""
    check = debugger.monitor.checks[ContentsLost]
    waiting = [*check._awaited, *check._coming]
    return any(each.endangered.buffer.range.contains(tensor.data_ptr()) for each in waiting)


# -- the allocator alone ---------------------------------------------------------------------------------------------


@pytest.fixture
def pooled(debugger: sg.Debugger) -> Callable[..., Any]:
    """Makes a table in the pool of a tag, with a graph that has read it."""

    def make(tag: str | None, size: int = 64, rows: torch.Tensor | None = None) -> tuple[torch.Tensor, sg.HostGraph]:
        with debugger.guard(), allocator().use_memory_pool(tag):
            table = torch.zeros(size)
            allocator().take(table)
        table.copy_(torch.arange(1.0, size + 1))
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            table * 2 if rows is None else table[rows] * 2
        graph.replay()
        return table, graph

    return make


@pytest.mark.parametrize(
    ("arguments", "lost"),
    [
        ((), ["weights", "kv_cache"]),
        (("weights",), ["default", "kv_cache"]),
        ((("weights", "kv_cache"),), ["default"]),
        (((),), ["default", "weights", "kv_cache"]),
    ],
)
@pytest.mark.parametrize("keyword", [False, True])
def test_tags_that_are_offloaded(
    debugger: sg.Debugger, pooled: Callable[..., Any], arguments: tuple[Any, ...], lost: list[str], keyword: bool
) -> None:
    tables = {tag or "default": pooled(tag) for tag in (None, "weights", "kv_cache")}
    for tag, (table, _) in tables.items():
        debugger.name(tag, {"table": table})
    if keyword and arguments:
        allocator().sleep(offload_tags=arguments[0])
        allocator().wake_up(tags=None)
    else:
        allocator().sleep(*arguments)
        allocator().wake_up()
    for _, graph in tables.values():
        graph.replay()
    found = {each.buffer.name: each.detail.how for each in debugger.findings}
    assert sorted(found) == sorted(f'{tag}["table"]' for tag in lost)
    assert all(how.startswith("vllm CuMemAllocator.sleep(offload_tags=(") for how in found.values())


@pytest.mark.parametrize("prefill", [False, True], ids=["buggy", "fixed"])
def test_a_cache_that_is_only_looked_up(debugger: sg.Debugger, pooled: Callable[..., Any], prefill: bool) -> None:
    """A prefix cache that was not reset: its rows are taken for those of before the sleep."""
    with debugger.guard():
        rows = torch.tensor([1, 5])
    cache, graph = pooled("kv_cache", rows=rows)
    allocator().sleep(("weights",))
    allocator().wake_up()
    if prefill:
        cache[:8] = 3.0
    graph.replay()
    if prefill:
        assert debugger.findings == debugger.notes == ()
    else:
        assert (only(debugger).code, only(debugger).culprit.name) == ("SG116", "aten.index.Tensor")


def test_nothing_is_read_while_it_is_unmapped(
    debugger: sg.Debugger, pooled: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for a second sleep of memory that sleeps, nor for a wake-up of other tags."""
    (_, first), (other, second) = pooled("weights"), pooled("kv_cache")
    read: list[ByteRange] = []
    engine = debugger.monitor.context.engine
    read_many = engine.read_many
    monkeypatch.setattr(engine, "read_many", lambda ranges: read.extend(ranges) or read_many(ranges))
    allocator().sleep(())
    assert len(read) == 2
    allocator().wake_up(["kv_cache"])
    other.fill_(1)
    allocator().sleep(())
    assert [each.start for each in read[2:]] == [other.data_ptr()]
    allocator().wake_up()
    assert len(read) == 3
    for graph in (first, second):
        graph.replay()
    assert {each.graph for each in debugger.findings} == {first.model.name, second.model.name}


def test_memory_that_is_freed_while_it_sleeps(debugger: sg.Debugger, pooled: Callable[..., Any]) -> None:
    table, graph = pooled("weights")
    allocator().sleep(())
    allocator()._python_free_callback(table.data_ptr())
    del table, graph
    gc.collect()
    new, graph = pooled("weights")
    new.fill_(4)
    allocator().wake_up([])
    graph.replay()
    assert debugger.findings == debugger.notes == ()


def test_ranges_are_whole_allocations() -> None:
    made = sleeping.CuMemAllocator()
    for tag, address in (("weights", 4096), ("kv_cache", 16384), ("kv_cache", 32768)):
        with made.use_memory_pool(tag):
            made._python_malloc_callback((0, 8192, address, 7))
    cache = [ByteRange(16384, 24576), ByteRange(32768, 40960)]
    assert ranges_dropped(made, ("weights",)) == {"kv_cache": cache}
    assert ranges_dropped(made, ()) == {"weights": [ByteRange(4096, 12288)], "kv_cache": cache}


# -- the program comes first -----------------------------------------------------------------------------------------


def test_arguments_results_and_errors_are_those_of_vllm(
    debugger: sg.Debugger, pooled: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    table, graph = pooled("weights")
    with pytest.raises(AssertionError):
        allocator().sleep(["weights"])
    with monkeypatch.context() as failing:
        failing.setattr(sleeping, "unmap_and_release", lambda handle: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            allocator().sleep(())
    allocator().sleep(())
    with monkeypatch.context() as failing:
        failing.setattr(sleeping, "create_and_map", lambda handle: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            allocator().wake_up()
    assert not awaits(debugger, table)
    allocator().wake_up()
    assert awaits(debugger, table)
    graph.replay()
    assert only(debugger).code == "SG116"


@pytest.mark.parametrize("hook", ["fall_asleep", "wake", "sleep_level"])
def test_hooks_hand_on_what_they_are_given(hook: str) -> None:
    hooks = Hooks()
    given: list[Any] = []
    original: Callable[..., Any] = lambda *args, **kwargs: given.append((args, kwargs)) or "result"  # noqa: E731
    owner = sleeping.CuMemAllocator()
    assert getattr(hooks, hook)(original)(owner, ("tag",), more=1) == "result"
    assert given == [((owner, ("tag",)), {"more": 1})]
    hooks.forget()


def test_an_error_of_the_debugger_stays_inside(debugger: sg.Debugger, monkeypatch: pytest.MonkeyPatch) -> None:
    hooks, noted = Hooks(), list[str]()
    monkeypatch.setattr(internal_errors, "note", lambda where, error: noted.append(f"{where}: {error}"))
    assert hooks.fall_asleep(lambda allocator: "asleep")(object()) == "asleep"
    assert noted == ["vllm adapter: 'object' object has no attribute 'default_tag'"]
    hooks.forget()


def test_without_a_debugger_memory_is_what_it_was(attachment: Any) -> None:
    with allocator().use_memory_pool("weights"):
        table = torch.ones(4)
        allocator().take(table)
    for _ in range(2):
        allocator().sleep("weights")
        allocator().wake_up()
    assert table.tolist() == [1, 1, 1, 1]


def test_a_debugger_that_ended_during_a_sleep_is_not_kept(attachment: Any) -> None:
    with sg.debug(backend="host") as debugger:
        with debugger.guard(), allocator().use_memory_pool("kv_cache"):
            table = torch.ones(4)
            allocator().take(table)
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            table * 2
        graph.replay()
        allocator().sleep("weights")
    gone = weakref.ref(debugger)
    del debugger, graph
    gc.collect()
    assert gone() is None
    with sg.debug(backend="host") as other:
        allocator().wake_up()
        assert not other.monitor.checks[ContentsLost].wants_known_writes


# -- under wrap, in a process of its own -----------------------------------------------------------------------------

SERVER = """
import sys
import torch
import vllm_runner as fakes
import vllm_sleep
from vllm.device_allocator.cumem import CuMemAllocator
from vllm.v1.worker.gpu_model_runner import GPUModelRunner
from vllm.v1.worker.gpu_worker import Worker

CuMemAllocator.instance = CuMemAllocator()
worker = Worker(fakes.config(), GPUModelRunner)
worker.load_model()
worker.initialize_from_config(fakes.cache_config())
worker.compile_or_warm_up_model()
for _ in range(3):
    worker.model_runner.step((4, 5, 5, 6))
layers = worker.model_runner.model.runnable.layers
worker.sleep(level=2)
worker.wake_up(["weights"])
layers.load()
if sys.argv[1:] == ["fixed"]:
    layers.scale.fill_(2)
worker.wake_up(["kv_cache"])
worker.model_runner.step((3, 4, 4, 5), (3, 4, 4, 5))
for _ in range(2):
    worker.model_runner.step((4, 5, 5, 6))
"""


@pytest.mark.parametrize("variant", ["buggy", "fixed"])
def test_under_wrap(tmp_path: Path, variant: str) -> None:
    """The adapter attaches as the server imports vLLM's modules; the finding names the server's line that slept."""
    site, program, report = tmp_path / "site", tmp_path / "server.py", tmp_path / "report.json"
    names = {
        sleeping.WORKER: ["vllm_sleep", "Worker"],
        sleeping.CUMEM: ["vllm_sleep", "CuMemAllocator"],
        fakes.WRAPPER: ["vllm_runner", "CUDAGraphWrapper"],
        fakes.RUNNER: ["vllm_runner", *vars(fakes.modules()[fakes.RUNNER])],
    }
    for name, (where, *classes) in names.items():
        file = site / f"{name.replace('.', '/')}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        for folder in file.relative_to(site).parents:
            if str(folder) != ".":
                (site / folder / "__init__.py").touch()
        file.write_text(f"from {where} import {', '.join(each for each in classes if each[0].isupper())}\n")
    (site / "vllm-0.21.0.dist-info").mkdir()
    (site / "vllm-0.21.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.21.0\n")
    program.write_text(SERVER)
    words = [sys.executable, "-m", "shadowgraph", "wrap", "--backend", "host", "--json", str(report)]
    words += ["--run-dir", str(tmp_path / "run"), "--", sys.executable, str(program), variant]
    keep = {name: text for name, text in os.environ.items() if not name.startswith(("SHADOWGRAPH_", "VLLM_"))}
    path = os.pathsep.join((str(site), str(ROOT / "tests" / "integrations"), str(ROOT)))
    env = {**keep, "PYTHONPATH": path, "TRITON_INTERPRET": "1"}
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    findings = json.loads(report.read_text())["findings"]
    if variant == "fixed":
        assert findings == [], done.stderr[-4000:]
        return
    (finding,) = findings
    assert (finding["code"], finding["replay"], finding["detail"]["how"]) == ("SG116", 4, "vllm sleep(level=2)")
    assert finding["buffer"]["name"].endswith("layers.scale")
    slept = SERVER.splitlines().index("worker.sleep(level=2)") + 1
    assert (finding["detail"]["stack"][1]["file"], finding["detail"]["stack"][1]["line"]) == (str(program), slept)


# -- versions --------------------------------------------------------------------------------------------------------


def test_a_worker_without_a_level(said: list[str]) -> None:
    """The rest is known as before, and the report names the allocator's sleep."""
    del sys.modules[sleeping.WORKER].Worker.sleep
    vllm_adapter.attach()
    assert said == [
        "the vllm adapter does without the level of a sleep: vllm 0.21.0 has no Worker.sleep; generic tracking goes on"
    ]
    assert hasattr(sys.modules[sleeping.WORKER].Worker.load_model, "__wrapped__")
    with sg.debug(backend="host") as debugger:
        worker = served(debugger)
        constant(worker)
        serves_anew(worker)
        sleeping.Worker.sleep(worker)
        worker.wake_up()
        serves_anew(worker)
        assert only(debugger).detail.how == "vllm CuMemAllocator.sleep(offload_tags=('weights',))"


def test_an_allocator_of_another_version(said: list[str]) -> None:
    cumem().CuMemAllocator.wake_up = lambda self, names=None: None
    vllm_adapter.attach()
    assert said == [
        "the vllm adapter does without sleep mode: vllm 0.21.0 has no CuMemAllocator.wake_up with the parameters "
        "self, tags; generic tracking goes on"
    ]
    assert not hasattr(cumem().CuMemAllocator.sleep, "__wrapped__")


def test_both_parts_of_a_module_are_patched_as_it_is_imported(said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    modules = {name: sys.modules[name] for name in (sleeping.WORKER, sleeping.CUMEM)}
    waiting: dict[str, Any] = {}
    hook = type(sys)("_shadowgraph_hook")
    hook.when_imported = waiting.__setitem__  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "_shadowgraph_hook", hook)
    for name in modules:
        monkeypatch.delitem(sys.modules, name)
    vllm_adapter.attach()
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
        waiting[name]()
    worker, memory = modules[sleeping.WORKER].Worker, modules[sleeping.CUMEM].CuMemAllocator
    for method in (worker.sleep, worker.load_model, memory.sleep, memory.wake_up):
        assert hasattr(method, "__wrapped__")
        assert not hasattr(method.__wrapped__, "__wrapped__")
    assert said == []
