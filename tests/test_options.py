"""One row of the table makes an option; every surface offers exactly the options of the table, in the same words."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields, make_dataclass
from pathlib import Path
from typing import Any

import pytest

from shadowgraph.commands import wrap
from shadowgraph.common.errors import UsageError
from shadowgraph.common.option_kinds import Bytes, Choice, Count, Kind, Limit, Switch, Words
from shadowgraph.common.options import OPTIONS, CommandLine, Flag, Option, add_flags, defaults_of, given, option
from shadowgraph.common.settings import Settings, of
from shadowgraph.integrations.ipython.options import cell_options, cell_parser
from shadowgraph.integrations.pytest import plugin
from shadowgraph.integrations.pytest.options import parsed

DOCS = Path(__file__).resolve().parents[1] / "docs"
COLOUR = Option(
    "colour", "red", Choice(("red", "blue")), "colour of the canary", flags={"wrap": Flag(("--colour", "--color"))},
    defaults={"wrap": "blue"},
)  # fmt: skip
TABLE = (*OPTIONS, COLOUR)
Parsers = dict[str, dict[str, argparse.Action]]


class PytestParser:
    """As much of pytest's parser as the plugin uses."""

    def __init__(self) -> None:
        self.parser = argparse.ArgumentParser()

    def getgroup(self, *_: str) -> PytestParser:
        return self

    def addoption(self, *names: str, **words: Any) -> None:
        self.parser.add_argument(*names, **words)

    def addini(self, *_: Any, **words: Any) -> None:
        pass


