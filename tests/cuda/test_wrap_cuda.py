"""`shadowgraph wrap` around programs on a GPU that know nothing of it: found, named, and served all the same."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from shadowgraph.demos.sglang.load import SGLANG_VERSION, sglang_version
from shadowgraph.dumps.reader import read_dump
from shadowgraph.graphs.dispatch.stepping_aside import POOLED
from shadowgraph.wrap.folder.reader import Run, read_run

pytestmark = pytest.mark.gpu

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE / "programs"
SGLANG = pytest.mark.skipif(sglang_version() != SGLANG_VERSION, reason=f"needs sglang {SGLANG_VERSION}")


@dataclass
class Wrapped:
    code: int
    out: str
    err: str
    run: Run

    def dump(self, reason: str) -> Any:
        """The one dump that was made for a reason."""
        (dump,) = [d for d in map(read_dump, self.run.dumps) if d.manifest.reason == reason]
        return dump


def wrap(folder: Path, name: str, *arguments: str, options: tuple[str, ...] = ()) -> Wrapped:
    paths = [str(HERE), str(PROGRAMS), str(HERE.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    run = folder / "run"
    words = [
        sys.executable,
        "-m",
        "shadowgraph",
        "wrap",
        "--run-dir",
        str(run),
        "--error-exitcode",
        "9",
        *options,
        "--",
    ]
    done = subprocess.run(
        [*words, sys.executable, str(PROGRAMS / name), *arguments], cwd=folder, capture_output=True, text=True,
        timeout=300, env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )  # fmt: skip
    return Wrapped(done.returncode, done.stdout, done.stderr, read_run(run))


@pytest.mark.parametrize("layout", ["faithful", "isolate"])
def test_an_overrun_in_prepare_is_named_by_the_variable_that_holds_the_buffer(tmp_path: Path, layout: str) -> None:
    done = wrap(tmp_path, "prepare.py", "5", options=("--layout", layout))
    assert (done.code, done.out) == (9, "served\n"), done.err
    (found,) = done.run.merged().findings
    assert (found.code, found.phase, found.replay, found.past_end) == ("SG101", "prepare", 3, 20)
    assert found.buffer.name.endswith("runner.kv_indices"), found.buffer.names
    assert found.buffer.allocated[0].function == "__init__"
    assert (found.culprit.name, found.culprit.stack[0].function) == ("put", "fill")
    assert "SUMMARY: shadowgraph: SG101" in done.err
    assert len(done.dump("finding").facts().findings) == 1


def test_the_fixed_program_is_silent(tmp_path: Path) -> None:
    done = wrap(tmp_path, "prepare.py", "0")
    assert (done.code, done.out) == (0, "served\n"), done.err
    facts = done.run.merged()
    assert (facts.findings, facts.faults, done.run.dumps) == ((), {}, ())
    (process,) = [process for process in done.run.processes if process.backend]
    assert (process.backend, process.ended) == ("cuda", "exit")


def test_two_children_have_a_finding_each(tmp_path: Path) -> None:
    done = wrap(tmp_path, "two.py")
    assert done.out.splitlines()[-1] == "[0, 0]", done.err
    assert done.code == 9
    assert sorted(finding.past_end for finding in done.run.merged().findings) == [4, 8]
    assert len({finding.pid for finding in done.run.merged().findings}) == 2


def test_a_wild_write_leaves_a_dump_of_what_survived(tmp_path: Path) -> None:
    done = wrap(tmp_path, "wild.py")
    assert done.code == 1, "the program's own end"
    assert "illegal memory access" in done.err
    dump = done.dump("exception")
    facts = dump.facts()
    assert facts.lost is not None
    latest = facts.last_launches[0]
    assert (latest.name, os.path.basename(str(latest.file))) == ("stray", "wild.py")
    (offset,) = [value for value in latest.values if value.argument == "offset"]
    assert (int.from_bytes(offset.data, "little", signed=True), offset.shape) == (-(1 << 40), (1,))
    assert offset.owner.endswith("offset")
    assert dump.manifest.unread, "and says what could not be read"
    assert "stray" in done.err


RULE = "index in range: 11 along dim 0, which ends at 8; index holds 0 to 11"


def test_an_index_that_kills_the_device_is_found_from_what_survives(tmp_path: Path) -> None:
    done = wrap(tmp_path, "indices.py", "11")
    assert "device-side assert" in done.err, "without it this shows nothing"
    facts = done.dump("exception").facts()
    assert facts.lost is not None
    (found,) = facts.findings
    assert (found.code, found.phase, found.replay) == ("SG109", "prepare", 3)
    assert found.buffer.name.endswith("runner.rows"), found.buffer.names
    assert (found.detail.rule, found.culprit.stack[0].function) == (RULE, "prepare")


def test_with_sync_an_index_is_refused_and_the_device_lives(tmp_path: Path) -> None:
    done = wrap(tmp_path, "indices.py", "11", options=("--sync",))
    assert "device-side assert" not in done.err
    assert "FindingsError: SG109" in done.err
    (found,) = done.run.merged().findings
    assert (found.code, found.replay, found.culprit.stack[0].function) == ("SG109", 3, "prepare")
    assert done.dump("exception").facts().lost is None


@pytest.mark.parametrize("options", [(), ("--sync",)])
def test_indices_in_range_are_silent(tmp_path: Path, options: tuple[str, ...]) -> None:
    done = wrap(tmp_path, "indices.py", "7", options=options)
    assert (done.code, done.out) == (0, "served\n"), done.err
    facts = done.run.merged()
    assert (facts.findings, facts.faults, done.run.dumps) == ((), {}, ())


@SGLANG
@pytest.mark.sglang
@pytest.mark.parametrize("form", ["eager", "compiled", "from inductor's cache"])
def test_an_assert_in_sglangs_own_metadata_is_explained(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "inductor"
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(cache))
    if form == "from inductor's cache":  # of an earlier process, as for most who start a server
        (tmp_path / "first").mkdir()
        wrap(tmp_path / "first", "expand.py", form)
        assert any((cache / "fxgraph").rglob("*")), "invalid: nothing was kept"
    done = wrap(tmp_path, "expand.py", form)
    assert "first step done" in done.out, done.err
    assert "device-side assert" in done.err, "without it this shows nothing"
    facts = done.dump("exception").facts()
    assert facts.lost is not None
    assert all(
        str(launch.file).endswith("sglang/srt/layers/attention/flashattention_backend.py")
        for launch in facts.last_launches
    )
    values = [value for launch in facts.last_launches for value in launch.values]
    assert {value.shape for value in values if "page_table" in value.owner} == {(2, 2)}
    if form == "eager":
        (found,) = facts.findings
        assert (found.code, found.buffer.name.split(".")[-1]) == ("SG109", "page_table")
        assert found.culprit.name.startswith("aten.scatter_")
        assert found.culprit.stack[0].function == "draft_decode_set_expand_metadata"
        assert found.detail.rule == "index in range: 2 along dim 1, which ends at 2; index holds 0 to 2"
    else:  # the launch that asserts is the last: it is given the slots, and a table of two columns of its own
        latest = facts.last_launches[0]
        assert "scatter" in latest.name
        slots, table = latest.values
        assert (slots.argument, slots.dtype, slots.shape) == ("in_ptr0", "int64", (2, 5))
        assert (table.argument, table.dtype, table.shape) == ("out_ptr1", "int32", (2, 2))
        asserted = latest.asserted
        assert asserted is not None, "worked out from the slots"
        assert asserted.rule.startswith("0 <= tmp")
        assert (asserted.low, asserted.high, asserted.least, asserted.most) == (0, 2, 0, 2)
        assert (asserted.into, asserted.places, asserted.copied) == ("out_ptr1", (0, 1), True)
        assert asserted.owner.endswith("metadata_expand.page_table")
        assert "would be 0 to 2" in " ".join(done.err.split())


@SGLANG
@pytest.mark.sglang
def test_with_sync_the_index_is_refused_before_it_kills_the_context(tmp_path: Path) -> None:
    done = wrap(tmp_path, "expand.py", "eager", options=("--sync",))
    assert "device-side assert" not in done.err
    assert "FindingsError: SG109" in done.err
    (found,) = done.run.merged().findings
    assert (found.code, found.buffer.name.split(".")[-1], found.replay) == ("SG109", "page_table", 2)
    assert done.dump("exception").facts().lost is None


@pytest.mark.parametrize("options", [(), ("--guard-eager", "all"), ("--layout", "isolate")])
def test_cudagraph_trees_and_pools_work_as_without(tmp_path: Path, options: tuple[str, ...]) -> None:
    command = [sys.executable, str(PROGRAMS / "compiled.py")]
    plain = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert plain.returncode == 0, plain.stderr
    assert "in the pool: [True, False]" in plain.stdout
    done = wrap(tmp_path, "compiled.py", options=options)
    assert done.code == 0, done.err
    if done.out != plain.stdout:
        runs = [subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600) for _ in range(4)]
        if any(again.stdout != plain.stdout for again in runs):
            pytest.skip("invalid: plain runs of the program give different bits here")
    assert done.out == plain.stdout, done.err
    facts = done.run.merged()
    assert (facts.findings, facts.faults) == ((), {})
    assert facts.stepped_aside.get(POOLED, 0) >= 1
