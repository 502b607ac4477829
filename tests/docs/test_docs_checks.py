"""The build of the docs fails on what it must fail on; that it passes on the docs themselves is a step of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytest.importorskip("sphinx")
sys.path[:0] = [str(ROOT / "docs"), str(ROOT / "tools")]

from building.options import faults_of  # noqa: E402
from building.public import docstring_faults, silent_members, unlisted  # noqa: E402

import shadowgraph  # noqa: E402

MODULE = '''
"""Functions to document."""


def told(count: int) -> int:
    """Count up.

    Parameters
    ----------
    count
        From where.
    """


def half_told(count: int) -> int:
    """Count up."""


def untold(count: int) -> int:
    return count
'''
PAGE = """
# A page

[broken](nowhere.md) and [an anchor](#nothing-here). `--no-such-option` and `SHADOWGRAPH_NOTHING`.

    shadowgraph wrap --no-such-flag -- python --whatever

```{eval-rst}
.. autofunction:: documented.half_told
.. py:function:: other(x: documented.Missing)
```
"""


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("--error-exitcode", []),
        ("--error-exit-code", ["--error-exit-code"]),
        ("SHADOWGRAPH_EVERY=4", []),
        ("SHADOWGRAPH_EVRY=4", ["SHADOWGRAPH_EVRY"]),
        ("shadowgraph wrap --every 4 -- python x.py --model tiny", []),
        ("$ shadowgraph wrap --evry 4 -- python x.py", ["--evry"]),
        ("shadowgraph hexdump --every 4 buffer file", ["--every"]),
        ("shadowgraph hexdmp buffer file", ["hexdmp"]),
        ("shadowgraph report run  # the same; --nothing", []),
        ("$ shadowgraph map a.dump\nsome --output of it", []),
        ("--fresh", []),
        ("pytest --dist load", []),
        ("shadowgraph: status on http://127.0.0.1:9464/", []),
    ],
)
def test_options_and_variables_must_exist(text: str, wrong: list[str]) -> None:
    told = list(faults_of(text))
    assert len(told) == len(wrong)
    assert all(word in said for word, said in zip(wrong, told, strict=True))


def test_docstrings_must_name_parameters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "documented_here.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    said = {name: list(docstring_faults(f"documented_here.{name}", False)) for name in ("told", "half_told", "untold")}
    assert said["told"] == []
    assert ["PR01" in fault for fault in said["half_told"]] == [True]
    assert ["GL08" in fault for fault in said["untold"]] == [True]


def test_members_without_docstring_are_found() -> None:
    class Holder:
        """A class."""

        def told(self) -> None:
            """Do."""

        def untold(self) -> None: ...

        @property
        def untold_too(self) -> int:
            return 0

        def _own(self) -> None: ...

    Holder.__module__ = "shadowgraph.made_up"
    assert list(silent_members(Holder)) == ["Holder.untold", "Holder.untold_too"]
    assert list(silent_members(shadowgraph.Debugger)) == []


def test_public_names_must_be_on_a_page() -> None:
    names = [f"shadowgraph.{name}" for name in shadowgraph.__all__]
    assert unlisted(names) == []
    assert unlisted(set(names) - {"shadowgraph.debug"}) == ["debug"]


@pytest.mark.slow
def test_a_page_with_faults_fails_the_build(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    conf = (ROOT / "docs" / "conf.py").read_text("utf-8")
    home = "Path(__file__).resolve().parent.parent"
    assert home in conf
    conf = conf.replace(home, f"Path({str(ROOT)!r})").replace('html_static_path = ["static"]', "html_static_path = []")
    (source / "conf.py").write_text(conf)
    (source / "index.md").write_text(PAGE)
    (source / "documented.py").write_text(MODULE)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(source)])}
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-n", str(source), str(tmp_path / "out")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1, done.stderr
    for said in (
        "nowhere.md",
        "nothing-here",
        "no option is called --no-such-option",
        "no variable is called SHADOWGRAPH_NOTHING",
        "no option of wrap is called --no-such-flag",
        "documented.half_told: PR01",
        "reference target not found: documented.Missing",
        "other is on a page and does not exist",
        "shadowgraph.debug is public and on no page",
    ):
        assert said in done.stderr, said
    assert "--whatever" not in done.stderr
