"""`shadowgraph explain`: one text for the command, the reports' remedies and the docs."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from commands.verb_makers import Capture, document, printed, refused

from shadowgraph import checks
from shadowgraph.model.findings import Kind
from shadowgraph.render.text.advice import REMEDIES
from shadowgraph.render.text.explanations import explanations, not_looked_for

ROOT = Path(__file__).resolve().parent.parent.parent


def test_every_kind_that_a_check_reports_is_explained() -> None:
    sources = [path.read_text("utf-8") for path in Path(checks.__path__[0]).glob("*.py")]
    reported = {code for text in sources for code in re.findall(r'"(SG\d{3})"', text)}
    assert len(reported) >= 7
    assert reported == set(explanations())
    assert set(REMEDIES) == set(explanations())
    assert sorted([*explanations(), *not_looked_for()]) == [kind.name for kind in Kind]


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
    assert text.startswith(f"{code}: {Kind[code]}\n\ncause\n  ")
    assert "\n\nevidence\n  " in text
    assert "\n\nremedy\n  " in text
    assert " ".join(text.split()).endswith(" ".join(REMEDIES[code].replace("`", "").replace("*", "").split()))
    assert max(map(len, text.splitlines())) <= 100
    (kind,) = document(capsys, "explain", code)["kinds"]
    assert (kind["code"], kind["kind"], kind["looked_for"]) == (code, str(Kind[code]), True)
    assert kind["cause"]
    assert kind["evidence"]
    assert kind["remedy"] == REMEDIES[code]


def test_a_list(capsys: Capture) -> None:
    text = printed(capsys, "explain")
    assert text.startswith("SG101  out-of-bounds write\nSG102  in-graph mutation\n")
    assert "not looked for by this version: SG105 (pool clobber)" in text
    kinds = document(capsys, "explain")["kinds"]
    assert [kind["code"] for kind in kinds] == [kind.name for kind in Kind]


@pytest.mark.parametrize("word", ["SG104", "sg104", "104", "dangling pointer", " SG104 "])
def test_ways_to_say_it(word: str, capsys: Capture) -> None:
    assert printed(capsys, "explain", word).startswith("SG104: dangling pointer\n")


def test_a_kind_that_is_not_looked_for(capsys: Capture) -> None:
    code = not_looked_for()[0]
    assert printed(capsys, "explain", code).endswith("\n  This version does not look for it.\n")
    assert document(capsys, "explain", code)["kinds"][0]["looked_for"] is False


def test_an_unknown_code_offers_the_known_ones(capsys: Capture) -> None:
    said = refused(capsys, 2, "explain", "SG999")
    assert "no kind of finding is called 'SG999'; kinds are: SG101, SG102, " in said


def test_a_narrow_terminal(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "50")
    assert max(map(len, printed(capsys, "explain", "SG101").splitlines())) <= 80
