"""`shadowgraph wrap --fence`: an access past the end of a fenced buffer ends the program there, and the report says
which; all else is as without."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.wrapping import PROGRAMS, ROOT, Wrapped, environment, program, wrap

from shadowgraph.common.errors import FenceError
from shadowgraph.dumps.reader import read_dump

PROGRAM = PROGRAMS / "fenced.py"
RUNNER = "in:__main__:Runner.__init__"
LINES = PROGRAM.read_text().splitlines()


def line_of(text: str) -> int:
    """The line of the program that holds a text."""
    (found,) = [number for number, line in enumerate(LINES, 1) if line.rstrip().endswith(text)]
    return found


def fenced(folder: Path, how: str, over: int, *options: str, where: str = RUNNER) -> Wrapped:
    return wrap(folder, *program("fenced.py", how, str(over)), options=("--fence", where, *options), warm=False)


@pytest.fixture(scope="module")
def plain() -> str:
    """What the program prints without a fence and without an error."""
    words = [sys.executable, str(PROGRAM), "prepare", "0"]
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"invalid: {done.stderr}"
    return done.stdout


@pytest.mark.parametrize("how", ["prepare", "replay", "read", "ctypes"])
def test_an_access_past_the_end_dies_there(how: str, tmp_path: Path) -> None:
    words = [sys.executable, str(PROGRAM), how, "1"]
    alone = subprocess.run(words, env=environment(), capture_output=True, text=True, timeout=120)
    assert alone.returncode == 0, f"invalid: the program dies without a fence: {alone.stderr}"
    done = fenced(tmp_path, how, 1)
    assert done.code == -signal.SIGSEGV, done.err
    assert done.out == ""  # it has not come to its end
    (process,) = done.run.processes
    assert process.ended == "killed"
    store = {"prepare": "# the store", "replay": "# the store of the graph", "read": "# the load"}
    if how == "ctypes":  # no address is known before the access
        assert (
            f"Segmentation fault at fenced.py:{line_of('# the call')} in run, from fenced.py:{len(LINES)} in <module>"
            in process.events
        )
        assert "SUMMARY: shadowgraph: fence: Segmentation fault at fenced.py:" in done.err
        assert "fences stand behind runner.kv_indices (160 bytes) from fenced.py:" in done.err
        return
    (hit,) = [event for event in process.events if event.startswith("fence: ")]
    access = "read" if how == "read" else "written"
    assert hit.startswith(f"fence: 4 bytes {access} right past the end of runner.kv_indices (160 bytes), by ")
    kernel = {"prepare": "fill", "replay": "fill_to", "read": "double"}[how]
    assert f"by fenced.py:{line_of(store[how])} in {kernel}, from fenced.py:" in hit
    if how == "prepare":
        assert f"from fenced.py:{line_of('# the launch')} in refresh" in hit
    assert f"SUMMARY: shadowgraph: {hit}" in done.err
    assert process.last_check is not None
    assert (process.last_check.running, process.last_check.running_replay) == (
        ("graph#1", 3) if how == "replay" else ("", 0)
    )


@pytest.mark.parametrize("how", ["prepare", "replay", "read", "ctypes"])
def test_a_program_that_stays_inside_runs_as_without(how: str, tmp_path: Path, plain: str) -> None:
    done = fenced(tmp_path, how, 0, "--json", "report.json")
    assert done.code == 0, done.err
    if how != "ctypes":  # which writes another value
        assert done.out == plain
    facts = done.run.merged()
    assert (facts.findings, facts.notes, facts.faults) == ((), (), {})
    assert [fence.slack for fence in facts.fences] == [0, 0, 0]
    assert not list(done.folder.glob("fault-*"))
    document = json.loads((tmp_path / "report.json").read_text())
    names = {fence["name"].split()[0] for fence in document["fences"]}
    assert {"runner.kv_indices", "runner.page_table"} <= names


def test_findings_elsewhere_are_reported_as_ever(tmp_path: Path) -> None:
    line = line_of("self.kv_indices = torch.zeros(")
    done = fenced(tmp_path, "elsewhere", 2, "--error-exitcode", "9", where=f"fenced.py:{line}")
    assert done.code == 9, done.err
    facts = done.run.merged()
    assert [fence.line for fence in facts.fences] == [line]
    (found,) = facts.findings
    assert (found.code, found.buffer.name, found.past_end) == ("SG101", "runner.page_table", 8)


@pytest.mark.parametrize("last", [0, 1, 2, 3])
def test_a_line_is_any_of_those_of_the_call_or_that_of_a_caller(last: int, tmp_path: Path) -> None:
    caller = line_of("runner, graph = Runner(), HostGraph()")
    where = line_of("self.kv_indices = torch.zeros(") + last if last < 3 else caller
    done = fenced(tmp_path, "prepare", 0, "--quiet", where=f"{PROGRAM}:{where}")
    assert done.code == 0
    assert len(done.run.merged().fences) == (3 if last == 3 else 1)


def test_everything_is_dumped_before_the_first_replay(tmp_path: Path) -> None:
    done = fenced(tmp_path, "prepare", 1)
    (path,) = done.run.dumps
    with read_dump(path) as dump:
        assert dump.manifest.reason == "fence"
        buffers = {dump.names.name(buffer): buffer for buffer in dump.buffers}
        assert buffers["runner.kv_indices"].fence == 0
        assert [graph.replays for graph in dump.graphs] == [1]  # it has begun


def test_no_dump_where_none_is_wanted(tmp_path: Path) -> None:
    done = fenced(tmp_path, "prepare", 1, "--dump", "never")
    assert not done.run.dumps
    assert "right past the end of runner.kv_indices (160 bytes)" in done.err  # the name is sought then


def test_redaction_holds_for_what_is_said_of_a_fence(tmp_path: Path) -> None:
    code = "import fenced, torch\nkept = {'a secret': fenced.Runner()}\nfenced.refresh(kept['a secret'], 41)\n"
    (tmp_path / "main.py").write_text(code)
    env = environment(PYTHONPATH=f"{ROOT}{os.pathsep}{PROGRAMS}")
    options = ("--fence", "in:fenced:Runner.__init__", "--redact")
    done = wrap(tmp_path, sys.executable, "main.py", options=options, env=env, warm=False)
    assert done.code == -signal.SIGSEGV, done.err
    assert "right past the end of kept[...].kv_indices (160 bytes)" in done.err
    assert "\nshadowgraph: no findings before the program died at a fence" in done.err
    assert "secret" not in done.err
    assert not any(b"a secret" in path.read_bytes() for path in done.folder.iterdir())


def test_forked_children_die_and_say_so_for_themselves(tmp_path: Path) -> None:
    done = wrap(
        tmp_path, *program("children.py", "fork"), options=("--fence", "in:overrun:Decode.__init__"), warm=False
    )
    assert done.code == 1, done.err  # the parent's own verdict on its children
    children = [process for process in done.run.processes if process.born == "fork"]
    assert len(children) == 2
    for child in children:
        assert any(event.startswith("fence laid behind Decode.page_table (64 bytes)") for event in child.events)
        assert any(event.startswith("Segmentation fault at overrun.py:21 in step") for event in child.events)
    assert done.err.count("SUMMARY: shadowgraph: fence: Segmentation fault at overrun.py:21 in step") == 2
    assert done.err.count(" died at a fence") == 2


def test_without_a_wrap_the_access_is_logged(tmp_path: Path) -> None:
    code = (
        "import fenced, shadowgraph as sg\n"
        "with sg.debug(backend='host', fence='in:fenced:Runner.__init__'):\n"
        "    runner = fenced.Runner()\n"
        "    fenced.refresh(runner, 40)\n"
        "    print('inside', flush=True)\n"
        "    fenced.refresh(runner, 41)\n"
        "    print('never', flush=True)\n"
    )
    env = environment(PYTHONPATH=f"{ROOT}{os.pathsep}{PROGRAMS}")
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (-signal.SIGSEGV, "inside\n"), done.stderr
    where = f"fenced.py:{line_of('# the store')} in fill, from fenced.py:{line_of('# the launch')} in refresh"
    assert f"4 bytes written right past the end of runner.kv_indices (160 bytes), by {where}: " in done.stderr


# -- a name of an earlier run -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["folder", "dump", "findings"])
def test_a_name_is_resolved_to_the_line_that_allocated_it(kind: str, tmp_path: Path) -> None:
    (tmp_path / "before").mkdir()
    options = ("--dump", "never" if kind == "findings" else "exit", "--quiet")
    before = wrap(tmp_path / "before", *program("fenced.py", "prepare", "1"), options=options)
    assert len(before.run.merged().findings) == 1, "invalid: nothing was found without a fence"
    source = before.folder if kind != "dump" else before.run.dumps[0]
    done = fenced(tmp_path, "prepare", 1, "--from", str(source), where="runner.kv_indices")
    assert done.code == -signal.SIGSEGV, done.err
    assert "fence: 4 bytes written right past the end of runner.kv_indices (160 bytes)" in done.err
    assert [fence.line for fence in done.run.merged().fences] == [line_of("self.kv_indices = torch.zeros(")]


@pytest.mark.parametrize("name", ["runner.kv_indices", "kv_indices"])
def test_a_name_of_a_run_with_fences(name: str, tmp_path: Path) -> None:
    (tmp_path / "before").mkdir()
    before = fenced(tmp_path / "before", "prepare", 1)
    for dump in before.run.dumps:
        dump.unlink()
    assert "runner.kv_indices" in {fence.name for fence in before.run.merged().fences}, "invalid: it has no such name"
    done = fenced(tmp_path, "prepare", 0, "--from", str(before.folder), where=name)
    assert done.code == 0, done.err
    assert [fence.line for fence in done.run.merged().fences] == [line_of("self.kv_indices = torch.zeros(")]


def test_a_name_that_the_run_does_not_have(tmp_path: Path) -> None:
    (tmp_path / "before").mkdir()
    before = wrap(tmp_path / "before", *program("fenced.py", "prepare", "1"), options=("--dump", "exit", "--quiet"))
    done = fenced(tmp_path, "prepare", 0, "--from", str(before.folder), where="runner.kv_index")
    refused(done, "is called 'runner.kv_index'; the nearest names are: runner.kv_indices")
    inside = fenced(tmp_path, "prepare", 0, "--from", str(tmp_path / "nothing"), where="runner.kv_indices")
    assert inside.code not in (0, FenceError.exit_code)  # the run itself cannot be read


# -- what is refused, in one line and with an exit code of its own ----------------------------------------------------


def refused(done: Wrapped, said: str) -> None:
    assert done.code == FenceError.exit_code, done.err
    (line,) = [line for line in done.err.splitlines() if line.startswith("shadowgraph: error: ")]
    assert said in line
    assert "Traceback" not in done.err
    assert not done.folder.exists(), "the program was started"


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("kv_indices", "must be in:module:qualname or FILE:LINE, or a buffer's name with --from RUN, not 'kv_indices'"),
        ("in:module", "must be in:module:qualname"),
        ("fenced.py:0", "must be in:module:qualname"),
        ("in:no_such_module:f", "there is no module no_such_module"),
        ("/no/such/file.py:3", "there is no file /no/such/file.py"),
        (f"{PROGRAM}:9999", f"has {len(LINES)} lines"),
    ],
)
def test_places_that_cannot_be(where: str, said: str, tmp_path: Path) -> None:
    refused(fenced(tmp_path, "prepare", 0, where=where), said)


def test_nothing_allocated_there(tmp_path: Path, plain: str) -> None:
    done = fenced(tmp_path, "prepare", 0, "--quiet", where="in:__main__:Runner.forward")
    assert (done.code, done.out) == (FenceError.exit_code, plain)
    line = "shadowgraph: error: no fence was laid: nothing was allocated eagerly from in:__main__:Runner.forward\n"
    assert done.err == line


def test_no_memory_for_a_fence(tmp_path: Path, plain: str) -> None:
    done = fenced(tmp_path, "prepare", 0, "--quiet", "--guard-memory", "0")
    assert (done.code, done.out) == (FenceError.exit_code, plain)
    assert done.err == "shadowgraph: error: no fence was laid: guard memory is used up\n"


def test_the_module_of_the_programs_own_file(tmp_path: Path) -> None:
    """As a script it runs as `__main__`."""
    done = fenced(tmp_path, "prepare", 1, where="in:fenced:Runner.__init__")
    assert done.code == -signal.SIGSEGV, done.err
    assert "fence: 4 bytes written right past the end of runner.kv_indices (160 bytes), by fenced.py:" in done.err


def test_a_program_that_fails_keeps_its_own_exit_code(tmp_path: Path) -> None:
    done = wrap(tmp_path, sys.executable, "-c", "raise SystemExit(3)", options=("--fence", RUNNER), warm=False)
    assert done.code == 3


def test_from_without_a_fence(tmp_path: Path) -> None:
    done = wrap(tmp_path, sys.executable, "-c", "", options=("--from", "run"))
    assert done.code == 2
    assert "--from says where a buffer of --fence is allocated" in done.err


def test_mps_is_refused_unless_told_otherwise(tmp_path: Path) -> None:
    env = environment(CUDA_MPS_PIPE_DIRECTORY=str(tmp_path))
    words = program("fenced.py", "prepare", "0")
    options = ("--fence", RUNNER, "--backend", "cuda")
    done = wrap(tmp_path, *words, options=options, env=env, warm=False)
    refused(done, "CUDA MPS is in use")
    host = wrap(tmp_path, *words, options=("--fence", RUNNER, "--backend", "host"), env=env, warm=False)
    assert host.code == 0, host.err
