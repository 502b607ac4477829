"""Run other projects' own tests plain and under ``pytest --shadowgraph``: the outcomes must be the same.

    python tools/third_party_suites.py einops=SRC opt_einsum=SRC torchmetrics=SRC [--python PYTHON] [--out FILE]
    python tools/third_party_suites.py --list

SRC is a checkout, or an unpacked source archive, of that project; SRC@COMMIT one that git does not know. PYTHON is an
environment with torch, pytest and what the suite needs (`--list` says what); shadowgraph is the one beside this file.
Tests whose outcomes differ run once more, alone, in both ways: `again` says what became of them.

Writes tools/evidence/third_party.json. A suite replaces its own part and leaves the others' as they are.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gpu_evidence

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "tools" / "evidence" / "third_party.json"
LONGEST = 2_000  # characters of a message
WAYS = {"plain": (), "shadowgraph": ("--shadowgraph", "--shadowgraph-backend", "host")}


@dataclass(frozen=True)
class Suite:
    """The tests of a project.

    Attributes
    ----------
    tests
        Files and folders, relative to the checkout.
    package
        What is imported, for its version.
    path
        Folders of the checkout that Python imports from.
    needs
        Packages beside torch, numpy and pytest.
    """

    package: str
    tests: tuple[str, ...]
    path: tuple[str, ...] = (".",)
    needs: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)


SUITES = {
    "einops": Suite(
        "einops", ("einops/tests",), needs=("nbformat", "nbconvert", "pillow"),
        variables={"EINOPS_TEST_BACKENDS": "numpy,torch"},
    ),
    "opt_einsum": Suite("opt_einsum", ("opt_einsum/tests",)),
    # Of its many thousand tests those of what all metrics share and of a few metrics: no model, no network. Tests that
    # start processes are left out (what a test starts is not watched), and half precision, which takes long on a CPU.
    "torchmetrics": Suite(
        "torchmetrics",
        (
            "tests/unittests/bases", "tests/unittests/pairwise", "tests/unittests/utilities/test_utilities.py",
            "tests/unittests/wrappers/test_minmax.py", "tests/unittests/wrappers/test_multioutput.py",
            "tests/unittests/wrappers/test_running.py", "tests/unittests/wrappers/test_tracker.py",
            "tests/unittests/regression/test_r2.py", "tests/unittests/regression/test_pearson.py",
            "tests/unittests/classification/test_accuracy.py",
        ),
        path=("src", "tests"),
        needs=(
            "lightning-utilities", "scikit-learn", "scipy", "cachier", "cloudpickle", "psutil", "pytest-doctestplus",
            "pytest-rerunfailures", "pytest-timeout",
        ),
        options=("-k", "not ddp and not DDP and not half and not plot", "-o", "addopts="),
    ),
}  # fmt: skip


@dataclass
class Ran:
    """One run of a suite: each test's outcome and message, by its node id."""

    outcomes: dict[str, str]
    messages: dict[str, str]
    seconds: float
    said: list[str]  # by shadowgraph's summary


class Runner:
    """Runs one suite's tests.

    Parameters
    ----------
    workers
        Processes of pytest-xdist, 0 for none.
    """

    def __init__(self, suite: Suite, checkout: Path, python: str, workers: int) -> None:
        self._suite, self._checkout, self._python, self._workers = suite, checkout, python, workers

    def run(self, way: str, tests: tuple[str, ...] = ()) -> Ran:
        """All tests, or only these, in one of the ways."""
        with tempfile.TemporaryDirectory() as folder:
            xml = Path(folder) / "results.xml"
            command = [self._python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={xml}"]
            command += [
                "-o",
                "junit_family=xunit1",
                *self._suite.options,
                *(["-n", str(self._workers)] if self._workers else []),
            ]
            began = time.perf_counter()
            command += [*WAYS[way], *(tests or self._suite.tests)]
            environment = self._environment(folder)
            done = subprocess.run(command, cwd=self._checkout, capture_output=True, text=True, env=environment)
            seconds = round(time.perf_counter() - began, 1)
            if not xml.exists():
                raise SystemExit(f"pytest wrote no results:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
            outcomes, messages = outcomes_of(xml)
        if not outcomes:
            raise SystemExit(f"no test ran:\n{done.stdout[-3000:]}")
        return Ran(outcomes, messages, seconds, summary_of(done.stdout))

    def circumstances(self, commit: str) -> dict[str, Any]:
        """Versions in the environment of the suite."""
        code = "import sys, json, platform, importlib, importlib.metadata as metadata; "
        code += "found = {name: metadata.version(name) for name in sys.argv[2:]}; "
        code += "found[sys.argv[1]] = importlib.import_module(sys.argv[1]).__version__; "  # of the checkout
        code += "print(json.dumps({'python': platform.python_version(), **found}))"
        names = [self._suite.package, "torch", "numpy", "pytest"]
        done = subprocess.run(
            [self._python, "-c", code, *names], cwd=self._checkout, capture_output=True, text=True, check=True,
            env=self._environment("."),
        )  # fmt: skip
        return {"commit": commit, "versions": json.loads(done.stdout.splitlines()[-1])}

    def _environment(self, folder: str) -> dict[str, str]:
        path = [*(str(self._checkout / part) for part in self._suite.path), str(ROOT)]
        cache = {"PYTEST_REFERENCE_CACHE": folder, "PYTHONDONTWRITEBYTECODE": "1"}
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path),
            "OMP_NUM_THREADS": "1",
            **cache,
            **self._suite.variables,
        }


