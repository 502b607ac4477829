"""The start-up hook: inert without torch, invisible to imports, beside what an environment has already."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from support import warm
from support.wrapping import PROGRAMS, environment

from shadowgraph.common.compat import OLDEST_TORCH
from shadowgraph.wrap.folder.injection_config import VARIABLE, InjectionConfig
from shadowgraph.wrap.folder.reader import read_run
from shadowgraph.wrap.launch.run_child import SITE, wrapped_environment


@pytest.fixture
def bare_torch(tmp_path: Path) -> str:
    """A folder with a torch that is nothing but its version, for what the hook says before it looks further."""
    made = tmp_path / "bare"
    made.mkdir()
    (made / "torch.py").write_text(f"__version__ = {torch.__version__!r}")
    return str(made)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "run"
    made.mkdir()
    (made / "run.json").write_text('{"format": 1}')
    return made


def python(folder: Path, *words: str, env: dict[str, str] | None = None, cwd: Path | None = None) -> str:
    """Run Python as a wrapped program is run."""
    full = wrapped_environment(InjectionConfig(str(folder), "auto"), env or environment())
    done = subprocess.run([sys.executable, *words], env=full, cwd=cwd, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr
    return done.stdout


def test_a_program_without_torch_loads_nothing(folder: Path) -> None:
    show = "import sys; print(sorted(name for name in sys.modules if not name.startswith('_')))"
    plain = subprocess.run([sys.executable, "-c", show], env=environment(), capture_output=True, text=True)
    extra = set(eval(python(folder, "-c", show))) - set(eval(plain.stdout))
    assert extra == {"sitecustomize"}
    assert not list(folder.glob("findings-*"))


def test_importing_torch_loads_nothing_of_the_debugger(folder: Path) -> None:
    code = (
        "import torch, sys; print(sorted(n for n in sys.modules if n.startswith(('shadowgraph', 'msgspec', 'rich'))))"
    )
    loaded = eval(python(folder, "-c", code))
    assert "shadowgraph.debugger" not in loaded
    assert "msgspec" not in loaded
    (process,) = read_run(folder).processes
    assert (process.backend, process.ended) == (None, "exit")


def test_the_first_operator_loads_neither_triton_nor_the_compiler(folder: Path) -> None:
    """What a program sets before it imports Triton must count, and a compiler is a second of start-up."""
    code = (
        "import sys, torch\ntorch.zeros(3)\n"
        "assert 'shadowgraph.debugger' in sys.modules\n"
        "print([name for name in ('triton', 'torch._dynamo') if name in sys.modules])"
    )
    assert python(folder, "-c", code) == "[]\n"


def test_imports_look_as_they_do_without_us(folder: Path) -> None:
    code = (
        "import importlib.util, sys\n"
        "spec = importlib.util.find_spec('torch')\n"
        "assert 'torch' not in sys.modules\n"
        "import torch\n"
        "facts = [type(spec.loader).__name__, type(torch.__spec__.loader).__name__, torch.__loader__.name,\n"
        "         vars(torch.__loader__).keys() - {'name', 'path'}, torch.__spec__.name,\n"
        "         importlib.util.find_spec('no_such'), torch.__loader__.get_filename('torch') == torch.__file__]\n"
        "print(facts)"
    )
    plain = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, timeout=120)
    assert python(folder, "-c", code) == plain.stdout


def test_a_failed_import_of_torch_fails_as_before_and_the_next_is_watched(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise RuntimeError('broken here')")
    code = (
        "import sys\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "try:\n    import torch\nexcept RuntimeError as error:\n    print(error)\n"
        "del sys.path[0]\nsys.path_importer_cache.clear()\nimport torch\ntorch.zeros(1)"
    )
    assert python(folder, "-c", code) == "broken here\n"
    assert read_run(folder).processes[0].backend == "host"


def test_an_existing_sitecustomize_runs_as_before(folder: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import builtins\nbuiltins.customised = __file__\nLEFT = 1\n")
    env = environment(PYTHONPATH=os.pathsep.join([str(own), environment()["PYTHONPATH"]]))
    code = (
        "import sitecustomize; print(customised == sitecustomize.__file__, sitecustomize.LEFT)\n"
        "import torch; torch.ones(1)"
    )
    assert python(folder, "-c", code, env=env) == "True 1\n"
    assert read_run(folder).processes[0].backend == "host"


def test_an_error_in_an_existing_sitecustomize_is_shown_as_before(folder: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("raise RuntimeError('their own')\n")
    env = environment(PYTHONPATH=os.pathsep.join([str(own), environment()["PYTHONPATH"]]))
    full = wrapped_environment(InjectionConfig(str(folder), "auto"), env)
    done = subprocess.run([sys.executable, "-c", "print(1)"], env=full, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "1\n")
    assert "RuntimeError: their own" in done.stderr


def test_python_path_is_kept_and_the_hook_is_there_once() -> None:
    config = InjectionConfig("/run", "auto")
    once = wrapped_environment(config, {"PYTHONPATH": os.pathsep.join(["a", "", "b"])})
    twice = wrapped_environment(config, once)
    assert once["PYTHONPATH"] == os.pathsep.join([SITE, "a", "", "b"])
    assert twice["PYTHONPATH"] == once["PYTHONPATH"]
    assert wrapped_environment(config, {})["PYTHONPATH"] == SITE
    assert InjectionConfig.from_environment(twice) == config
    assert InjectionConfig.from_environment({}) is None


SHOW = (
    "import os, subprocess, sys, torch; print(sorted(n for n in sys.modules if n.partition('.')[0] == 'shadowgraph'))"
)


@pytest.mark.parametrize("below", ["", "subprocess.run([sys.executable, '-c', 'import torch'], check=True)"])
def test_another_python_is_left_alone_with_one_line(folder: Path, bare_torch: str, below: str) -> None:
    env = wrapped_environment(InjectionConfig(str(folder), "host", python="3.1"), environment(PYTHONPATH=bare_torch))
    show = f"{SHOW}\ntry:\n    import shadowgraph\nexcept ImportError:\n    print('none')\n{below}"
    done = subprocess.run(
        [sys.executable, "-c", show], env=env, cwd=folder, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "[]"), done.stderr
    (line,) = done.stderr.splitlines()
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert f"is not watched, nor are those below it that are alike: it has Python {here}" in line
    assert "shadowgraph runs with 3.1" in line
    assert not list(folder.glob("findings-*"))


def test_another_python_that_never_imports_torch_says_nothing(folder: Path) -> None:
    env = wrapped_environment(InjectionConfig(str(folder), "host", python="3.1"), environment())
    done = subprocess.run([sys.executable, "-c", "print(1)"], env=env, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("1\n", "")


@pytest.mark.parametrize("version", ["2.9.1+cu126", "1.13.0", None])
def test_another_torch_is_left_alone_with_one_line(folder: Path, tmp_path: Path, version: str | None) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "torch.py").write_text(f"__version__ = {version!r}" if version else "")
    env = wrapped_environment(InjectionConfig(str(folder), "host"), environment(PYTHONPATH=str(tmp_path / "own")))
    done = subprocess.run([sys.executable, "-c", SHOW], env=env, cwd=folder, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
    (line,) = done.stderr.splitlines()
    assert f"it has torch {version or 'of no version'}, and shadowgraph needs 2.10 or later" in line
    assert not list(folder.glob("findings-*"))


def test_the_hook_and_the_package_agree_on_the_oldest_torch() -> None:
    text = Path(SITE, "sitecustomize.py").read_text()
    assert f"_OLDEST_TORCH = {OLDEST_TORCH}" in text


def test_without_orders_the_hook_is_inert(folder: Path) -> None:
    env = wrapped_environment(InjectionConfig(str(folder), "auto"), environment())
    del env[VARIABLE]
    code = (
        "import sys, torch; torch.ones(1)\n"
        "print([finder for finder in sys.meta_path if 'After' in type(finder).__name__])"
    )
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("[]\n", "")
    assert not list(folder.glob("findings-*"))


@pytest.mark.slow
def test_modules_scripts_folders_and_zips_run(folder: Path, tmp_path: Path) -> None:
    code = "import sys, torch; torch.ones(1); print('ran', sys.argv[1:])"
    (tmp_path / "mod.py").write_text(code)
    with zipfile.ZipFile(tmp_path / "app.pyz", "w") as archive:
        archive.writestr("__main__.py", code)
    assert python(folder, "-m", "mod", "1", cwd=tmp_path) == "ran ['1']\n"
    assert python(folder, "mod.py", "2", cwd=tmp_path) == "ran ['2']\n"
    assert python(folder, "app.pyz", "3", cwd=tmp_path) == "ran ['3']\n"
    assert [process.backend for process in read_run(folder).processes] == ["host"] * 3


def test_the_package_is_found_where_it_is_not_installed(folder: Path) -> None:
    env = {name: text for name, text in environment().items() if name != "PYTHONPATH"}
    code = "import torch; torch.ones(1); import shadowgraph; print(shadowgraph.__file__)"
    assert Path(python(folder, "-c", code, env=env, cwd=folder).strip()) == Path(SITE).parents[2] / "__init__.py"
    assert read_run(folder).processes[0].backend == "host"


def test_what_we_need_and_is_missing_is_one_line(folder: Path) -> None:
    code = "import sys; sys.modules['msgspec'] = None\nimport torch; print(torch.ones(2).sum().item())"
    full = wrapped_environment(InjectionConfig(str(folder), "auto"), environment())
    done = subprocess.run([sys.executable, "-c", code], env=full, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "2.0\n")
    assert done.stderr.count("\n") == 1
    assert "is not watched: ModuleNotFoundError" in done.stderr
    assert "not watched: ModuleNotFoundError" in read_run(folder).processes[0].events[0]


def test_a_damaged_configuration_is_one_line(folder: Path) -> None:
    env = wrapped_environment(InjectionConfig(str(folder), "auto"), environment()) | {VARIABLE: "[]"}
    done = subprocess.run([sys.executable, "-c", "import torch"], env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr.count("\n")) == (0, 1)
    assert "holds no configuration of a wrap" in done.stderr


def test_operators_of_every_thread_are_seen(folder: Path) -> None:
    code = (
        "import threading, torch\nfrom concurrent.futures import ThreadPoolExecutor\n"
        "class Own(threading.Thread):\n"
        "    def run(self):\n        seen.append(torch.zeros(5).untyped_storage().resizable())\n"
        "seen = []\nown = Own(); own.start(); own.join()\n"
        "with ThreadPoolExecutor(1) as pool:\n"
        "    seen.append(pool.submit(lambda: torch.zeros(5).untyped_storage().resizable()).result())\n"
        "print(seen)"
    )
    full = wrapped_environment(InjectionConfig(str(folder), "auto", {"guard_eager": "auto"}), environment())
    done = warm.run([sys.executable, "-c", code], full, folder)
    assert done.stdout == "[False, False]\n", done.stderr  # memory of ours cannot be resized


def test_a_debugger_of_the_programs_own_takes_over(folder: Path) -> None:
    code = (
        "import torch, shadowgraph as sg\nfrom overrun import Decode\n"
        "torch.ones(1)\n"
        "with sg.debug(layout='isolate') as debugger:\n"
        "    with debugger.guard():\n        decode = Decode()\n"
        "    decode.step(8)\n"
        "print(len(debugger.findings))"
    )
    full = wrapped_environment(InjectionConfig(str(folder), "auto", quiet=True), environment())
    done = warm.run([sys.executable, "-c", code], full, PROGRAMS)
    assert (done.stdout, done.stderr) == ("1\n", "")
    run = read_run(folder)
    assert [finding.past_end for finding in run.merged().findings] == [8]
    assert len(run.processes[0].summaries) == 2


def test_a_debugger_of_the_programs_own_that_was_there_first(folder: Path) -> None:
    code = (
        "import torch, shadowgraph as sg\nfrom overrun import Decode\n"
        "with sg.debug() as debugger:\n"
        "    with debugger.guard():\n        decode = Decode()\n"
        "    assert len([b for b in debugger.buffers if b.shape == (4, 4)]) == 1\n"
        "    decode.step(8)\n"
        "torch.zeros(8)\nprint(sg.current())"
    )
    full = wrapped_environment(InjectionConfig(str(folder), quiet=True), environment())
    done = warm.run([sys.executable, "-c", code], full, PROGRAMS)
    assert (done.stdout, done.stderr) == ("None\n", "")
    assert [finding.past_end for finding in read_run(folder).merged().findings] == [8]


def test_bytes_that_are_no_text_in_a_command_line(folder: Path) -> None:
    full = wrapped_environment(InjectionConfig(str(folder)), environment())
    words = [os.fsencode(sys.executable), b"-c", b"import torch", b"caf\xe9"]
    assert subprocess.run(words, env=full, timeout=120).returncode == 0
    (process,) = read_run(folder).processes
    assert (process.argv[-1], process.damaged) == ("caf\ufffd", 0)


@pytest.mark.slow
def test_a_threaded_program_may_fork_at_any_time(folder: Path) -> None:
    """Threads that allocate guarded memory all the time hold our locks when the fork comes; the child must not care."""
    code = (
        "import os, sys, threading, torch\n"
        "stop = threading.Event()\n"
        "def work():\n    while not stop.is_set(): torch.zeros(64)\n"
        "threads = [threading.Thread(target=work) for _ in range(3)]\n"
        "for thread in threads: thread.start()\n"
        "for _ in range(10):\n"
        "    pid = os.fork()\n"
        "    if not pid:\n        torch.zeros(64); sys.exit(0)\n"
        "    assert os.waitpid(pid, 0)[1] == 0\n"
        "stop.set()\nprint('fine')"
    )
    full = wrapped_environment(InjectionConfig(str(folder), "auto", {"guard_eager": "auto"}), environment())
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], env=full, capture_output=True, text=True, timeout=400
    )
    assert done.stdout == "fine\n", done.stderr
    assert len(read_run(folder).processes) == 11
