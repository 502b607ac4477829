"""Parents and children of every kind; ways to die; each process has a file of its own and loses no finding."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.wrapping import PROGRAMS, Wrapped, environment, program, wrap, wrap_words

SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "how",
    ["fork", "os_fork", pytest.param("spawn", marks=SLOW), pytest.param("forkserver", marks=SLOW),
     pytest.param("subprocess", marks=SLOW)],
)  # fmt: skip
def test_two_findings_in_two_children(how: str, tmp_path: Path) -> None:
    done = wrap(tmp_path, *program("children.py", how))
    assert done.code == 0, done.err
    run = done.run
    found = {finding.pid: finding.past_end for finding in run.merged().findings}
    assert sorted(found.values()) == [4, 12]
    children = {process.pid: process for process in run.processes if process.pid in found}
    assert len(children) == 2
    assert all(child.ended == "exit" and child.backend == "host" and child.summaries for child in children.values())
    if how in ("fork", "spawn"):
        assert all(child.title.endswith(": overrun.run") for child in children.values())
    assert [finding.id for finding in run.merged().findings] == [1, 2]
    assert not run.merged().faults
    (parent,) = {child.ppid for child in children.values()} if how != "forkserver" else {0}
    if parent:
        assert parent in {process.pid for process in run.processes}


@pytest.mark.parametrize(
    ("how", "code", "ended"),
    [
        ("exception", 1, "exit"),
        ("SIGKILL", -signal.SIGKILL, "killed"),
        ("SIGTERM", -signal.SIGTERM, "killed"),
        ("_exit", 5, "os._exit"),
        ("exit3", 3, "exit"),
    ],
)
def test_a_program_that_dies_keeps_its_findings(how: str, code: int, ended: str, tmp_path: Path) -> None:
    done = wrap(tmp_path, *program("dies.py", how), options=("--error-exitcode", "9"))
    assert done.code == code, done.err  # the program's own end wins
    (process,) = done.run.processes
    (finding,) = done.run.merged().findings
    assert (finding.past_end, process.ended) == (8, ended)
    assert "SUMMARY: shadowgraph: SG101" in done.err
    if how == "exception":
        assert "ValueError: the program's own" in done.err
        assert any("ended by ValueError: the program's own" in event for event in process.events)
    if ended != "exit":
        assert "last check: replay 2 of graph#1, and damage was found" in done.err
        assert "8 bytes, 0 bytes past the end of decode.page_table (64 bytes)" in done.err
        assert f"host, {ended}, 1 finding" in done.err


def test_a_supervisor_that_is_killed_leaves_a_run_that_can_be_read(tmp_path: Path) -> None:
    code = "from overrun import run; run(8); print('found', flush=True); import time; time.sleep(120)"
    words = [*wrap_words(tmp_path / "run"), sys.executable, "-c", code]
    with subprocess.Popen(words, env=environment(), cwd=PROGRAMS, stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        assert supervisor.stdout.readline() == "found\n"
        supervisor.kill()
        supervisor.wait()
        run = Wrapped(0, "", "", tmp_path / "run").run
        (process,) = run.processes
        os.kill(process.pid, signal.SIGKILL)
    assert process.ended == "running"
    assert run.merged().findings[0].past_end == 8
    assert "exit_code" not in run.manifest


@pytest.mark.slow
def test_pytest_xdist_inside(tmp_path: Path) -> None:
    (tmp_path / "test_inside.py").write_text(
        "import pytest\nfrom overrun import run\n\n"
        "@pytest.mark.parametrize('past_end', [4, 8, 12, 16])\n"
        "def test_decode(past_end):\n    run(past_end)\n"
    )
    env = environment(PYTHONPATH=os.pathsep.join([str(PROGRAMS), environment()["PYTHONPATH"]]))
    pytest_words = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "test_inside.py"]
    done = wrap(tmp_path, *pytest_words, env=env)
    assert done.code == 0, done.out + done.err
    assert "4 passed" in done.out
    found = done.run.merged().findings
    assert {finding.past_end for finding in found} <= {4, 8, 12, 16}
    assert max(finding.past_end for finding in found) == 16
    workers = [process for process in done.run.processes if process.findings]
    assert len(workers) == 2  # each has two of the four


@pytest.mark.slow
def test_torchrun_keeps_the_rank(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = wrap(tmp_path, *words, str(PROGRAMS / "overrun.py"))
    assert done.code == 0, done.err
    assert sorted(finding.rank for finding in done.run.merged().findings if finding.rank is not None) == [0, 1]


@pytest.mark.parametrize(("number", "sent"), [(signal.SIGTERM, 1), (signal.SIGUSR1, 1), (signal.SIGINT, 1)])
def test_signals_are_passed_on(number: signal.Signals, sent: int, tmp_path: Path) -> None:
    code = (
        "import signal, sys, time\n"
        f"signal.signal({int(number)}, lambda *a: (print('got it', flush=True), sys.exit(7)))\n"
        "print('ready', flush=True)\ntime.sleep(120)\n"
    )
    words = [*wrap_words(tmp_path / "run"), sys.executable, "-c", code]
    with subprocess.Popen(
        words, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as supervisor:
        assert supervisor.stdout is not None
        assert supervisor.stdout.readline() == "ready\n"
        supervisor.send_signal(number)
        out, _ = supervisor.communicate(timeout=60)
    assert out == sent * "got it\n"
    assert supervisor.returncode == 7


def test_a_terminals_interrupt_arrives_once(tmp_path: Path) -> None:
    """What a terminal sends to its foreground group reaches the program anyway; it must not come twice."""
    code = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGINT, lambda *a: print('got it', flush=True))\n"
        "print('ready', flush=True)\ntime.sleep(1.5)\ntime.sleep(1.5)\nsys.exit(4)\n"
    )
    import pty

    pid, terminal = pty.fork()
    if not pid:
        words = [*wrap_words(tmp_path / "run"), sys.executable, "-c", code]
        os.execve(words[0], words, environment())
    said = b""
    while b"ready" not in said:
        said += os.read(terminal, 1024)
    time.sleep(0.2)
    os.write(terminal, b"\x03")
    status = None
    while status is None:
        try:
            said += os.read(terminal, 1024)
        except OSError:
            status = os.waitpid(pid, 0)[1]
    assert said.count(b"got it") == 1
    assert os.waitstatus_to_exitcode(status) == 4


@pytest.mark.parametrize("what", ["queue", "pool", "loader"])
def test_guarded_tensors_can_be_shared_between_processes(what: str, tmp_path: Path) -> None:
    done = wrap(tmp_path, *program("sharing.py", what), options=("--guard-eager", "all", "--error-exitcode", "9"))
    assert (done.code, done.out) == (0, "shared\n"), done.err
    assert not done.run.merged().faults


def test_threads_that_begin_together_are_all_watched(tmp_path: Path) -> None:
    done = wrap(tmp_path, *program("together.py"))
    assert (done.code, done.out) == (0, "done\n"), done.err
    found = done.run.merged().findings
    assert [finding.past_end for finding in found] == [8, 8, 8]
    assert len({finding.graph for finding in found}) == 3


def test_a_redacted_run_quotes_nothing(tmp_path: Path) -> None:
    """Neither values of memory, nor the command line, nor what an exception says; and others may not read it."""
    code = (
        "import torch, ctypes; from overrun import Decode\n"
        "decode = Decode()\n"
        "ctypes.memmove(decode.page_table.data_ptr() + 64, b'TOKENS!!', 8)\n"
        "decode.graph.replay()\nraise ValueError('prompt 15043')"
    )
    env = environment()
    env["PYTHONPATH"] += os.pathsep + str(PROGRAMS)
    words = [sys.executable, "-c", code, "--api-key", "SECRET123"]
    done = wrap(tmp_path, *words, options=("--redact", "--dump", "findings,exception,exit"), env=env)
    assert done.code == 1
    (finding,) = done.run.merged().findings
    assert (finding.past_end, finding.window) == (8, None)
    folder = tmp_path / "run"
    held = b"".join(path.read_bytes() for path in folder.iterdir())
    report = done.err.split("shadowgraph wrap: ", 1)[1]
    assert len(done.run.dumps) == 3
    for secret in (b"TOKENS!!", b"TOKENS!!".hex().encode(), b"15043", b"SECRET123"):
        assert secret not in held
        assert secret.decode() not in report
    assert "ended by ValueError" in report
    assert folder.stat().st_mode & 0o77 == 0
    assert all(path.stat().st_mode & 0o77 == 0 for path in folder.iterdir())


def test_what_the_program_closed_stays_closed(tmp_path: Path) -> None:
    words = [*wrap_words(tmp_path / "run"), *program("overrun.py")]
    shell = " ".join(map(shlex.quote, words)) + " 2>&-"
    done = subprocess.run(
        ["sh", "-c", shell], env=environment(), cwd=PROGRAMS, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, "done\n")
    run = Wrapped(0, "", "", tmp_path / "run").run
    assert len(run.merged().findings) == 1
    assert not any("damaged" in limit for limit in run.merged().limits)


def test_the_programs_own_logging_hears_nothing(tmp_path: Path) -> None:
    code = "import logging, sys; logging.basicConfig(stream=sys.stdout); from overrun import run; run(8); print('done')"
    env = environment()
    env["PYTHONPATH"] += os.pathsep + str(PROGRAMS)
    done = wrap(tmp_path, sys.executable, "-c", code, env=env)
    assert done.out == "done\n"
    assert done.err.startswith("SG101 out-of-bounds write: ")
