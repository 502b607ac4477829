"""One wrapped process: when its debugger starts, what it leaves alone on a device, when it dumps."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support import warm
from support.wrapping import PROGRAMS, environment

from shadowgraph.common.compat import resolved
from shadowgraph.dumps.reader import read_dump
from shadowgraph.render.text.run_text import RunReport
from shadowgraph.wrap.folder.injection_config import InjectionConfig
from shadowgraph.wrap.folder.process_record import ProcessRecord
from shadowgraph.wrap.folder.reader import Run, read_run
from shadowgraph.wrap.launch.run_child import wrapped_environment

NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="shows what happens without a CUDA device")


def python(
    tmp_path: Path, code: str, warm_start: bool = True, **config: object
) -> tuple[subprocess.CompletedProcess[str], Run]:
    """A process below a wrap, without the supervisor."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "run.json").write_text('{"format": 1}')
    full = wrapped_environment(InjectionConfig(str(folder), **config), environment())  # type: ignore[arg-type]
    done = warm.run([sys.executable, "-c", code], full, PROGRAMS, timeout=120, warm=warm_start)
    return done, read_run(folder)


def only(run: Run) -> ProcessRecord:
    (process,) = run.processes
    return process


@NO_GPU
def test_on_a_device_only_the_programs_own_start_of_cuda_starts_the_debugger(tmp_path: Path) -> None:
    code = (
        "import sys, torch\ntorch.zeros(4)\nassert 'shadowgraph.debugger' not in sys.modules\n"
        "calls = [call for call, _ in torch.cuda._queued_calls if call.__qualname__.endswith('cuda_began')]\n"
        "assert not torch.cuda.is_initialized()\n"
        "calls[0](); torch.zeros(2)\nassert 'shadowgraph.debugger' not in sys.modules\n"  # while it is initialised
        "torch.cuda.is_initialized = lambda: True\ntorch.zeros(2)\n"
        "assert 'shadowgraph.debugger' not in sys.modules, 'no operator works on a device yet'\n"
        "import contextlib\nfrom shadowgraph.wrap.inject import process\n"
        "process.device_index, torch.cuda.device = lambda *_: 0, lambda _: contextlib.nullcontext()\n"
        "torch.cuda.device_count, torch.cuda.is_current_stream_capturing = lambda: 1, lambda: False\n"
        "print(len(calls), torch.ones(2).sum().item())"
    )
    done, run = python(tmp_path, code, backend="cuda")
    assert done.stdout == "1 2.0\n", done.stderr
    assert done.stderr.count("\n") == 1
    assert "is not watched: BackendError" in done.stderr
    assert "not watched: BackendError" in only(run).events[0]
    assert (only(run).backend, only(run).ended) == (None, "exit")


def test_a_child_of_a_process_with_a_context_touches_nothing_and_says_so(tmp_path: Path) -> None:
    code = (
        "import dataclasses, os, sys, torch, shadowgraph as sg\n"
        "from overrun import Decode\n"
        "decode = Decode()\n"
        "debugger = sg.current()\n"
        "debugger.settings = dataclasses.replace(debugger.settings, backend='cuda')\n"  # as if it had one
        "pid = os.fork()\n"
        "if not pid:\n"
        "    assert sg.current() is None\n"
        "    decode.step(8); del decode; torch.zeros(8)\n    sys.exit(0)\n"
        "assert os.waitpid(pid, 0)[1] == 0\n"
        "assert sg.current() is debugger\nprint('parent goes on')"
    )
    done, run = python(tmp_path, code, backend="host")
    assert (done.stdout, done.stderr) == ("parent goes on\n", "")
    parent, child = run.processes
    assert child.events == ["not watched: forked from a process that has a CUDA context"]
    assert (child.born, child.ended, child.findings) == ("fork", "exit", [])
    assert parent.summaries


def test_findings_of_the_parent_are_not_the_childs(tmp_path: Path) -> None:
    code = (
        "import os, sys\nfrom overrun import Decode\n"
        "decode = Decode(); decode.step(8)\n"
        "pid = os.fork()\n"
        "if not pid:\n    decode.step(0); sys.exit(0)\n"
        "os.waitpid(pid, 0)"
    )
    _, run = python(tmp_path, code, options={"guard_eager": "auto"})
    assert [len(process.findings) for process in run.processes] == [1, 0]


def test_damage_before_a_fork_is_found_once_by_the_parent(tmp_path: Path) -> None:
    code = (
        "import ctypes, os, sys\nfrom overrun import Decode\n"
        "decode = Decode(); ctypes.memset(decode.page_table.data_ptr() + 64, 1, 8)\n"
        "pid = os.fork()\n"
        "if not pid:\n    decode.step(0); sys.exit(0)\n"
        "os.waitpid(pid, 0)"
    )
    _, run = python(tmp_path, code, backend="host", options={"guard_eager": "auto"})
    assert [len(process.findings) for process in run.processes] == [1, 0]


