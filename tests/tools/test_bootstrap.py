"""`tools/bootstrap.py`: what it would run, when it installs again, how it fails. No test needs a package index."""

from __future__ import annotations

import ast
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

PYTHON = sys.executable
TOOL = Path(__file__).resolve().parents[2] / "tools" / "bootstrap.py"
PYPROJECT = """
[project]
name = "thing"
[project.optional-dependencies]
math = ["triton==3.6.0", "numpy<2.4", "torch>=2"]
plot = ["matplotlib>=3.9"]
dev = ["thing[math, plot]", "torchmetrics", "pytest>=8"]
"""


def load_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bootstrap_under_test", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


bootstrap = load_tool()


def lines_of(capsys: pytest.CaptureFixture[str], *argv: str) -> list[list[str]]:
    """The commands of a dry run, each split into its words."""
    assert bootstrap.main([*argv, "--dry-run"] if "--" not in argv else ["--dry-run", *argv]) == 0
    return [shlex.split(line) for line in capsys.readouterr().out.splitlines()]


def step(code: str, title: str = "a step") -> object:
    return bootstrap.Step(title, (PYTHON, "-c", code))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder for an environment whose only installation step counts itself, and whose run prints one line."""
    venv = tmp_path / "v"
    count = f"open({str(tmp_path / 'count')!r}, 'a').write('x')"
    make = f"import os; os.makedirs('{venv}/bin'); os.symlink({PYTHON!r}, '{venv}/bin/python')"
    monkeypatch.setattr(bootstrap, "install_steps", lambda *_: [step(count), step(make)])
    monkeypatch.setattr(bootstrap, "run_steps", lambda *_: [step("raise SystemExit(12)")])
    monkeypatch.setattr(bootstrap, "PROBE", "pass")
    monkeypatch.setattr(bootstrap, "BYTES_NEEDED", 0)
    monkeypatch.setattr(bootstrap.sys, "executable", shutil.which("true"))  # in place of `python -m venv`
    return venv


def installs(venv: Path) -> int:
    return len((venv.parent / "count").read_text())


@pytest.mark.parametrize(
    ("command", "tools"), [("demo", []), ("test", ["ruff", "ruff", "mypy", "lint-imports", "sphinx"])]
)
def test_dry_run_lists_installation_and_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str, tools: list[str]
) -> None:
    venv = tmp_path / "v"
    made, *pips, sglang = (lines := lines_of(capsys, command, "--venv", str(venv)))[:5]
    assert made == [sys.executable, "-m", "venv", str(venv)]
    assert all(words[:4] == [f"{venv}/bin/python", "-m", "pip", "install"] for words in [*pips, sglang])
    assert all(str(venv / "constraints.txt") in words for words in [*pips[1:], sglang])
    assert sglang[-3:] == ["--no-deps", "triton==3.6.0", "sglang==0.5.12.post1"]
    assert "triton==3.6.0" not in pips[2], "torch's CUDA builds demand another Triton: together pip refuses both"
    assert [words[2] if words[1] == "-m" else Path(words[0]).name for words in lines[5:-1]] == tools
    assert not venv.exists()


def test_demo_and_test_have_their_defaults_and_arguments_in_their_place(capsys: pytest.CaptureFixture[str]) -> None:
    assert lines_of(capsys, "demo")[-1][1:] == [
        "demo",
        "--reports",
        "--picture",
        bootstrap.os.path.relpath(bootstrap.ROOT / "out" / "memory_map.png"),
    ]
    usual = [*["-q", "-n", "logical", "--dist", "worksteal", "--durations", "30"]]
    assert lines_of(capsys, "test")[-1][1:] == ["-m", "pytest", *usual]
    slow = lines_of(capsys, "test", "--slow")
    assert slow[-1][1:] == ["-m", "pytest", "--slow", *usual]
    assert not any("mypy" in words for words in slow)
    assert lines_of(capsys, "test", "--slow", "--", "-x")[-1][1:] == ["-m", "pytest", "--slow", "-x"]
    assert lines_of(capsys, "demo", "--", "--case", "A1", "--", "x y")[-1][1:] == ["demo", "--case", "A1", "--", "x y"]
    assert lines_of(capsys, "test", "--")[-1][1:] == ["-m", "pytest"]


@pytest.mark.parametrize("argv", [[], ["deploy"], ["demo", "--list"], ["demo", "more"], ["--venv"]])
def test_wrong_use_is_exit_code_2(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        bootstrap.main(argv)
    assert stopped.value.code == 2


def test_requirements_follow_nested_extras_but_leave_torch_and_triton_out() -> None:
    assert bootstrap.requirements(PYPROJECT, ("dev",)) == ["matplotlib>=3.9", "numpy<2.4", "pytest>=8", "torchmetrics"]
    assert bootstrap.requirements(PYPROJECT, ("plot",)) == ["matplotlib>=3.9"]


def test_a_finished_environment_is_used_again_and_the_exit_code_passed_on(quick: Path) -> None:
    assert [bootstrap.main(["demo", "--venv", str(quick)]) for _ in range(3)] == [12, 12, 12]
    assert installs(quick) == 1
    bootstrap.main(["demo", "--venv", str(quick), "--fresh"])
    assert installs(quick) == 2


@pytest.mark.parametrize("change", ["python", "steps", "probe", "stamp", "interpreter"])
def test_an_environment_that_no_longer_fits_is_made_anew(
    quick: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    bootstrap.main(["demo", "--venv", str(quick)])
    (quick / "left over").touch()
    if change == "python":
        monkeypatch.setattr(bootstrap.sys, "version", "3.99")
    elif change == "steps":
        steps = bootstrap.install_steps()
        monkeypatch.setattr(bootstrap, "install_steps", lambda *_: [*steps, step("pass")])
    elif change == "probe":
        monkeypatch.setattr(bootstrap, "PROBE", "raise SystemExit(1)")
    elif change == "stamp":
        (quick / bootstrap.STAMP).write_text("")
    else:
        (quick / "bin" / "python").unlink()
    assert bootstrap.main(["demo", "--venv", str(quick)]) == 12
    assert installs(quick) == 2
    assert not (quick / "left over").exists()


def test_the_digest_depends_on_metadata_and_place(tmp_path: Path) -> None:
    here, there = (
        bootstrap.install_steps(
            "test", tmp_path / name, PYPROJECT.replace("thing", "shadowgraph").replace("dev =", "sglang = []\ndev =")
        )
        for name in "ab"
    )
    digests = {bootstrap.digest_of(here, "x"), bootstrap.digest_of(here, "y"), bootstrap.digest_of(there, "x")}
    assert len(digests) == 3


def test_a_failed_step_shows_its_last_lines_and_leaves_no_stamp(
    quick: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = "for i in range(40): print('line', i)\nprint('Progress 1 of 9'); raise SystemExit(3)"
    monkeypatch.setattr(bootstrap, "install_steps", lambda *_: [step(code, "fake pip")])
    assert bootstrap.main(["demo", "--venv", str(quick)]) == 4
    error = capsys.readouterr().err
    assert [line.strip() for line in error.splitlines()[1:-1]] == [f"line {i}" for i in range(25, 40)]
    last = error.splitlines()[-1]
    assert last == f"bootstrap: error: 'fake pip' failed (exit code 3, log: {quick / 'bootstrap.log'})"
    assert (quick / "bootstrap.log").read_text().splitlines() == [f"line {i}" for i in range(40)]
    assert (quick / bootstrap.STAMP).read_text() == ""


@pytest.mark.parametrize(
    ("said", "meaning"),
    [
        ("OSError: [Errno 28] No space left on device", "the disk is full"),
        ("NewConnectionError: Temporary failure in name resolution", "the package index was not reached"),
    ],
)
def test_common_causes_are_named(
    quick: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], said: str, meaning: str
) -> None:
    code = f"import sys; print({said!r}, file=sys.stderr); sys.exit(1)"
    monkeypatch.setattr(bootstrap, "install_steps", lambda *_: [step(code)])
    assert bootstrap.main(["demo", "--venv", str(quick)]) == 4
    assert f"failed: {meaning} (" in capsys.readouterr().err.splitlines()[-1]


def test_an_interrupted_installation_stops_pip_and_is_made_anew(quick: Path) -> None:
    number = quick.parent / "pid"
    pip = f"""
