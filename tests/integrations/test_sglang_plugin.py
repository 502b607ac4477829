"""The adapter in sglang's own hook registry: inert without a run, names, padding and phases with one."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sglang_runners as runners
import torch

import shadowgraph as sg
from shadowgraph import session
from shadowgraph.common.errors import UsageError
from shadowgraph.common.version import VERSION
from shadowgraph.demos.sglang.host import SGLANG_VERSION, load, sglang_version
from shadowgraph.integrations.sglang.hooks import Hooks
from shadowgraph.integrations.sglang.versions import LAYOUTS
from shadowgraph.model.findings import Batch
from shadowgraph.tracking import passing

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.skipif(sglang_version() != SGLANG_VERSION, reason=f"needs sglang {SGLANG_VERSION}"),
]
ROOT = Path(__file__).resolve().parents[2]
ENTRY = "shadowgraph.integrations.sglang.plugin"
WATCHED = "shadowgraph.integrations.watched"


def run(program: str, *path: str, **more: str) -> str:
    """The output of a program in a process of its own."""
    keep = {name: text for name, text in os.environ.items() if not name.startswith(("SHADOWGRAPH_", "SGLANG_"))}
    env = {**keep, "PYTHONPATH": os.pathsep.join([*path, str(ROOT)]), "TRITON_INTERPRET": "1", **more}
    words = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


# -- without a run ---------------------------------------------------------------------------------------------------

FACADE = [
    "shadowgraph",
    *(f"shadowgraph.common{each}" for each in ("", ".html_repr", ".late_adapters", ".late_kinds", ".version")),
]
OURS = "sorted(name for name in sys.modules if name.startswith('shadowgraph'))"


def test_without_a_run_it_is_inert() -> None:
    said = run(f"""
        import sys
        from {ENTRY} import plugin
        plugin()
        print({OURS}, "torch" in sys.modules)
    """)
    parents = ["shadowgraph.integrations", "shadowgraph.integrations.sglang"]
    assert said.split("\n")[0] == f"{[*FACADE, *parents, ENTRY, WATCHED]} False"


@pytest.mark.slow
def test_sglang_loads_it_and_nothing_comes_of_it_without_a_run(installed: Path) -> None:
    said = run(
        f"""
        import sys
        from shadowgraph.demos.sglang.stub_modules import install_standins
        install_standins(engine=True)
        before = {OURS}
        from sglang.srt import plugins
        plugins.load_plugins()
        from sglang.srt.plugins.hook_registry import HookRegistry
        print(sorted(set({OURS}) - set(before)), dict(HookRegistry._hooks), HookRegistry._patched)
        """,
        str(installed),
    )
    parents = ["shadowgraph.integrations", "shadowgraph.integrations.sglang"]
    assert said.split("\n")[-2] == f"{[*parents, ENTRY, WATCHED]} {{}} set()"


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A directory for the path on which the package is installed with its entry point, as `pip` would leave it."""
    facts = tmp_path / "site" / f"shadowgraph-{VERSION}.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: shadowgraph\nVersion: {VERSION}\n")
    (facts / "entry_points.txt").write_text(f"[sglang.srt.plugins]\nshadowgraph = {ENTRY}:plugin\n")
    return facts.parent


@pytest.mark.slow
def test_with_a_debugger_sglangs_loader_hangs_every_hook_in(installed: Path) -> None:
    said = run(
        """
        import sys
        from shadowgraph.demos.sglang.stub_modules import install_standins
        install_standins(engine=True)
        import shadowgraph as sg
        debugger = sg.install(backend="host")
        from sglang.srt import plugins
        plugins.load_plugins()
        from sglang.srt.plugins.hook_registry import HookRegistry
        print(*sorted(HookRegistry._patched), sep="\\n")
        print(debugger.facts().faults)
        """,
        str(installed),
    )
    *patched, counted, _ = said.split("\n")
    layout = LAYOUTS[0]
    drafts = [name for pair in layout.drafts for name in pair]
    ends = {*layout.loops, layout.watchdog}
    assert set(patched[-10:]) == {layout.backends, layout.capture, layout.prepare, *drafts, *ends}
    assert counted == "{}"


# -- in sglang's registry --------------------------------------------------------------------------------------------