def actions(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    return {action.dest: action for action in parser._actions}


@pytest.fixture(scope="module")
def surfaces() -> Parsers:
    """The parsed options of each command line, by name."""
    wrapping, testing = argparse.ArgumentParser(), PytestParser()
    wrap.add_arguments(wrapping)
    plugin.pytest_addoption(testing)  # type: ignore[arg-type]
    found = {name.removeprefix("shadowgraph_"): action for name, action in actions(testing.parser).items()}
    return {"wrap": actions(wrapping), "pytest": found, "magic": actions(cell_parser())}


def sample(kind: Kind) -> tuple[str, object]:
    """A text that fits, and its value."""
    if isinstance(kind, Switch):
        return "1", True
    if isinstance(kind, Choice):
        return kind.choices[-1], kind.choices[-1]
    if isinstance(kind, Bytes):
        return "2M", 2 << 20
    if isinstance(kind, (Count, Limit)):
        return "7", 7
    return ("all", "all") if not isinstance(kind, Words) or kind.words else ("run.py:7", "run.py:7")


def test_settings_have_a_field_for_each_row_and_no_other() -> None:
    assert [(field.name, field.default) for field in fields(Settings)] == [(row.name, row.default) for row in OPTIONS]
    assert len({row.name for row in OPTIONS}) == len(OPTIONS)


@pytest.mark.parametrize("row", OPTIONS, ids=lambda row: row.name)
def test_every_default_fits(row: Option) -> None:
    row.check(row.default)
    for default in row.defaults.values():
        if row.choice is None or default != row.choice[0]:
            row.check(default)
    assert row.help[0].islower() or row.help.startswith("SG")
    assert not row.help.endswith(".")


@pytest.mark.parametrize("line", ["wrap", "pytest"])
def test_a_command_line_offers_the_rows_that_have_a_flag_there(line: CommandLine, surfaces: Parsers) -> None:
    known = {row.name for row in OPTIONS}
    offered = {name: action for name, action in surfaces[line].items() if name in known}
    assert set(offered) == {row.name for row in OPTIONS if line in row.flags}
    for name, action in offered.items():
        row = option(name)
        assert tuple(action.option_strings) == row.flags[line].names
        assert action.default is None, "only what is given counts"
        assert (action.help or "").replace("%%", "%") == row.told(line)
        if isinstance(row.kind, Choice):
            assert set(action.choices or ()) == {*row.kind.choices, *(row.choice[:1] if row.choice else ())}
        elif not isinstance(row.kind, Switch):
            assert action.metavar == row.kind.metavar


def test_the_magic_offers_every_row(surfaces: Parsers) -> None:
    assert surfaces["magic"].keys() - {"name"} == {row.name for row in OPTIONS}
    for row in OPTIONS:
        action = surfaces["magic"][row.name]
        assert row.dashed in action.option_strings
        assert (f"--no-{row.dashed[2:]}" in action.option_strings) == isinstance(row.kind, Switch)
        assert (action.help or "").replace("%%", "%").startswith(row.told())


@pytest.mark.parametrize("row", OPTIONS, ids=lambda row: row.name)
def test_a_text_means_the_same_everywhere(row: Option, monkeypatch: pytest.MonkeyPatch) -> None:
    text, value = sample(row.kind)
    assert getattr(Settings.from_environment({row.variable: text}), row.name) == value
    word = row.dashed if value is True else f"{row.dashed} {text}"
    assert cell_options(word).settings == {row.name: value}
    if "pytest" not in row.flags:
        assert parsed([f"{row.name}={text}"]) == {row.name: value}
    if "wrap" in row.flags:
        flag = row.flags["wrap"]
        parser = argparse.ArgumentParser()
        add_flags(parser.add_argument, "wrap")
        words = [flag.names[0]] if value is True else [flag.names[0], text]
        found = given(vars(parser.parse_args(words)), "wrap")
        assert found == {row.name: not value if flag.off else value}
    monkeypatch.setenv(row.variable, text)
    assert row.name not in defaults_of("wrap", {row.variable: text}), "a variable goes before a command line's default"


@pytest.mark.parametrize("row", [row for row in OPTIONS if isinstance(row.kind, (Bytes, Count, Limit))], ids=str)
def test_bounds_are_the_same_everywhere(row: Option, monkeypatch: pytest.MonkeyPatch) -> None:
    refusals = set[str]()
    asks: list[Callable[[], object]] = [
        lambda: Settings.from_environment({row.variable: "-1"}),
        lambda: Settings().with_options(**{row.name: -1}),
        lambda: cell_options(f"{row.dashed}=-1"),
        lambda: Settings().with_options(**parsed([f"{row.name}=-1"])),
    ]
    for ask in asks:
        with pytest.raises(UsageError) as caught:
            ask()
        refusals.add(str(caught.value).replace("-1.0", "-1"))
    assert len(refusals) == 1


def test_the_documentation_names_each_flag_with_its_words_and_default() -> None:
    lines = (DOCS / "wrap.md").read_text("utf-8").splitlines()
    rows = {line.split("|")[1].strip().strip("`").split()[0]: line for line in lines if line.startswith("| `--")}
    for row in OPTIONS:
        if "wrap" not in row.flags:
            continue
        line = re.sub(r"`|\\(?=\|)", "", rows[row.flags["wrap"].names[0]])
        words = re.sub(r" \((default.*)\)$", "", row.told("wrap"))
        assert f"| {words}" in line, row.name
        assert line.endswith(f"| {row.default_in_words('wrap')} |".replace("|  |", "| |")), row.name
        assert all(name in line for name in row.flags["wrap"].names)


def test_one_row_makes_an_option_that_every_surface_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_dataclass("Coloured", [("colour", str, of(COLOUR))], bases=(Settings,), frozen=True, slots=True)
    assert made().colour == "red"
    assert made().with_options(colour="blue", every=2).colour == "blue"
    assert made.from_environment({"SHADOWGRAPH_COLOUR": "blue"}).colour == "blue"
    with pytest.raises(UsageError, match=r"^colour must be one of red, blue, not 'green'$"):
        made.from_environment({"SHADOWGRAPH_COLOUR": "green"})

    parser = argparse.ArgumentParser(exit_on_error=False)
    add_flags(parser.add_argument, "wrap", TABLE)
    assert given(vars(parser.parse_args(["--color", "red"])), "wrap", TABLE) == {"colour": "red"}
    assert defaults_of("wrap", {}, TABLE)["colour"] == "blue"
    assert "--colour {blue,red}" in parser.format_help()
    assert "colour of the canary (default: blue)" in " ".join(parser.format_help().split())

    assert parsed(["colour=blue"], TABLE) == {"colour": "blue"}
    with pytest.raises(UsageError, match="no option 'colour'"):
        parsed(["colour=blue"])
    assert cell_options("--colour blue --sync", TABLE).settings == {"colour": "blue", "sync": True}
    with pytest.raises(UsageError, match="colour must be one of red, blue"):
        cell_options("--colour green", TABLE)
    monkeypatch.setenv("SHADOWGRAPH_COLOUR", "green")
    with pytest.raises(UsageError, match="colour must be one of red, blue"):
        cell_options("", TABLE)


def test_the_table_is_light() -> None:
    """`shadowgraph wrap` and every run of pytest start with it."""
    code = (
        "import sys, shadowgraph.common.options; print(sorted({'dataclasses', 'inspect', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


def test_options_that_may_change_while_a_debugger_runs() -> None:
    settings = Settings(stale_rows="note", partial_reruns=False, every=3)
    assert settings.live() == {"stale_rows": "note", "partial_reruns": False}
    assert settings.fixed() == Settings(every=3)