import os, pathlib, signal, time
pathlib.Path({str(number)!r}).write_text(str(os.getpid()))
os.kill(os.getppid(), signal.SIGINT)
time.sleep(60)
"""
    code = f"""
import runpy, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
tool = runpy.run_path({str(TOOL)!r})
install = tool["run"].__globals__
install["install_steps"] = lambda *_: [tool["Step"]("slow", ({PYTHON!r}, "-c", {pip!r}))]
install["BYTES_NEEDED"] = 0
sys.executable = "true"
sys.exit(tool["main"](["demo", "--venv", {str(quick)!r}]))
"""
    done = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stderr) == (130, "bootstrap: error: interrupted\n")
    assert (quick / bootstrap.STAMP).read_text() == ""
    with pytest.raises(ProcessLookupError):
        os.kill(int(number.read_text()), 0)
    assert bootstrap.main(["demo", "--venv", str(quick)]) == 12
    assert installs(quick) == 1


def test_a_folder_of_someone_else_is_never_deleted(quick: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quick.mkdir()
    (quick / "precious").touch()
    assert bootstrap.main(["demo", "--venv", str(quick), "--fresh"]) == 2
    assert "was not made by this tool" in capsys.readouterr().err
    assert (quick / "precious").exists()


def test_what_is_missing_on_the_machine_is_one_line(
    quick: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(bootstrap.importlib.util, "find_spec", lambda name: None if name == "ensurepip" else name)
        assert bootstrap.main(["demo", "--venv", str(quick)]) == 3
    assert "python3-venv" in capsys.readouterr().err
    monkeypatch.setattr(bootstrap, "BYTES_NEEDED", 10**18)
    assert bootstrap.main(["demo", "--venv", str(quick)]) == 4
    assert "GB of disk" in capsys.readouterr().err


def test_an_old_python_is_told_so() -> None:
    ast.parse(TOOL.read_text(), feature_version=(3, 7))
    old = "import sys, runpy; sys.version_info = (3, 8, 18); sys.version = '3.8.18 x'; runpy.run_path(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", old, TOOL], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == "bootstrap: error: needs Python 3.11 or newer, this is 3.8.18\n"


@pytest.mark.parametrize(("codes", "expected"), [((0, 0), 0), ((3, 0), 1), ((0, 5), 5), ((2, 5), 5)])
def test_every_check_runs_and_any_failure_counts(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], codes: tuple[int, int], expected: int
) -> None:
    steps = [step(f"print('ran {n}'); raise SystemExit({code})", f"check {n}") for n, code in enumerate(codes)]
    assert bootstrap.perform(steps, tmp_path) == expected
    assert capfd.readouterr().out.splitlines()[-1] == "ran 1"


MEET = """
import os, signal, sys, time
here, there = {!r}, {!r}
open(here, "w").close()
late = time.monotonic() + 20
while not os.path.exists(there):
    assert time.monotonic() < late, "alone"
    time.sleep(0.01)
"""


def test_checks_run_side_by_side_and_say_all_in_their_order(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    first = MEET.format("a", "b") + "print('one', flush=True); print('two', file=sys.stderr); raise SystemExit(3)"
    second = MEET.format("b", "a") + "os.kill(os.getpid(), signal.SIGTERM)"
    steps = [step(first, "first"), step(second, "second"), step("print('last')", "last")]
    assert bootstrap.perform(steps, tmp_path) == 1
    assert capfd.readouterr().out.splitlines() == [
        "== first", "one", "two", "first failed with exit code 3",
        "== second (failed so far: first)", "second failed with exit code 143",
        "== last (failed so far: first, second)", "last",
    ]  # fmt: skip


def test_children_find_no_modules_outside_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setenv("PIP_INDEX_URL", "kept")
    code = "import os; print(os.environ.get('PYTHONPATH'), os.environ['PIP_INDEX_URL'])"
    assert bootstrap.perform([step(code)], tmp_path) == 0
    assert capfd.readouterr().out == "None kept\n"


def test_children_store_what_they_compile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    (tmp_path / "a_module.py").write_text("")
    assert bootstrap.perform([step("import a_module")], tmp_path) == 0
    assert list(tmp_path.glob("__pycache__/a_module.*.pyc"))