@pytest.fixture(params=["isolate", "faithful"])
def debugger(request: pytest.FixtureRequest) -> Iterator[sg.Debugger]:
    with sg.debug(backend="host", layout=request.param) as made:
        made.runner.adjust(stale_rows="note")  # as under `wrap`
        yield made


@pytest.fixture
def hung(monkeypatch: pytest.MonkeyPatch, debugger: sg.Debugger) -> Iterator[Any]:
    with runners.hanging(monkeypatch) as hang:
        yield hang


def decoded(debugger: sg.Debugger, hang: Any) -> runners.Decode:
    with debugger.guard():
        decode = runners.Decode()
    hang(runners.capture)
    decode.runner.capture()
    return decode


def test_stale_rows_of_the_decode_runner_are_errors_with_its_names(debugger: sg.Debugger, hung: Any) -> None:
    decode = decoded(debugger, hung)
    decode.step([2, 5, 4, 7])
    assert debugger.findings == ()
    decode.step([3, 6, 1])
    found = {finding.buffer.name: finding for finding in debugger.findings}
    assert set(found) == {"decode.buffers.req_pool_indices", "decode.buffers.positions"}
    assert decode.attended == [4, 4], "sglang's own preparation went on to its end"
    for finding in found.values():
        (rows,) = finding.detail.stale
        assert (finding.code, finding.severity, finding.confidence) == ("SG103", "error", "high")
        assert (finding.phase, finding.replay, rows.first, rows.last) == ("prepare", 2, 3, 3)
        assert finding.culprit.name == "aten._foreach_copy_.default"
        assert finding.batch == Batch(3, 4, (3, 6, 1), ("request-3", "request-6", "request-1"))
    assert "  batch      3 requests, padded to 4; 3, 6, 1 tokens; ids request-3, " in str(debugger.report(quiet=True))
    assert debugger.notes == (), "input_ids is meant to keep its rows"
    assert debugger.facts().faults == {}


def test_padding_that_is_done_is_silent(debugger: sg.Debugger, hung: Any) -> None:
    decode = decoded(debugger, hung)
    for slots in ([2, 5, 4, 7], [3], [6, 1], [9, 8, 7]):
        decode.runner.buffers.req_pool_indices.zero_()
        decode.runner.buffers.positions.zero_()
        decode.step(slots)
    assert decode.attended == [4, 2, 2, 4]
    assert debugger.findings == debugger.notes == ()
    assert debugger.coverage().written
    assert debugger.facts().faults == {}


def test_of_inputs_that_are_not_the_runners_nothing_more_is_thought(debugger: sg.Debugger, hung: Any) -> None:
    """The same neglect in a buffer that the adapter knows nothing of stays a note."""
    decode = decoded(debugger, hung)
    with debugger.guard():
        own, lens = torch.zeros(4, dtype=torch.int64), torch.ones(4, dtype=torch.int64)
    graph = sg.HostGraph()
    with sg.host_graph(graph):
        out = own + lens
    for slots in ([2, 5, 4, 7], [3]):
        if len(slots) < 4:
            lens.fill_(1)
        lens[: len(slots)].copy_(torch.tensor(slots))
        own[: len(slots)].copy_(torch.tensor(slots))
        graph.replay()
    assert out is not None
    assert [note.code for note in debugger.notes] == ["SG103"]
    assert debugger.findings == ()
    assert decode.runner.graphs


def test_a_runner_of_another_kind_is_named_and_not_judged(debugger: sg.Debugger, hung: Any) -> None:
    """It may inherit from one that is known, and pad in a way of its own."""
    with debugger.guard():
        decode = runners.Decode()
    decode.runner.__class__ = type("OtherRunner", (type(decode.runner),), {})
    hung(runners.capture)
    decode.runner.capture()
    decode.step([2, 5, 4, 7])
    decode.step([3, 6, 1])
    assert debugger.findings == ()
    assert "OtherRunner.buffers.req_pool_indices" in {note.buffer.name for note in debugger.notes}
    assert "OtherRunner.attn_backend.kv_indptr" in {owner.path for owner in debugger.names.living()}


