"""Projects that run pytest with the plugin, in processes of their own, as a user's project does."""

from __future__ import annotations

import os
import sys
import textwrap
import time
import tomllib
from pathlib import Path
from xml.etree import ElementTree

import pytest

from support import warm as warm_python

ROOT = Path(__file__).resolve().parents[2]
OTHERS = ("-p", "no:hypothesispytest")  # a plugin that happens to be installed here, and takes a second
KIT = """
    import torch
    import shadowgraph as sg
    from shadowgraph.demos.kernels import fill

    def captured(extra):
        '''A graph that fills eight entries, and `extra` more.'''
        table = torch.zeros(8, dtype=torch.int32)
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            fill[(1,)](table, 0, 8 + extra, 1, BLOCK=256)
        return graph, table

    def program(extra, replays=2):
        graph, table = captured(extra)
        for _ in range(replays):
            graph.replay()
        assert table.tolist() == list(range(1, 9))
"""


class Project:
    """A project under test, in a folder of its own.

    The package is on the path like an installed one, with the entry points of pyproject.toml.
    """

    def __init__(self, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pytester = pytester
        self.path = pytester.path
        for name in os.environ:
            if name.startswith(("SHADOWGRAPH_", "PYTEST_", "TRITON_")):
                monkeypatch.delenv(name)
        site = pytester.mkdir("site")
        self._install(site / "shadowgraph-0.dist-info")
        others = filter(None, [os.environ.get("PYTHONPATH")])  # it may hold packages that this source needs
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(site), *others]))
        self.write("kit.py", KIT)

    def _install(self, folder: Path) -> None:
        """Install only the entry points, so that this source is tested."""
        folder.mkdir()
        points = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["entry-points"]["pytest11"]
        lines = [f"{name} = {target}" for name, target in points.items()]
        (folder / "entry_points.txt").write_text("\n".join(["[pytest11]", *lines]), "utf-8")
        (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: shadowgraph\nVersion: 0\n", "utf-8")

    def write(self, name: str, text: str) -> None:
        (self.path / name).write_text(textwrap.dedent(text), "utf-8")

    def run(self, *words: str, timeout: float = 300, warm: bool = True) -> pytest.RunResult:
        """Run pytest on this project, with a JUnit file, in a process of its own; `warm` as for `warm.run`."""
        fixed = (*OTHERS, "-p", "no:cacheprovider", "--strict-markers", "--junitxml", str(self.path / "junit.xml"))
        if not warm:
            return self.pytester.runpytest_subprocess(*fixed, *words, timeout=timeout)
        argv, start = [sys.executable, "-m", "pytest", *fixed, *words], time.monotonic()
        done = warm_python.run(argv, os.environ, self.path, timeout=timeout)
        out, err = done.stdout.splitlines(), done.stderr.splitlines()
        return pytest.RunResult(done.returncode, out, err, time.monotonic() - start)

    def outcomes(self) -> dict[str, str]:
        """The outcome of each test in the last run: ``passed``, ``failure``, ``error`` or ``skipped``."""
        found = {}
        for case in self.cases():
            ended = [child.tag for child in case if child.tag in ("failure", "error", "skipped")]
            found[case.attrib["name"]] = " ".join(ended) or "passed"
        return found

    def codes(self) -> dict[str, str]:
        """Codes by test, from the properties of the JUnit file."""
        return {
            case.attrib["name"]: entry.attrib["value"]
            for case in self.cases()
            for entry in case.iter("property")
            if entry.attrib["name"] == "shadowgraph"
        }

    def said(self, test: str) -> str:
        """The failure texts of one test."""
        (case,) = [case for case in self.cases() if case.attrib["name"] == test]
        return "\n".join(child.text or "" for child in case if child.tag in ("failure", "error"))

    def cases(self) -> list[ElementTree.Element]:
        return list(ElementTree.parse(self.path / "junit.xml").iter("testcase"))
