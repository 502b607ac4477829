"""How a wrapped process ends, told right; what it finds with no descriptor and no disk left."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.wrapping import PROGRAMS, Wrapped, environment, program, wrap, wrap_words

PATH = {"PYTHONPATH": f"{environment()['PYTHONPATH']}:{PROGRAMS}"}


def python(tmp_path: Path, code: str, *options: str) -> Wrapped:
    return wrap(tmp_path, sys.executable, "-c", code, options=options, env=environment(**PATH))


def told(done: Wrapped) -> list[str]:
    (process,) = done.run.processes
    return [event for event in process.events if not event.startswith("dump written")]


CAUGHT = "def step():\n    raise ValueError('caught')\ntry:\n    step()\nexcept ValueError as error:\n    "


@pytest.mark.parametrize(
    "code",
    [
        f"import sys\n{CAUGHT}sys.last_value, sys.last_traceback = error, error.__traceback__\nprint('goes on')",
        f"import sys\n{CAUGHT}sys.last_value, sys.last_traceback = error, error.__traceback__\n    sys.exit(0)",
        f"import sys\n{CAUGHT}sys.last_value, sys.last_traceback = error, error.__traceback__\nraise SystemExit(0)",
        "import code\ncode.InteractiveInterpreter().runsource('1/0')\nprint('goes on')",
        "import sys\nsys.exit(0)",
    ],
)
def test_what_was_caught_did_not_end_the_program(code: str, tmp_path: Path) -> None:
    done = python(tmp_path, f"from overrun import run; run(0)\n{code}")
    assert done.code == 0
    assert told(done) == []
    assert done.run.dumps == ()


@pytest.mark.parametrize(
    "code",
    [
        "def step():\n    raise ValueError('their own')\nstep()",
        "try:\n    raise ValueError('their own')\nfinally:\n    print('on the way')",
        "try:\n    raise ValueError('their own')\nexcept ValueError:\n    print('on the way')\n    raise",
        "with open('/dev/null'):\n    raise ValueError('their own')",
        "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise ValueError('their own') from error",
        "import asyncio\nasync def step():\n    raise ValueError('their own')\nasyncio.run(step())",
    ],
)
def test_what_was_not_caught_did(code: str, tmp_path: Path) -> None:
    done = python(tmp_path, f"from overrun import run; run(0)\n{code}")
    assert done.code == 1
    assert told(done) == ["ended by ValueError: their own"]
    assert [path.name.rsplit("-", 1)[1] for path in done.run.dumps] == ["exception.dump"]


def test_a_module_that_is_run_by_name_ends_by_its_exception(tmp_path: Path) -> None:
    (tmp_path / "served.py").write_text("from overrun import run\nrun(0)\nraise ValueError('their own')")
    done = wrap(tmp_path, sys.executable, "-m", "served", env=environment(**PATH))
    assert told(done) == ["ended by ValueError: their own"]


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise ValueError('their own')", "the program ended by ValueError"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGABRT)", "the program was ended by SIGABRT"),
    ],
)
def test_no_finding_before_an_early_end_is_no_reassurance(code: str, said: str, tmp_path: Path) -> None:
    done = python(tmp_path, f"import torch\ntorch.zeros(3)\n{code}")
    assert f"\nshadowgraph: no findings before {said}; no graph was replayed\n" in done.err
    assert done.run.merged().endings == (said,)


def test_an_end_after_replays_is_told_without_them(tmp_path: Path) -> None:
    done = python(tmp_path, "from overrun import run; run(0)\nraise ValueError('their own')")
    assert "\nshadowgraph: no findings before the program ended by ValueError\n" in done.err


def test_a_program_that_ends_by_itself_has_no_early_end(tmp_path: Path) -> None:
    done = python(tmp_path, "from overrun import run; run(0)")
    assert "\nshadowgraph: no findings\n" in done.err
    assert done.run.merged().endings == ()


def test_a_program_that_fails_before_torch_is_told_as_unwatched(tmp_path: Path) -> None:
    done = python(tmp_path, "import sys\nsys.exit(3)")
    assert "nothing was watched before the program ended with exit code 3" in done.err
    assert "no findings" not in done.err


@pytest.mark.parametrize("interpreted", [True, False])
def test_triton_without_a_gpu_is_told_what_to_set(interpreted: bool, tmp_path: Path) -> None:
    unset = "" if interpreted else "import os\nos.environ.pop('TRITON_INTERPRET', None)\n"
    raising = "raise RuntimeError('0 active drivers ([]). There should only be one.')"
    done = python(tmp_path, f"{unset}import torch\ntorch.zeros(3)\n{raising}")
    hints = [line for line in told(done) if "TRITON_INTERPRET=1" in line]
    assert len(hints) == (not interpreted), done.err


def test_a_failing_test_is_no_end_of_pytest(tmp_path: Path) -> None:
    (tmp_path / "test_inside.py").write_text(
        "from overrun import run\n\ndef test_fails():\n    run(0)\n    assert 0, 'theirs'\n\n"
        "def test_runs():\n    run(0)\n"
    )
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_inside.py"]
    done = wrap(tmp_path, *words, env=environment(**PATH))
    assert (done.code, "1 failed, 1 passed" in done.out) == (1, True), done.out + done.err
    assert told(done) == []
    assert done.run.dumps == ()


def test_ctrl_c_is_no_crash(tmp_path: Path) -> None:
    code = "from overrun import run; run(0); print('ready', flush=True)\nimport time\nwhile True: time.sleep(1)"
    words = [*wrap_words(tmp_path / "run"), sys.executable, "-c", code]
    with subprocess.Popen(
        words, env=environment(**PATH), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as supervisor:
        assert supervisor.stdout is not None
        assert supervisor.stdout.readline() == "ready\n"
        supervisor.send_signal(signal.SIGINT)
        supervisor.communicate(timeout=120)
    done = Wrapped(supervisor.returncode, "", "", tmp_path / "run")
    assert done.code == -signal.SIGINT
    assert told(done) == ["stopped, which is no crash, by KeyboardInterrupt"]
    assert (done.run.processes[0].ended, done.run.dumps) == ("exit", ())


def test_a_pipe_whose_reader_has_gone_is_no_crash(tmp_path: Path) -> None:
    code = (
        "import os, signal\nfrom overrun import run; run(0)\nread, write = os.pipe()\nos.close(read)\n"
        "signal.signal(signal.SIGPIPE, signal.SIG_IGN)\nos.write(write, b'x')"
    )
    done = python(tmp_path, code)
    assert done.code == 1
    assert told(done) == ["stopped, which is no crash, by BrokenPipeError"]
    assert done.run.dumps == ()


def test_left_by_os_exit(tmp_path: Path) -> None:
    done = wrap(tmp_path, *program("dies.py", "_exit"))
    assert done.code == 5
    assert "exit code 5" in done.err
    assert "killed" not in done.err
    assert "host, os._exit, 1 finding" in done.err


def test_out_of_descriptors_no_finding_is_lost(tmp_path: Path) -> None:
    """The check, the record, the dump and the end of the process, with none left; a child of a fork too."""
    code = (
        "import os, resource, sys\nfrom overrun import Decode\n"
        "decode = Decode(); decode.step(0)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (96, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))\n"
        "taken = []\n"
        "try:\n    while True: taken.append(os.open('/dev/null', os.O_RDONLY))\n"
        "except OSError as error: print(error.strerror)\n"
        "assert 'numpy.ma' in sys.modules\n"
        "decode.step(8)\n"
        "pid = os.fork()\n"
        "if not pid:\n    decode.step(12); sys.exit(0)\n"
        "assert os.waitpid(pid, 0)[1] == 0\n"
        "print('done', flush=True)\n"
        "raise ValueError('their own')"
    )
    done = python(tmp_path, code, "--error-exitcode", "9", "--dump", "findings,exception,exit")
    assert (done.code, done.out) == (1, "Too many open files\ndone\n"), done.err
    assert sorted(finding.past_end for finding in done.run.merged().findings) == [8, 12], done.err
    parent, child = done.run.processes
    assert (parent.ended, child.ended, parent.faults, child.faults) == ("exit", "exit", [], [])
    assert {path.name.rsplit("-", 1)[1] for path in done.run.dumps if f"-{parent.pid}-" in path.name} == {
        "finding.dump", "exception.dump", "exit.dump",
    }  # fmt: skip
    assert any("ended by ValueError: their own" in event for event in parent.events)


def test_with_no_disk_left_the_program_goes_on_and_what_is_lost_is_counted(tmp_path: Path) -> None:
    """A limit of a file's size stands for a full disk; the supervisor's own files are below it."""
    code = (
        "import resource\nfrom overrun import run\nrun(0)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))\n"
        "run(8)\nprint('goes on')"
    )
    done = python(tmp_path, code)
    assert (done.code, done.out) == (0, "goes on\n")
    assert "SG101 out-of-bounds write" in done.err, "it is told on standard error"
    assert done.err.count("the program goes on, what it finds waits in memory") == 1
    assert "records, 1 of them findings, could not be written" in done.err
    assert "exit code 0" in done.err
    assert "has not ended" not in done.err


def test_a_redacted_run_says_nothing_on_standard_error_either(tmp_path: Path) -> None:
    """Keys, values of rules, texts of exceptions: of findings, of faults, of what cannot start."""
    code = (
        "import torch, shadowgraph as sg\nfrom shadowgraph import HostGraph, host_graph\n"
        "indptr = torch.zeros(5, dtype=torch.int32)\n"
        "graph = HostGraph()\n"
        "with host_graph(graph): out = indptr.sum()\n"
        "debugger = sg.current()\n"
        "held = {'token SECRET123': indptr}\n"
        "debugger.name('held', held)\n"
        "debugger.invariant(indptr, sg.nondecreasing)\n"
        "from shadowgraph.common.internal_errors import internal_errors\n"
        "graph.replay()\n"
        "indptr.copy_(torch.tensor([0, 0, 15043, 7, 7], dtype=torch.int32))\n"
        "graph.replay()\n"
        "try: raise ValueError('prompt 15043')\nexcept ValueError as error: internal_errors.note('rule', error)\n"
        "print(len(debugger.findings))"
    )
    for name in ("plain", "redacted"):
        (tmp_path / name).mkdir()
    plain = python(tmp_path / "plain", code)
    done = python(tmp_path / "redacted", code, "--redact")
    assert (plain.out, done.out) == ("1\n", "1\n"), done.err
    for secret in ("SECRET123", "15043"):
        assert secret in plain.err
        assert secret not in done.err
    assert done.err.startswith("SG109 ")
    assert "shadowgraph fault in rule: ValueError (the program goes on)" in done.err