def test_what_is_launched_while_a_replay_is_prepared_belongs_to_it(debugger: sg.Debugger, hung: Any) -> None:
    decode = decoded(debugger, hung)
    watch = debugger.watch(decode.runner.buffers.req_pool_indices)
    decode.step([2, 5])
    decode.runner.buffers.req_pool_indices.zero_()
    marked = [change for change in watch.changes if change.phase == "prepare"]
    assert [change.writer for change in marked] == ["aten._foreach_copy_.default"]
    assert not debugger.monitor.preparing.anywhere


def test_while_replays_pass_nothing_is_marked(debugger: sg.Debugger, hung: Any) -> None:
    decode = decoded(debugger, hung)
    decode.step([2, 5])
    before = len(debugger.monitor.flight_recorder.launches)
    passing.let(100, {graph.model.serial for graph in decode.runner.graphs.values()})
    try:
        decode.step([2, 5])
    finally:
        passing.let(0)
    assert not debugger.monitor.preparing.anywhere
    assert not [ran for ran in list(debugger.monitor.flight_recorder.launches)[before:] if ran.phase == "prepare"]
    assert debugger.monitor.budget.replays == 1
    assert not debugger.check()
    assert debugger.monitor.budget.replays == 2


def test_a_preparation_that_raises_leaves_no_mark(debugger: sg.Debugger, hung: Any) -> None:
    decode = decoded(debugger, hung)
    del decode.runner.seq_len_fill_value
    with pytest.raises(AttributeError, match="seq_len_fill_value"):
        decode.step([2, 5, 4])
    assert not debugger.monitor.preparing.anywhere


def test_eagles_draft_by_the_runners_own_replay(debugger: sg.Debugger, hung: Any) -> None:
    draft = runners.Draft(debugger)
    hung(draft.capture)
    load(runners.DECODE).CudaGraphRunner.capture(draft.runner)  # as its own capture() does
    draft.step([10, 10])
    assert debugger.findings == ()
    draft.step([16, 13])
    (found,) = debugger.findings
    past = draft.draft.bytes_past_end([16, 13])
    assert (found.code, found.buffer.name, found.past_end) == ("SG101", "draft.cuda_graph_kv_indices", past)
    assert (found.phase, found.replay, found.culprit.name) == ("prepare", 2, "generate_draft_decode_kv_indices")
    assert found.batch == Batch(2, 2, (16, 13))
    assert "draft.attn_backends[1].cuda_graph_kv_indices[0]" in {alias.name for alias in found.aliases}
    names = {name for buffer in debugger.buffers for name in debugger.names.name_of(buffer)[1]}
    assert {"draft.buffers.topk_p", "draft.kv_indptr"} <= names
    assert not debugger.monitor.preparing.anywhere
    assert debugger.facts().faults == {}


def test_a_failure_of_ours_is_counted_and_sglang_goes_on(
    debugger: sg.Debugger, hung: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any) -> None:
        raise UsageError("not even what users are meant to see")

    for name in ("_know", "_debugger"):
        monkeypatch.setattr(Hooks, name, broken)
    decode = decoded(debugger, hung)
    decode.step([2, 5, 4, 7])
    assert decode.attended == [4]
    assert decode.runner.graphs[4].model.replays == 1
    counts = debugger.facts().faults
    assert counts == {"sglang adapter: UsageError: not even what users are meant to see": 3}


def test_no_tensor_is_kept_alive(debugger: sg.Debugger, hung: Any) -> None:
    decode = decoded(debugger, hung)
    decode.step([2, 5, 4, 7])
    gone = [
        weakref.ref(decode.runner),
        weakref.ref(decode.runner.buffers.positions),
        weakref.ref(decode.runner.buffers),
    ]
    del decode
    gc.collect()
    assert [each() for each in gone] == [None, None, None]


def test_a_debugger_that_starts_later_is_told_all(debugger: sg.Debugger, hung: Any) -> None:
    decode = decoded(debugger, hung)
    session._end(debugger)
    with sg.debug(backend="host") as later:
        later.runner.adjust(stale_rows="note")
        runners.capture(decode.runner)  # not through the hooks
        decode.step([2, 5, 4, 7])
        decode.step([3, 6, 1])
        found = {finding.buffer.name for finding in later.findings}
    assert found == {"decode.buffers.req_pool_indices", "decode.buffers.positions"}
    assert debugger.findings == ()