def outcomes_of(xml: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Outcomes and messages of a JUnit file by node id; of a test that is there twice the worse counts."""
    outcomes: dict[str, str] = {}
    messages: dict[str, str] = {}
    order = gpu_evidence.OUTCOMES
    for case in ElementTree.parse(xml).getroot().iter("testcase"):
        test = node_id(case.get("file") or "", case.get("classname") or "", case.get("name") or "")
        found = [kind for kind in order if case.find(kind) is not None]
        outcomes[test] = max(outcomes.get(test, "passed"), *found, "passed", key=order.index)
        texts = [gpu_evidence.message_of(each, LONGEST) for each in case if each.tag in ("failure", "error")]
        if texts:
            messages[test] = "\n".join(texts)
    return outcomes, messages


def node_id(file: str, classname: str, name: str) -> str:
    """What pytest calls a test: its file, its class where it has one, its name."""
    module = re.sub(r"\.py$", "", file).replace("/", ".")
    classes = classname.removeprefix(module).strip(".") if classname.startswith(module) else ""
    return "::".join(filter(None, (file, *classes.split("."), name)))


def summary_of(output: str) -> list[str]:
    """What shadowgraph's section at the end of a run says."""
    found = re.search(r"^=+ shadowgraph =+$\n(.*?)(?=^=|\Z)", output, re.MULTILINE | re.DOTALL)
    lines = found[1].strip().splitlines()[:20] if found else []
    return [line for line in lines if not re.match(r"\d+ (passed|failed|skipped|error)", line)]


def compared(runner: Runner, plain: Ran, watched: Ran) -> list[dict[str, Any]]:
    """Tests whose outcomes differ, with what they said, and what they do when they run once more."""
    tests = sorted({*plain.outcomes, *watched.outcomes})
    apart = [test for test in tests if plain.outcomes.get(test) != watched.outcomes.get(test)]
    rows = []
    for test in apart:
        outcomes = [run.outcomes.get(test, "missing") for run in (plain, watched)]
        message = watched.messages.get(test) or plain.messages.get(test, "")
        rows.append({"test": test, **dict(zip(WAYS, outcomes, strict=True)), "message": message})
    again = {way: runner.run(way, tuple(apart)).outcomes for way in WAYS} if apart else {}
    return [{**row, "again": {way: again[way].get(row["test"], "missing") for way in WAYS}} for row in rows]


def ran(name: str, checkout: Path, commit: str, python: str, workers: int) -> dict[str, Any]:
    """A suite in both ways."""
    runner = Runner(SUITES[name], checkout, python, workers)
    about = runner.circumstances(commit)
    plain = runner.run("plain")
    watched = runner.run("shadowgraph")
    if not watched.said:
        raise SystemExit(f"{name}: shadowgraph's summary is missing: the tests were not watched")
    differing = compared(runner, plain, watched)
    both = {"plain": plain, "shadowgraph": watched}
    return {
        **about,
        "source": gpu_evidence.source(),
        "date": time.strftime("%Y-%m-%d"),
        "tests": len(plain.outcomes),
        **{way: {**Counter(run.outcomes.values()), "seconds": run.seconds} for way, run in both.items()},
        "summary": watched.said,
        "differing": differing,
    }


def place_of(word: str) -> tuple[str, Path, str]:
    """``NAME=SRC[@COMMIT]`` as name, checkout and commit; git is asked where no commit is given."""
    name, _, rest = word.partition("=")
    place, _, commit = rest.partition("@")
    if name not in SUITES or not place or not Path(place).is_dir():
        raise SystemExit(f"{word}: one of {', '.join(SUITES)}, =, and a folder")
    if not commit:
        asked = subprocess.run(["git", "-C", place, "rev-parse", "HEAD"], capture_output=True, text=True)
        commit = asked.stdout.strip() or "unknown"
    return name, Path(place).resolve(), commit


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="*", metavar="NAME=SRC", help=f"NAME: {', '.join(SUITES)}")
    parser.add_argument("--python", default=sys.executable, help="environment of the suites (default: this one)")
    parser.add_argument("--workers", type=int, default=0, help="processes of pytest-xdist (default: none)")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--list", action="store_true", help="show what each suite runs and needs, and end")
    args = parser.parse_args(arguments)
    if args.list:
        for name, suite in SUITES.items():
            print(
                f"{name}: pytest {shlex.join((*suite.options, *suite.tests))}\n  needs {', '.join(suite.needs) or '-'}"
            )
        return 0
    code = 0
    for word in args.suites:
        name, checkout, commit = place_of(word)
        made = ran(name, checkout, commit, args.python, args.workers)
        kept = json.loads(args.out.read_text()) if args.out.exists() else {}
        body = {"command": "tools/third_party_suites.py NAME=SRC", "suites": {**kept.get("suites", {}), name: made}}
        gpu_evidence.write(args.out, body)
        print(f"{name}: {made['tests']} tests, {len(made['differing'])} with other outcomes")
        code = code or int(bool(made["differing"]))
    return code


if __name__ == "__main__":
    sys.exit(main())