def test_a_child_that_makes_way_for_another_program_leaves_no_file(tmp_path: Path) -> None:
    code = (
        "import subprocess, torch\ntorch.zeros(1)\n"
        "subprocess.run(['true'], preexec_fn=lambda: None, check=True)\nprint('done')"
    )
    done, run = python(tmp_path, code)
    assert done.stdout == "done\n"
    assert only(run).ended == "exit"


def test_several_threads_may_fork_at_a_time(tmp_path: Path) -> None:
    code = (
        "import os, threading, torch\ntorch.zeros(1)\n"
        "def fork():\n"
        "    for _ in range(5):\n"
        "        pid = os.fork()\n        if not pid: os._exit(0)\n        os.waitpid(pid, 0)\n"
        "threads = [threading.Thread(target=fork) for _ in range(4)]\n"
        "for thread in threads: thread.start()\n"
        "for thread in threads: thread.join()\n"
        "free = threading.Thread(target=torch.zeros, args=(8,)); free.start(); free.join(30)\n"
        "print(free.is_alive())"
    )
    done, run = python(tmp_path, code, options={"guard_eager": "auto"})
    assert done.stdout == "False\n", done.stderr  # none of our locks was left taken
    assert only(run).ended == "exit"


def test_dumps_come_when_they_are_due(tmp_path: Path) -> None:
    config = {"options": {"guard_eager": "auto"}, "dumps": ("findings", "exception", "exit")}
    done, run = python(tmp_path, "from overrun import run\nrun(8)\nraise ValueError('their own')", **config)
    assert "ValueError: their own" in done.stderr
    assert sum("dump written: " in event for event in only(run).events) == 3
    dumps = {dump.manifest.reason: dump.facts() for dump in map(read_dump, run.dumps)}
    assert set(dumps) == {"finding", "exception", "exit"}
    assert [len(facts.findings) for facts in dumps.values()] == [1, 1, 1]
    assert dumps["exit"].findings[0].past_end == 8


def test_the_first_finding_is_on_record_and_its_dump_is_written_while_the_program_goes_on(tmp_path: Path) -> None:
    code = (
        f"import os, threading; folder = {str(tmp_path / 'run')!r}\n"
        "from overrun import Decode\nfrom shadowgraph.dumps import taking\n"
        "disk, write = threading.Event(), taking.write_dump\n"
        "taking.write_dump = lambda *words: (disk.wait(60), write(*words))\n"
        "decode = Decode()\ndecode.step(8)\n"
        "(file,) = [name for name in os.listdir(folder) if name.startswith('findings')]\n"
        'print(open(os.path.join(folder, file)).read().count(\'"kind":"finding"\'))\n'
        "print(len([name for name in os.listdir(folder) if name.endswith('.dump')]))\n"
        "decode.step(0); disk.set()\n"
    )
    done, run = python(tmp_path, code, options={"guard_eager": "auto"}, dumps=("findings",))
    assert done.stdout == "1\n0\n", done.stderr
    (dump,) = map(read_dump, run.dumps)
    assert (dump.manifest.reason, [found.past_end for found in dump.facts().findings]) == ("finding", [8])
    assert sum("dump written: " in event for event in only(run).events) == 1


def test_a_dump_that_cannot_be_written_is_said_at_the_end(tmp_path: Path) -> None:
    code = (
        "import threading\nfrom overrun import run\nfrom shadowgraph.dumps import taking\n"
        "taking.LIMIT, taking.write_dump = 0.2, lambda *words: threading.Event().wait()\n"
        "run(8)\n"
    )
    done, run = python(tmp_path, code, options={"guard_eager": "auto"}, dumps=("findings",))
    assert done.returncode == 0, done.stderr
    assert not run.dumps
    assert "a dump was not written within 0.2 s of the end" in only(run).events
    assert only(run).ended == "exit"


def test_a_second_debugger_does_not_write_over_the_first_ones_dump(tmp_path: Path) -> None:
    code = (
        "import shadowgraph\nfrom overrun import run\n"
        "for past_end in (8, 4):\n"
        "    with shadowgraph.debug(guard_eager='auto'): run(past_end)"
    )
    done, run = python(tmp_path, code, dumps=("findings",))
    assert done.returncode == 0, done.stderr
    assert len(only(run).findings) == 2  # of two debuggers
    (dump,) = map(read_dump, run.dumps)
    assert dump.facts().findings[0].past_end == 8


