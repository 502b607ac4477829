"""The wheel file: made and installed by the lines of docs/install.md, in an environment that has nothing of a checkout.

torch and other dependencies are those of the environment that runs the tests, on the path of the new one; whatever of
shadowgraph is found there comes from the wheel.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

from shadowgraph.common.version import VERSION

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
PROGRAM = """
import ctypes
import torch, shadowgraph as sg

assert "site-packages" in sg.__file__, sg.__file__
table = torch.zeros(16, dtype=torch.int32)
graph = sg.HostGraph()

def overflow(victim):
    (ctypes.c_int32 * 19).from_address(victim.data_ptr())[:] = [7] * 19

with sg.host_graph(graph):
    graph.call(overflow, table, writes=(table,))
graph.replay()
"""


def lines_of_the_docs() -> tuple[str, str]:
    """The lines that make a wheel file, and that install it."""
    page = (ROOT / "docs" / "install.md").read_text("utf-8")
    made, installed = re.findall(r"```bash\n([^\n]*(?:pip wheel|\.whl)[^\n]*)\n```", page)
    return made, installed


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    line = lines_of_the_docs()[0]
    assert line.startswith("python -m pip wheel ")
    assert line.endswith(" --wheel-dir dist .")
    words = [sys.executable, *line.split()[1:-3], "--wheel-dir", str(folder / "dist"), str(ROOT)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    (made,) = (folder / "dist").glob("*.whl")
    return made


@pytest.fixture(scope="module")
def environment(wheel: Path) -> dict[str, str]:
    """The variables of a shell in the new environment, in the folder that has ``dist``."""
    venv = wheel.parent.parent / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True, timeout=300)
    own = {
        name: text for name, text in os.environ.items() if not name.startswith(("SHADOWGRAPH_", "PYTEST_", "PYTHON"))
    }
    # No dependencies: they would be another torch of 2 GB.
    env = {**own, "PATH": f"{venv / 'bin'}{os.pathsep}{own['PATH']}", "PIP_NO_DEPS": "1", "PIP_NO_INDEX": "1"}
    env["TRITON_INTERPRET"] = "1"
    line = lines_of_the_docs()[1]
    done = subprocess.run(
        ["bash", "-c", line], cwd=wheel.parent.parent, env=env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    (site,) = venv.glob("lib/python*/site-packages")
    # A folder on the path by a .pth file has its own .pth files left alone: an editable install there is not found.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return env


def run(env: dict[str, str], folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done


def test_the_wheel_has_the_whole_package_and_nothing_else(wheel: Path) -> None:
    tracked = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "shadowgraph"]
    done = subprocess.run(tracked, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("no clone: which files are the package's own is not known")
    with zipfile.ZipFile(wheel) as file:
        inside = {name for name in file.namelist() if ".dist-info/" not in name}
        (facts,) = (name for name in file.namelist() if name.endswith("METADATA"))
        metadata = file.read(facts).decode()
    assert inside == {name for name in done.stdout.split("\n") if name and (ROOT / name).is_file()}
    assert f"\nVersion: {VERSION}\n" in metadata
    assert set(re.findall(r"^Provides-Extra: (\S+)$", metadata, re.MULTILINE)) == set(PROJECT["optional-dependencies"])
    required = re.findall(r"^Requires-Dist: ([^;\n]+)$", metadata, re.MULTILINE)
    assert {re.sub(r"[<>=!].*", "", line).strip() for line in required} == {
        re.sub(r"[<>=!].*", "", line) for line in PROJECT["dependencies"]
    }


def test_it_passes_the_selftest(environment: dict[str, str], tmp_path: Path) -> None:
    where = run(environment, tmp_path, "python", "-c", "import shadowgraph; print(shadowgraph.__file__)").stdout
    assert Path(where.strip()).is_relative_to(Path(environment["PATH"].split(os.pathsep)[0]).parent)
    assert run(environment, tmp_path, "shadowgraph", "--version").stdout == f"shadowgraph {VERSION}\n"
    said = run(environment, tmp_path, "shadowgraph", "doctor", "--selftest").stdout
    assert "selftest: the planted overflow was found, and nothing in the same program without it" in said


def test_a_program_is_watched_and_its_run_is_read(environment: dict[str, str], tmp_path: Path) -> None:
    """With what is no Python: the start-up hook's folder, templates, style sheets and explanations."""
    (tmp_path / "program.py").write_text(PROGRAM)
    run(
        environment,
        tmp_path,
        "shadowgraph",
        "wrap",
        "--run-dir",
        "run",
        "--json",
        "out.json",
        "--",
        "python",
        "program.py",
    )
    (finding,) = json.loads((tmp_path / "out.json").read_text())["findings"]
    assert (finding["code"], finding["bytes"]["count"]) == ("SG101", 12)
    assert "SG101 out-of-bounds write" in run(environment, tmp_path, "shadowgraph", "report", "run").stdout
    run(environment, tmp_path, "shadowgraph", "report", "run", "--html", "report.html")
    assert "SG101 out-of-bounds write" in (tmp_path / "report.html").read_text()
    assert "lacks a factor" in run(environment, tmp_path, "shadowgraph", "explain", "SG101").stdout


def test_packages_find_their_plugins(environment: dict[str, str], tmp_path: Path) -> None:
    code = (
        "from importlib.metadata import distribution\n"
        "for each in distribution('shadowgraph').entry_points: each.load(); print(each.group)\n"
    )
    groups = run(environment, tmp_path, "python", "-c", code).stdout.split()
    assert set(groups) == {"console_scripts", *PROJECT["entry-points"]}
    (tmp_path / "test_own.py").write_text("def test_it(shadowgraph): assert shadowgraph is not None\n")
    assert "1 passed" in run(environment, tmp_path, "python", "-m", "pytest", "-q", "--shadowgraph").stdout
