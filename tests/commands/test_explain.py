"""`shadowgraph explain`: one text for the command, the reports' remedies and the docs."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from commands.verb_makers import Capture, document, printed, refused

from shadowgraph import checks
from shadowgraph.checks.kinds import BUILT_IN, kind_of, kinds, titles
from shadowgraph.render.text.explanations import explanations

ROOT = Path(__file__).resolve().parent.parent.parent


def test_every_kind_is_explained() -> None:
    assert list(explanations()) == [kind.code for kind in kinds()]
    assert all(explanation.remedy for explanation in explanations().values())
    assert [*explanations()] == [*titles()]


def test_a_code_stands_with_its_kind_alone() -> None:
    """The literal of a code: in the folder of its kind, with the reserved ones, and in the demos."""
    package = Path(checks.__path__[0]).parent
    found = {
        path.relative_to(package).parts[:2]
        for path in package.rglob("*.py")
        if re.search(r"[\"']SG1\d\d[\"']", path.read_text("utf-8"))
    }
    homes = {(f"{kind.__module__.rsplit('.', 2)[1]}") for kind in map(type, BUILT_IN)}
    assert {where for where in found if where[0] != "demos"} == {("checks", home) for home in homes}


def test_the_docs_have_the_same_text() -> None:
    """`tools/update_docs.py` puts it there."""
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        from update_docs import with_explanations
    finally:
        sys.path.remove(str(ROOT / "tools"))
    page = (ROOT / "docs" / "findings.md").read_text("utf-8")
    assert with_explanations(page) == page, "run tools/update_docs.py"
    for code in explanations():
        assert f"\n## {code}: " in page


@pytest.mark.parametrize("code", explanations())
def test_one(code: str, capsys: Capture) -> None:
    text = printed(capsys, "explain", code)
    assert text.startswith(f"{code}: {titles()[code]}\n\ncause\n  ")
    assert "\n\nevidence\n  " in text
    assert "\n\nremedy\n  " in text
    assert " ".join(kind_of(code).remedy.replace("`", "").replace("*", "").split()) in " ".join(text.split())
    assert text.index("\nremedy\n") < text.index("\nevidence\n")
    assert max(map(len, text.splitlines())) <= 100
    (kind,) = document(capsys, "explain", code)["kinds"]
    assert (kind["code"], kind["kind"]) == (code, titles()[code])
    assert kind["cause"]
    assert kind["evidence"]
    assert kind["remedy"] == kind_of(code).remedy


@pytest.mark.parametrize("code", explanations())
def test_all_of_the_evidence(code: str, capsys: Capture) -> None:
    short, text = printed(capsys, "explain", code), printed(capsys, "explain", code, "--long")
    more = len(explanations()[code].evidence) - 1
    assert ("more on evidence with --long" in short) == bool(more)
    assert len(text.splitlines()) > len(short.splitlines()) if more else text == short
    assert "](" not in text, "a link of Markdown"
    assert "--long" not in text


def test_a_list(capsys: Capture) -> None:
    text = printed(capsys, "explain")
    assert text.startswith("SG101  out-of-bounds write\nSG102  in-graph mutation\n")
    assert text.endswith("SG116  contents lost\n")
    kinds = document(capsys, "explain")["kinds"]
    assert [kind["code"] for kind in kinds] == [*titles()]


@pytest.mark.parametrize("word", ["SG104", "sg104", "104", "dangling pointer", " SG104 "])
def test_ways_to_say_it(word: str, capsys: Capture) -> None:
    assert printed(capsys, "explain", word).startswith("SG104: dangling pointer\n")


def test_an_unknown_code_offers_the_known_ones(capsys: Capture) -> None:
    said = refused(capsys, 2, "explain", "SG999")
    assert "no kind of finding is called 'SG999' (did you mean SG109?); kinds are: SG101, SG102, " in said


def test_a_narrow_terminal(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "50")
    assert max(map(len, printed(capsys, "explain", "SG101").splitlines())) <= 80