def test_a_signal_asks_for_a_dump_and_the_program_goes_on(tmp_path: Path) -> None:
    code = (
        f"import os, signal, time; folder = {str(tmp_path / 'run')!r}\n"
        "from overrun import Decode\n"
        "decode = Decode()\ndecode.step(0)\n"
        "for count in (1, 2):\n"
        "    os.kill(os.getpid(), signal.SIGUSR2)\n"
        "    while len([n for n in os.listdir(folder) if n.endswith('-signal.dump')]) < count: time.sleep(0.01)\n"
        "decode.step(8)\nprint('goes on')"
    )
    done, run = python(tmp_path, code, options={"guard_eager": "auto"}, dump_signal="USR2")
    assert done.stdout == "goes on\n", done.stderr
    dumps = [read_dump(path) for path in run.dumps]
    assert [dump.manifest.reason for dump in dumps] == ["signal", "signal"]
    assert all(dump.facts().findings == () and dump.buffers for dump in dumps)
    assert len(only(run).findings) == 1


def test_a_signal_that_the_program_handles_is_its_own(tmp_path: Path) -> None:
    code = (
        "import os, signal\n"
        "signal.signal(signal.SIGUSR2, lambda *_: print('theirs', flush=True))\n"
        "from overrun import run\nrun(0)\nos.kill(os.getpid(), signal.SIGUSR2)"
    )
    done, run = python(tmp_path, code, options={"guard_eager": "auto"}, dump_signal="USR2")
    assert done.stdout == "theirs\n"
    assert run.dumps == ()


def test_a_dump_that_fails_is_a_fault(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, shadowgraph.dumps.writer as writer\n"
        "def fsync(number): raise OSError(28, os.strerror(28))\n"
        "writer.os.fsync = fsync\n"
        "from overrun import run\nrun(8)\nprint('goes on')"
    )
    done, run = python(tmp_path, code, options={"guard_eager": "auto"}, dumps=("findings",), quiet=True)
    assert done.stdout == "goes on\n"
    (fault,) = only(run).faults
    assert "No space left on device" in fault
    assert (len(only(run).findings), run.dumps) == (1, ())


@pytest.mark.parametrize(("version", "count", "chosen"), [(None, 8, "host"), ("13.0", 0, "host"), ("13.0", 2, "cuda")])
def test_auto_asks_the_driver_without_starting_it(
    version: str | None, count: int, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "cuda", version)
    monkeypatch.setattr(torch.cuda, "_device_count_nvml", lambda: count)
    assert resolved("auto") == chosen
    assert resolved("host") == "host"


@pytest.mark.parametrize(
    ("launcher", "said", "early"), [("", 3, False), ("", 3, True), ("1", 1, False), ("3", 3, True)]
)
def test_a_rank_that_the_program_tells_is_the_processs_and_its_findings(
    tmp_path: Path, launcher: str, said: int, early: bool
) -> None:
    """As a server's scheduler knows it, which no launcher has started; what a launcher says counts more."""
    code = (
        f"import os\nif {launcher!r}: os.environ['RANK'] = {launcher!r}\n"
        "import torch\nfrom overrun import Decode\ndecode = Decode()\n"
        "from shadowgraph.integrations import notices\n"
        + "decode.step(8)\n" * early
        + "notices.place(3)\nnotices.place(3)\n"
        + "decode.step(8)"
    )
    done, run = python(tmp_path, code, not launcher, backend="host", options={"guard_eager": "auto"})
    assert done.returncode == 0, done.stderr
    process = only(run)
    assert process.rank == said
    assert [finding.rank for finding in process.findings] == [said]
    assert process.path.read_text().count('"kind":"rank"') == (not launcher)
    assert f"rank {said}" in str(RunReport(run))


@pytest.mark.parametrize(("locate", "reruns"), [("auto", False), ("all", True)])
def test_graphs_are_run_in_part_only_where_that_was_asked_for(tmp_path: Path, locate: str, reruns: bool) -> None:
    """The options of the wrap count for a debugger that the program starts, too; the rest of that one is its own."""
    code = (
        "import torch, shadowgraph as sg\n"
        "from shadowgraph.checks.stale_rows.check import StaleRows\n"
        f"debugger = sg.install(backend='host', locate={locate!r})\n"
        "assert debugger.monitor.locator.reruns\n"
        "torch.zeros(4)\n"
        "print(debugger.monitor.locator.reruns, debugger.monitor.checks[StaleRows].lenient)"
    )
    options = {"partial_reruns": False, "stale_rows": "note"}
    done, _ = python(tmp_path, code, backend="host", options=options)
    assert done.stdout == f"{reruns} False\n", done.stderr


def test_a_wrap_s_own_debugger_has_the_options_of_the_wrap(tmp_path: Path) -> None:
    code = (
        "import torch\ntorch.zeros(4)\nimport shadowgraph as sg\nwork = sg.current().monitor\n"
        "from shadowgraph.checks.stale_rows.check import StaleRows\n"
        "print(work.locator.reruns, work.checks[StaleRows].lenient)"
    )
    options = {"partial_reruns": False, "stale_rows": "note"}
    done, _ = python(tmp_path, code, backend="host", options=options)
    assert done.stdout == "False True\n", done.stderr
