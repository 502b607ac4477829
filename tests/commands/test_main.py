"""The command line: verbs, documents, errors of one line with an exit code of their own."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from support import warm

from shadowgraph.commands import demo, doctor
from shadowgraph.commands.main import main


def run(*words: str, code: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code] if code else [sys.executable, "-m", "shadowgraph", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_demo_prints_one_document_with_findings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--json", "--case", "A2", "--case", "C-counter"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "shadowgraph.demo/2"
    assert [case["verdict"] for case in document["cases"]] == ["passed", "passed"]
    (finding,) = document["findings"]
    assert (finding["code"], finding["case"], finding["phase"]) == ("SG101", "A2", "prepare")
    assert finding["bytes"]["last"] + 1 - finding["buffer"]["nbytes"] == 864
    assert finding["schema"] == "shadowgraph.finding/2"


def test_demo_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--case", "A3", "--reports"]) == 0
    out = capsys.readouterr().out
    assert "passed   A3" in out
    assert "SUMMARY: shadowgraph: SG101 out-of-bounds write: scatter_pages wrote 8 bytes past the end" in out
    assert "1 passed, 0 failed, 0 invalid" in out
    assert "\x1b[" not in out


def test_a_failing_case_is_a_distinct_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import dataclasses

    from shadowgraph.demos import runner

    broken = [dataclasses.replace(c, damage=lambda device: False) if c.id == "A3" else c for c in runner.ACCEPTANCE]
    monkeypatch.setattr(runner, "ACCEPTANCE", tuple(broken))
    assert main(["demo", "--case", "A3"]) == demo.FAILED
    assert "invalid  A3" in capsys.readouterr().out


def test_demo_draws_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "new" / "map.png"
    assert main(["demo", "--case", "A2", "--picture", str(path)]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")
    assert main(["demo", "--case", "C-counter", "--picture", str(path)]) == 2
    assert "needs a case with a finding" in capsys.readouterr().err


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--list", "--set", "acceptance"]) == 0
    assert "sglang 27360" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["frobnicate"], 2, "invalid choice: 'frobnicate'"),
        (["reprot", "run.dump"], 2, "(did you mean report?) (see shadowgraph --help)"),
        (["map", "run.dump", "--kind", "writs"], 2, "(did you mean writes?) (see shadowgraph map --help)"),
        (["map", "run.dump", "--interactiv", "m.html"], 2, "--interactiv m.html (did you mean --interactive?) (see sh"),
        (["map", "run.dump", "--limt=3"], 2, "unrecognized arguments: --limt=3 (did you mean --limit?)"),
        (["nodes", "run.dump", "--kind", "kernal"], 2, "no kind 'kernal' (did you mean kernel?); kinds are: kernel, "),
        (["explain", "SG1O1"], 2, "no kind of finding is called 'SG1O1' (did you mean SG101 or SG110?); kinds are: "),
        (["explain", "out of bounds"], 2, "(did you mean out-of-bounds write?)"),
        (["demo", "--case", "a-2"], 2, "no case 'a-2' (did you mean A2"),
        (["demo", "--colour"], 2, "unrecognized arguments: --colour (see shadowgraph demo --help)"),
        (["demo", "--case", "A99"], 2, "no case 'A99'; cases are: A1, "),
        (["demo", "--case", "A2", "--picture", "map.tiff"], 2, "tiff"),
        (["demo", "--case", "A2", "--picture", "/proc/none/map.png"], 3, "/proc/none"),
    ],
)
def test_errors_are_one_line(words: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == code
    error = capsys.readouterr().err
    assert error.startswith("shadowgraph: error: ")
    assert said in error
    assert error.count("\n") == 1


def test_no_command_prints_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "demo" in capsys.readouterr().out


def test_an_unexpected_error_is_one_line_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> list[doctor.Line]:
        raise KeyError("disk on fire\nin two lines")

    monkeypatch.setattr(doctor, "examine", broken)
    assert main(["doctor"]) == 70
    assert capsys.readouterr().err.count("\n") == 1
    monkeypatch.setenv("SHADOWGRAPH_TRACEBACK", "1")
    with pytest.raises(KeyError, match="disk on fire"):
        main(["doctor"])


def test_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--selftest", "--json"]) == 0
    shown = capsys.readouterr()
    assert shown.err == "", "the planted overflow is not logged as one of this machine"
    document = json.loads(shown.out)
    lines = {line["what"]: line for line in document["lines"]}
    assert lines["torch"]["state"] == "ok"
    assert all(line["advice"] for line in document["lines"] if line["state"] == "missing")
    assert document["selftest"] == []
    assert {"matplotlib", "bokeh"} <= lines.keys(), "what draws"


def test_doctor_without_a_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(doctor, "version", lambda name: "1.0" if name in ("triton", "torch") else missing(name))

    def lines(interpret: str) -> dict[str, dict[str, str]]:
        monkeypatch.setenv("TRITON_INTERPRET", interpret)
        main(["doctor", "--json"])
        return {line["what"]: line for line in json.loads(capsys.readouterr().out)["lines"]}

    told = lines("0")
    assert told["triton"]["advice"] == "no GPU here: set TRITON_INTERPRET=1 to run its kernels on the CPU"
    for line in told.values():
        if line["what"].startswith(("cupy", "cuda-bindings", "flashinfer")):
            assert line["advice"] == "not needed here: there is no GPU"
    assert lines("1")["triton"]["advice"] == ""


def test_doctor_with_a_gpu_names_what_it_needs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "NVIDIA H200")
    monkeypatch.setattr(doctor, "version", missing)
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    main(["doctor", "--json"])
    told = {line["what"]: line for line in json.loads(capsys.readouterr().out)["lines"]}
    assert "cuda-bindings" in told["cuda-bindings"]["advice"]
    assert "TRITON_INTERPRET" not in told["triton"]["advice"]


def missing(name: str) -> str:
    raise PackageNotFoundError(name)


def test_doctor_without_torch(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "from shadowgraph.commands import doctor\n"
        "from importlib.metadata import PackageNotFoundError, version\n"
        "def seen(name):\n"
        "    if name == 'torch': raise PackageNotFoundError(name)\n"
        "    return version(name)\n"
        "doctor.version = seen\n"
        "from shadowgraph.commands.main import main\n"
        "sys.exit(main(['doctor', '--selftest']))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == doctor.SELFTEST_FAILED, done.stderr
    assert "pip install torch" in done.stdout
    assert "selftest: torch is needed for it" in done.stdout
    assert "internal error" not in done.stdout + done.stderr


def test_doctor_in_a_pipe_cuts_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    said = "one long advice, pip install 'cupy-cuda13x>=14' 'cuda-bindings>=13'==" + "0" * 200
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(doctor, "examine", lambda: [doctor.Line("cupy-cuda13x", "missing", "-", "a GPU", said)])
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[1:]] == [["cupy-cuda13x", "-", "a", "GPU", *said.split()]]


def test_doctor_on_a_narrow_terminal_folds(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    said = "pip-install-" + "0123456789" * 20
    monkeypatch.setenv("TERM", "dumb")  # which counts as 80 columns, and has no colours to get in the way
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(doctor, "examine", lambda: [doctor.Line("cupy-cuda13x", "missing", "-", "a GPU", said)])
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    at = lines[0].index("what to do")
    assert "".join(line[at:].strip() for line in lines[1:]) == said
    assert all(len(line) <= 80 for line in lines)


def test_the_selftest_can_fail(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from shadowgraph.engines.numpy_engine import NumpyEngine

    monkeypatch.setattr(NumpyEngine, "_broken", lambda self, guards: [])
    assert main(["doctor", "--selftest"]) == doctor.SELFTEST_FAILED
    assert "an overflow of 12 bytes was reported as []" in capsys.readouterr().out


def test_a_reader_that_goes_away_is_no_error() -> None:
    code = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-m', 'shadowgraph', 'demo', '--list'], stdout=subprocess.PIPE)\n"
        "child.stdout.close()\n"
        "sys.exit(child.wait())\n"
    )
    done = run(code=code)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


def test_import_needs_nothing_optional() -> None:
    code = (
        "import sys\n"
        "for name in ('cupy', 'cuda', 'sglang', 'matplotlib', 'triton', 'transformers'): sys.modules[name] = None\n"
        "import shadowgraph\n"
        "import shadowgraph.commands.main\n"
        "print(shadowgraph.__version__)\n"
    )
    done = run(code=code)
    assert done.returncode == 0, done.stderr


def test_without_triton_the_demo_says_what_to_install() -> None:
    code = (
        "import sys\nsys.modules['triton'] = None\n"
        "from shadowgraph.commands.main import main\nsys.exit(main(['demo']))\n"
    )
    done = warm.run([sys.executable, "-c", code], os.environ)
    assert done.returncode == 5
    assert done.stderr == "shadowgraph: error: the cases need Triton; run: pip install 'triton>=3.6' 'numpy<2.4'\n"


def test_a_full_disk_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "shadowgraph", "demo", "--list", "--set", "acceptance"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=300,
        )
    assert done.returncode == 3, done.stderr
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_closed_standard_output_is_no_error() -> None:
    code = (
        "import sys; sys.stdout = None\nfrom shadowgraph.commands.main import main\nsys.exit(main(['demo', '--list']))"
    )
    done = warm.run([sys.executable, "-c", code], os.environ)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("verb", "wanted"), [("explain", True), ("report", False)])
def test_only_verbs_that_keep_all_they_make_go_without_the_collector(
    monkeypatch: pytest.MonkeyPatch, verb: str, wanted: bool
) -> None:
    module = import_module(f"shadowgraph.commands.{verb}")
    seen: list[bool] = []
    monkeypatch.setattr(module, "run", lambda args: seen.append(gc.isenabled()) or 0)
    assert gc.isenabled()
    assert main([verb, "SG101"]) == 0
    assert seen == [wanted]
    assert gc.isenabled(), "as it was"


def test_the_collector_is_as_it_was_after_an_error() -> None:
    assert main(["report", "/nowhere/at/all"]) == 3
    assert gc.isenabled()
