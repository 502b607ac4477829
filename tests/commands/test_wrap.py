"""`shadowgraph wrap` as a command: streams, exit codes, folders, options, bad input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import warm
from support.wrapping import PROGRAMS, environment, program, wrap, wrap_words

from shadowgraph.commands.main import main

SAY = "import sys; print('out'); print('err', file=sys.stderr); print(sys.stdin.read())"


def one_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.startswith("shadowgraph: error: ")]
    assert len(lines) == 1, text
    assert "Traceback" not in text
    return lines[0]


def test_streams_are_the_programs_own(tmp_path: Path) -> None:
    words = [*wrap_words(tmp_path / "run", "--quiet"), sys.executable, "-c", SAY]
    done = subprocess.run(words, env=environment(), input="in", capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "out\nin\n", "err\n")


def test_findings_decide_the_exit_code_only_where_asked(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    done = wrap(tmp_path / "a", *program("overrun.py"), options=("--error-exitcode", "9", "--json", "report.json"))
    assert (done.code, done.out) == (9, "done\n")
    document = json.loads((tmp_path / "a" / "report.json").read_text())
    assert document["schema"] == "shadowgraph.report/2"
    assert [finding["code"] for finding in document["findings"]] == ["SG101"]
    assert document["findings"][0]["buffer"]["name"] == "decode.page_table"
    (process,) = document["run"]["processes"]
    assert (process["backend"], process["ended"], process["findings"]) == ("host", "exit", 1)
    assert document["findings"][0]["pid"] == process["pid"]
    assert wrap(tmp_path / "b", *program("overrun.py")).code == 0


def test_the_report_goes_to_standard_error(tmp_path: Path) -> None:
    done = wrap(tmp_path, *program("overrun.py"))
    assert done.out == "done\n"
    assert "SUMMARY: shadowgraph: SG101 out-of-bounds write" in done.err
    assert "start of" in done.err
    assert "run folder: run" in done.err


def test_quiet_says_nothing_and_writes_all(tmp_path: Path) -> None:
    done = wrap(tmp_path, *program("overrun.py"), options=("--quiet",))
    assert (done.code, done.out, done.err) == (0, "done\n", "")
    assert len(done.run.merged().findings) == 1


def test_options_after_the_dashes_belong_to_the_program(tmp_path: Path) -> None:
    code = "import sys; print(sys.argv[1:])"
    done = wrap(tmp_path, sys.executable, "-c", code, "--json", "x", "--", "--help", "-h")
    assert done.out == "['--json', 'x', '--', '--help', '-h']\n"
    assert not (tmp_path / "x").exists()


def test_a_program_without_torch(tmp_path: Path) -> None:
    done = wrap(tmp_path, "sh", "-c", "exit 3")
    assert done.code == 3
    assert "no Python process that imports torch was seen" in done.err


def test_what_the_hook_cannot_reach_is_said(tmp_path: Path) -> None:
    done = wrap(tmp_path, sys.executable, "-I", "-c", "import torch")
    assert done.code == 0
    assert "no Python process that imports torch was seen" in done.err


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ([], 2, "no command"),
        (["no-such-command-anywhere"], 127, "not found on the PATH"),
        (["./missing"], 127, "no such file"),
        (["./folder"], 126, "Permission denied"),
        (["./data.txt"], 126, "Permission denied"),
        (["./no-magic"], 126, "Exec format error"),
    ],
)
def test_commands_that_cannot_run(command: list[str], code: int, said: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "data.txt").write_text("no program")
    (tmp_path / "no-magic").write_text("no program")
    (tmp_path / "no-magic").chmod(0o755)
    done = wrap(tmp_path, *command)
    assert done.code == code
    assert said in one_line(done.err)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--error-exitcode", "0"), "--error-exitcode must be from 1 to 255"),
        (("--guard-memory", "much"), "--guard-memory must be bytes such as 512M"),
        (("--guard-memory", "-1"), "guard_memory must not be negative"),
        (("--guard-eager", "some"), "guard_eager must be off, auto, all or in:module:qualname"),
        (("--dump", "never,exit"), "--dump must be some of"),
        (("--backend", "tpu"), "invalid choice: 'tpu'"),
        (("--locate", "some"), "invalid choice: 'some'"),
        (("--overhead", "-3"), "--budget-percent must be a share of the time"),
        (("--budget-percent", "nan"), "--budget-percent must be a share of the time"),
        (("--every", "0"), "every must be a whole number from 1"),
        (("--every", "some"), "invalid int value: 'some'"),
        (("--status", "70000"), "--status must be a port from 1 to 65535"),
        (("--status", "-1"), "--status must be a port from 1 to 65535"),
        (("--status", "unix:"), "--status must be a port from 1 to 65535, 0 for any free one, or unix:PATH"),
        (("python",), "unrecognized arguments: python"),
    ],
)
def test_options_that_do_not_fit(options: tuple[str, ...], said: str, tmp_path: Path) -> None:
    done = wrap(tmp_path, "touch", "ran", options=options)
    assert done.code == 2
    assert said in one_line(done.err)
    assert not (tmp_path / "ran").exists()


def test_an_unknown_variable_is_refused_before_the_program_starts(tmp_path: Path) -> None:
    done = wrap(tmp_path, "touch", "ran", env=environment(SHADOWGRAPH_EVRY="4"))
    assert done.code == 2
    assert "no variable SHADOWGRAPH_EVRY (did you mean SHADOWGRAPH_EVERY?)" in one_line(done.err)
    assert not (tmp_path / "ran").exists()


def test_suppressions_are_read_before_the_program_starts(tmp_path: Path) -> None:
    done = wrap(tmp_path, "touch", "ran", options=("--suppressions", "missing.txt"))
    assert done.code == 3
    assert "missing.txt" in one_line(done.err)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("given", ["option", "variable"])
def test_a_bad_rule_is_told_before_the_program_starts(tmp_path: Path, given: str) -> None:
    (tmp_path / "known.txt").write_text("# mine\ncode=SG101 expires=soon\n")
    options = ("--suppressions", "known.txt") if given == "option" else ()
    env = environment(**({"SHADOWGRAPH_SUPPRESSIONS": "known.txt"} if given == "variable" else {}))
    done = wrap(tmp_path, "touch", "ran", options=options, env=env)
    assert done.code == 2
    assert "known.txt:2: expires must be a date such as 2027-01-31, not 'soon'" in one_line(done.err)
    assert not (tmp_path / "ran").exists()


RULES = """\
code=SG10? buffer=decode.page_table reason="known upstream"
kernel=never_launched
code=SG101 expires=2026-01-31
"""


def test_rules_count_over_the_processes_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "known.txt").write_text(RULES)
    words = " ".join(program("overrun.py"))
    options = ("--suppressions", "known.txt", "--error-exitcode", "9", "--json", "report.json")
    done = wrap(tmp_path, "sh", "-c", f"{words} && {words}", options=options)
    assert done.code == 0, done.err
    said = [line for line in done.err.splitlines() if line.startswith("suppress")]
    assert said == [
        "suppressed: 2 findings, 4 sightings",
        "suppression known.txt:1: 2 findings, 4 sightings: code=SG10? buffer=decode.page_table (known upstream)",
        "suppression known.txt:2: stale, hid nothing in this run: kernel=never_launched",
        "suppression known.txt:3: expired on 2026-01-31, hides nothing: code=SG101",
    ]
    facts = json.loads((tmp_path / "report.json").read_text())
    assert [rule["sightings"] for rule in facts["suppressions"]] == [4, 0, 0]
    assert len({finding["pid"] for finding in facts["hidden"]}) == len({f["id"] for f in facts["hidden"]}) == 2
    assert not list(done.folder.glob("*.dump")), "a suppressed finding writes none"


def test_a_rule_is_not_stale_in_a_run_that_was_cut_short(tmp_path: Path) -> None:
    (tmp_path / "known.txt").write_text("kernel=never_launched\n")
    code = "import os, torch; torch.zeros(3); os._exit(0)"
    done = wrap(tmp_path, sys.executable, "-c", code, options=("--suppressions", "known.txt"))
    assert done.run.processes[0].backend == "host", "precondition"
    assert "stale" not in done.err


def test_a_suppressed_finding_is_counted(tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    (finding,) = wrap(tmp_path / "first", *program("overrun.py")).run.merged().findings
    (tmp_path / "known.txt").write_text(f"{finding.fingerprint} known\n")
    options = ("--suppressions", "known.txt", "--error-exitcode", "9")
    code = f"import os, runpy; os.chdir('/'); runpy.run_path({str(PROGRAMS / 'overrun.py')!r}, run_name='__main__')"
    done = wrap(tmp_path, sys.executable, "-c", code, options=options)  # the program may change its folder
    assert done.code == 0, done.err
    assert done.run.merged().suppressed == 2


def test_a_folder_with_another_run_in_it_is_left_alone(tmp_path: Path) -> None:
    first = wrap(tmp_path, *program("overrun.py"))
    kept = {path.name: path.read_bytes() for path in first.folder.iterdir()}
    again = wrap(tmp_path, "touch", "ran")
    assert again.code == 15
    assert "holds another run already" in one_line(again.err)
    assert {path.name: path.read_bytes() for path in first.folder.iterdir()} == kept
    assert not (tmp_path / "ran").exists()


def test_folders_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for folder, said in (("full", "holds other files"), ("file", "is a file"), ("/proc/none", "cannot write")):
        done = wrap(tmp_path, "touch", "ran", options=("--run-dir", folder))
        assert done.code == 15, done.err
        assert said in one_line(done.err)
    assert not (tmp_path / "ran").exists()


def test_a_report_that_cannot_be_written_keeps_the_programs_code(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    failed = wrap(tmp_path / "a", "sh", "-c", "exit 5", options=("--json", "/dev/full"))
    assert failed.code == 5
    assert "cannot write /dev/full" in one_line(failed.err)
    done = wrap(tmp_path / "b", "true", options=("--json", "/dev/full"))
    assert done.code == 3
    assert "cannot write /dev/full" in done.err


def test_where_no_report_can_be_written_is_said_before_the_program_runs(tmp_path: Path) -> None:
    for place, said in (("no/x.json", "there is no folder no"), (".", "it is a folder")):
        done = wrap(tmp_path, "touch", "ran", options=("--json", place))
        assert (done.code, done.out) == (3, "")
        assert done.err == f"shadowgraph: error: cannot write {place}: {said}\n"
    assert os.listdir(tmp_path) == []


def test_a_full_disk_costs_findings_and_not_the_program(tmp_path: Path) -> None:
    """Files of at most one block stand for a disk that fills up: a write beyond fails as it would there."""
    code = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (900, 900)); import overrun; overrun.run(8)"
    env = environment(PYTHONPATH=os.pathsep.join([str(PROGRAMS), environment()["PYTHONPATH"]]))
    done = wrap(tmp_path, sys.executable, "-c", f"import signal; signal.signal(25, signal.SIG_IGN); {code}", env=env)
    assert done.code == 0, done.err
    assert done.err.count("the program goes on, what it finds waits in memory") == 1
    (process,) = done.run.processes
    assert process.cut or not process.findings


def test_a_folder_that_vanishes_costs_findings_and_not_the_program(tmp_path: Path) -> None:
    code = f"import shutil; shutil.rmtree({str(tmp_path / 'run')!r}); import overrun; overrun.run(8); print('fine')"
    env = environment(PYTHONPATH=os.pathsep.join([str(PROGRAMS), environment()["PYTHONPATH"]]))
    done = wrap(tmp_path, sys.executable, "-c", code, env=env)
    assert done.out == "fine\n"
    assert "cannot write" in done.err
    assert "Traceback" not in done.err


def test_the_default_folder_is_new_for_every_run(tmp_path: Path) -> None:
    for _ in range(2):
        words = [sys.executable, "-m", "shadowgraph", "wrap", "--", "true"]
        done = subprocess.run(words, env=environment(), cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0
    assert len(list((tmp_path / "shadowgraph-runs").iterdir())) == 2


def test_nested_wraps_keep_folders_of_their_own(tmp_path: Path) -> None:
    inner = wrap_words(tmp_path / "inner", "--quiet", "--error-exitcode", "9")
    done = wrap(tmp_path, *inner, *program("overrun.py"))
    assert done.code == 9  # the inner wrap is the outer one's program
    outer = done.run
    assert not outer.merged().findings
    assert str(tmp_path / "inner") in done.err
    from shadowgraph.wrap.folder.reader import read_run

    assert len(read_run(tmp_path / "inner").merged().findings) == 1


def test_two_wraps_side_by_side(tmp_path: Path) -> None:
    started = [
        warm.Process([*wrap_words(tmp_path / name, "--quiet"), *program("overrun.py")], environment())
        for name in ("a", "b")
    ]
    assert [process.wait(120) for process in started] == [0, 0]
    from shadowgraph.wrap.folder.reader import read_run

    assert [len(read_run(tmp_path / name).processes) for name in ("a", "b")] == [1, 1]


def test_help_names_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--help"], ["wrap", "--help"]):
        with pytest.raises(SystemExit):
            main(words)
    out = capsys.readouterr().out
    for said in ("demo", "doctor", "run any Python program, unchanged", "--guard-eager", "[options] -- command"):
        assert said in out


def test_the_supervisor_does_not_import_torch(tmp_path: Path) -> None:
    words = [*wrap_words(tmp_path / "run"), *program("overrun.py")][1:]
    code = (
        "import sys\nfrom shadowgraph.commands.main import main\n"
        f"assert main({words[2:]!r}) == 0\nassert 'torch' not in sys.modules, 'torch'"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "SUMMARY" in done.stderr


def test_variables_count_where_no_option_does(tmp_path: Path) -> None:
    words = (sys.executable, "-c", "pass")
    env = environment(SHADOWGRAPH_GUARD_EAGER="off", SHADOWGRAPH_LAYOUT="isolate", SHADOWGRAPH_OVERHEAD_PERCENT="5")
    done = wrap(tmp_path, *words, options=("--layout", "faithful", "--locate", "off"), env=env)
    settings = done.run.manifest["settings"]["options"]
    # Of a program that declares nothing and serves.
    own = {"stale_rows": "note", "partial_reruns": False, "operators": "auto"}
    expected = {"layout": "faithful", "locate": "off", "fault_limit": 1000, "watch_eager": "sampled", **own}
    assert settings == expected, "the rest is for each process to read"
    plain = wrap(tmp_path / "plain", *words, cwd=tmp_path)
    assert plain.run.manifest["settings"]["options"] == {
        "layout": "faithful", "guard_eager": "auto", "overhead_percent": 75.0, "fault_limit": 1000,
        "watch_eager": "sampled", **own,
    }  # fmt: skip


def test_a_command_without_the_dashes(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "shadowgraph", "wrap", sys.executable, "x.py"], env=environment(), cwd=tmp_path,
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert "no -- before the command" in done.stderr
