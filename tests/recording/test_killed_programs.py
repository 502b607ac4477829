"""Programs that are killed: what their run says about the last check, from their logs alone."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.launch_logs import note_batch
from support.wrapping import Wrapped, environment, program, wrap, wrap_words

from shadowgraph.commands.main import main
from shadowgraph.model import check_log, launch_log_format
from shadowgraph.model.check_log import CheckLog
from shadowgraph.model.launch_log import LaunchLog
from shadowgraph.model.recorded_files import CHECKS, LAUNCHES, SHARED_MEMORY, in_folder, new_token, remove_leftovers
from shadowgraph.render.text.last_check_text import last_check_lines
from shadowgraph.render.text.run_text import RunReport
from shadowgraph.wrap.folder.last_check import LastCheck
from shadowgraph.wrap.folder.reader import read_run
from shadowgraph.wrap.status.page import status_page

REPLAYS = 5


def killed(tmp_path: Path, *words: str, options: tuple[str, ...] = (), code: int = -signal.SIGKILL) -> Wrapped:
    done = wrap(tmp_path, *program("recorded.py", *words), options=options)
    assert done.code == code, done.err
    return done


def last_of(folder: Path) -> LastCheck:
    """The last check of the only process, without what its findings log says."""
    (process,) = read_run(folder).processes
    assert process.last_check is not None
    return process.last_check


def said(last: LastCheck) -> str:
    return "\n".join(last_check_lines(last))


@pytest.mark.parametrize(
    ("place", "how", "checked", "found"),
    [
        ("after", "replay", 5, (5, True)),
        ("after", "prepare", 5, (5, False)),
        ("after", "clean", 5, None),
        ("prepare", "clean", 4, None),
        ("prepare", "prepare", 4, None),  # nothing has looked since
        ("replay", "clean", 4, None),
        ("replay", "replay", 4, None),
        ("replay", "prepare", 4, (5, False)),
        ("before", "clean", 0, None),
    ],
)
def test_the_last_check_is_named(
    place: str, how: str, checked: int, found: tuple[int, bool] | None, tmp_path: Path
) -> None:
    done = killed(tmp_path, place, how, str(REPLAYS))
    for log in done.folder.glob("findings-*"):  # the findings are left out of what is read
        kept = [line for line in log.read_text().splitlines() if '"kind":"start"' in line or '"kind":"watch"' in line]
        log.write_text("".join(f"{line}\n" for line in kept))
    last = last_of(done.folder)
    assert (last.replay, last.clean, last.unread) == (checked, found is None, ())
    assert [(each.replay, each.tail) for each in last.damages] == ([found] if found else [])
    if found:
        (damage,) = last.damages
        assert (damage.buffer, damage.nbytes, damage.first, damage.last) == ("decode.page_table", 64, 64, 71)
        assert damage.found == "01 01 01 01 01 01 01 01"
        assert len(damage.expected) == 23
        assert "8 bytes, 0 bytes past the end of decode.page_table (64 bytes)" in said(last)
    kernels = [launch.kernel for launch in last.launches]
    if place == "after":
        assert not last.running
        assert not kernels
        assert said(last).startswith(f"last check: replay 5 of graph#1, {'and damage' if found else 'clean'}")
    if place == "prepare":
        assert not last.running
        assert "aten.copy_.default" in kernels
        assert "not checked since replay 4 of graph#1: the process ended after" in said(last)
        (copy,) = (launch for launch in last.launches if launch.kernel == "aten.copy_.default")
        assert copy.function == "prepare"
        assert copy.given == ("int32[4, 4] from recorded.py:31", "int32[4] from recorded.py:32")
    if place == "replay":
        assert (last.running, last.running_replay, last.head_checked) == ("graph#1", 5, True)
        assert "not checked since replay 4 of graph#1: the process ended in replay 5 of graph#1" in said(last)
        assert "aten.copy_.default" in kernels
    assert "no last check" not in done.err.lower()


def test_a_process_without_a_graph_has_one_line(tmp_path: Path) -> None:
    code = "import os, torch; torch.zeros(4).add_(1); os.kill(os.getpid(), 9)"
    done = wrap(tmp_path, sys.executable, "-c", code)
    last = last_of(done.folder)
    assert (last.captured, last.unread) == (False, ())
    assert [*last_check_lines(last)] == ["last check: none, as no graph was captured"]


def test_a_program_that_ends_by_itself_leaves_no_logs(tmp_path: Path) -> None:
    done = killed(tmp_path, "none", "clean", "3", code=0)
    (process,) = done.run.processes
    assert process.last_check is None
    assert not [*done.folder.glob("checks-*"), *done.folder.glob("launches-*")]
    assert not leftovers(done.folder)


def leftovers(folder: Path) -> list[Path]:
    """Logs of a run in shared memory."""
    token = json.loads((folder / "run.json").read_text())["settings"]["run"]
    return [*Path(SHARED_MEMORY).glob(f"shadowgraph-{token}-*")]


def test_report_and_json_of_a_run_have_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = killed(tmp_path, "after", "replay", "3")
    assert "last check: replay 3 of graph#1, and damage was found" in done.err
    assert not leftovers(done.folder), "brought into the folder"
    assert main(["report", str(done.folder)]) == 0
    assert "first found by the check at the end of replay 3 of graph#1" in capsys.readouterr().out
    assert main(["report", str(done.folder), "--json"]) == 0
    text = capsys.readouterr().out
    (process,) = json.loads(text)["run"]["processes"]
    assert process["last_check"]["replay"] == 3
    assert process["last_check"]["damages"][0]["buffer"] == "decode.page_table"
    (tmp_path / "saved.json").write_text(text)
    assert main(["report", str(tmp_path / "saved.json")]) == 0
    assert main(["report", str(done.folder), "--html", str(tmp_path / "page.html")]) == 0
    assert "last check: replay 3 of graph#1" in (tmp_path / "page.html").read_text()
    page = status_page(RunReport(done.run)).decode()
    assert f"process {process['pid']}: last check: replay 3 of graph#1" in page


def test_a_redacted_run_has_the_place_and_no_values(tmp_path: Path) -> None:
    done = killed(tmp_path, "after", "replay", "3", options=("--redact",))
    (damage,) = last_of(done.folder).damages
    assert (damage.first, damage.last, damage.found) == (64, 71, "")
    (path,) = done.folder.glob("checks-*")
    assert not check_log.read(path).records["found"].any()


def test_a_run_whose_supervisor_died_too_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = (
        "import sys, time; sys.argv[1:] = ['none', 'clean', '4']\n"
        "import recorded; recorded.run('none', 'clean', 4); print('ran', flush=True); time.sleep(120)"
    )
    words = [*wrap_words(tmp_path / "run"), sys.executable, "-c", code]
    cwd = Path(__file__).parents[1] / "runs" / "programs"
    with subprocess.Popen(words, env=environment(), cwd=cwd, stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        assert supervisor.stdout.readline() == "ran\n"
        supervisor.kill()
        supervisor.wait()
    run = read_run(tmp_path / "run")
    assert "last check: replay 4 of graph#1, clean\n" in str(RunReport(run))
    assert "the process ended" not in str(RunReport(run)), "it still runs"
    (process,) = run.processes
    os.kill(process.pid, signal.SIGKILL)
    wait_for_end(process.pid)
    try:
        (still_there,) = leftovers(tmp_path / "run")
        assert main(["report", str(tmp_path / "run")]) == 0
        assert "last check: replay 4 of graph#1, clean" in capsys.readouterr().out
        os.utime(still_there, (0, 0))
        remove_leftovers()  # as the next wrap does
        assert not leftovers(tmp_path / "run")
        assert last_of(tmp_path / "run").replay == 4
    finally:
        for path in leftovers(tmp_path / "run"):
            path.unlink()


def wait_for_end(pid: int) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX":
                return
        except FileNotFoundError:
            return
        time.sleep(0.05)
    raise AssertionError(f"process {pid} is still there")


def test_a_forked_child_has_logs_of_its_own(tmp_path: Path) -> None:
    done = killed(tmp_path, "none", "forked", "3")
    parent, child = done.run.processes
    assert parent.last_check is not None
    assert child.last_check is not None
    assert (parent.last_check.replay, parent.last_check.clean) == (1, True)
    assert (child.last_check.replay, child.last_check.clean) == (4, False)
    assert child.last_check.damages[0].replay == 2


def test_full_shared_memory_costs_what_outlives_the_process_and_says_so(tmp_path: Path) -> None:
    full = tmp_path / "sitecustomize.py"
    full.write_text(
        "import os\n"
        "def full(number, *rest, keep=os.posix_fallocate):\n"
        "    if os.readlink(f'/proc/self/fd/{number}').startswith('/dev/shm/'):\n"
        "        raise OSError(28, 'No space left on device')\n"
        "    return keep(number, *rest)\n"
        "os.posix_fallocate = full\n"
    )
    own = environment(PYTHONPATH=os.pathsep.join([str(tmp_path), environment()["PYTHONPATH"]]))
    done = wrap(tmp_path, *program("recorded.py", "after", "replay", "3"), env=own, warm=False)
    assert done.code == -signal.SIGKILL
    assert "the check log would not survive a kill of the process: /dev/shm: No space left on device" in done.err
    assert len(done.run.merged().findings) == 1
    last = last_of(done.folder)
    assert last.replay == 0
    assert last.unread == (f"cannot read checks-{stem_of(done.folder)}.log: No such file or directory",)


def stem_of(folder: Path) -> str:
    (log,) = folder.glob("findings-*")
    return log.stem.removeprefix("findings-")


@pytest.mark.parametrize("kind", [CHECKS, LAUNCHES])
@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda content: content[:777], "777 bytes instead of"),
        (lambda content: b"", "0 bytes instead of"),
        (lambda content: content[:8] + b"\x07" + content[9:], "of version 7; this shadowgraph reads"),
        (lambda content: os.urandom(len(content)), "is no "),
        (None, "No such file or directory"),
    ],
    ids=["truncated", "empty", "version", "hostile", "missing"],
)
def test_a_log_that_cannot_be_read_is_one_line_and_the_rest_is_read(
    kind: str, spoil: object, told: str, one_run: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(one_run, folder)
    path = Path(in_folder(folder, stem_of(folder), kind))
    content = path.read_bytes()
    path.unlink()
    if callable(spoil):
        path.write_bytes(spoil(content))
    (process,) = read_run(folder).processes
    assert process.last_check is not None
    assert len(process.findings) == 1
    (line,) = process.last_check.unread
    assert told in line
    assert "\n" not in line
    report = str(RunReport(read_run(folder)))
    assert line in report
    assert "SG101" in report
    if kind == LAUNCHES:  # the check log alone names what it can
        assert process.last_check.replay == 3
        assert process.last_check.damages[0].count == 8


@pytest.fixture(scope="module")
def one_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return killed(tmp_path_factory.mktemp("killed"), "after", "replay", "3").folder


def test_texts_of_a_hostile_log_reach_no_terminal(one_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(one_run, folder)
    path = Path(in_folder(folder, stem_of(folder), LAUNCHES))
    path.unlink()
    log = LaunchLog.create(path)
    log.graph(1, "\x1b[31mred\x07")
    log.replay(1, 3, False)
    note_batch(log, "\x1b]0;title\x07 \u202e")
    log.launch(log.kernel("a\nb"), log.site("\x1b.py", 1, "f"), 0, (1, 1, 1), [])
    report = str(RunReport(read_run(folder)))
    assert "red" in report
    assert "title" in report
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\x9b]", report)


def test_leftovers_of_dead_processes_go_and_those_of_living_ones_stay(tmp_path: Path) -> None:
    token = new_token()
    paths = [Path(SHARED_MEMORY, f"shadowgraph-{token}-{pid}-1{CHECKS}") for pid in (1, 2)]
    alone = Path(SHARED_MEMORY, f"shadowgraph-alone-3-{time.time_ns()}{LAUNCHES}")
    child = os.fork()
    if not child:
        CheckLog.create(paths[0], folder=tmp_path / "gone")
        os._exit(0)
    os.waitpid(child, 0)
    living = CheckLog.create(paths[1])
    alone.write_bytes(bytes(launch_log_format.NBYTES))
    try:
        remove_leftovers()
        assert paths[0].exists(), "it may have been made just now"
        for path in (*paths, alone):
            os.utime(path, (time.time() - 3600,) * 2)
        remove_leftovers()
        assert not paths[0].exists()
        assert paths[1].exists()
        assert alone.exists(), "kept for a day, as it belongs to no run"
        os.utime(alone, (0, 0))
        remove_leftovers()
        assert not alone.exists()
    finally:
        living.remove()
        alone.unlink(missing_ok=True)
        paths[0].unlink(missing_ok=True)
