"""What the pages have from the code: every name, option, code and figure, and nothing that is not there."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import fields
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytest.importorskip("sphinx")
sys.path[:0] = [str(ROOT / "docs"), str(ROOT / "tools")]

from building import costs, parts  # noqa: E402
from building.command_line import command_line, flags  # noqa: E402
from building.docstrings import listed  # noqa: E402
from building.exit_codes import errors, exit_codes  # noqa: E402
from building.kinds import kinds  # noqa: E402
from building.repository import from_docs, readme  # noqa: E402
from building.settings_text import settings_table, settings_text  # noqa: E402
from sphinx.errors import ExtensionError  # noqa: E402

from shadowgraph.common.options import OPTIONS  # noqa: E402
from shadowgraph.common.settings import Settings  # noqa: E402
from shadowgraph.render.text.explanations import explanations  # noqa: E402

PAGES = sorted((ROOT / "docs").rglob("*.md"))


def test_every_mark_in_a_page_has_a_maker() -> None:
    marks = [mark for page in PAGES for mark in re.findall(r"<!-- put: (\S+)", page.read_text("utf-8"))]
    assert set(marks) == set(parts.MAKERS), "a mark without a maker, or a maker that no page uses"
    assert parts.filled("a\n<!-- put: kinds -->\nb").splitlines()[1:-1] == kinds().splitlines()


@pytest.mark.parametrize("mark", ["no-such-part", 'readme "No such section"'])
def test_what_nobody_makes_ends_the_build(mark: str) -> None:
    with pytest.raises(ExtensionError, match=r"no section|nothing makes"):
        parts.filled(f"<!-- put: {mark} -->")


def test_the_readme_is_read_from_docs() -> None:
    said = from_docs(
        "[docs/wrap.md](docs/wrap.md#sglang) [tour](notebooks/tour.ipynb) [all](tools/evidence) [web](https://x.y/z)"
    )
    assert said == "[](wrap.md#sglang) [tour](../notebooks/tour.ipynb) `all` [web](https://x.y/z)"
    cannot = readme("What it cannot see")
    assert "Races between streams do not show there." in cannot
    assert "## " not in cannot
    assert "](docs/" not in cannot


def test_every_setting_is_there_with_its_variable_default_and_text() -> None:
    table, text = settings_table(), settings_text()
    assert [field.name for field in fields(Settings)] == [row.name for row in OPTIONS]
    for row in OPTIONS:
        assert f"`{row.variable}` | `{row.default!r}` | {row.kind.values} |" in table
        assert re.search(rf"^\(setting-{row.name}\)=\n`{row.name}`\n: [A-Z`].+\. Default: ", text, re.MULTILINE)
        assert all(f"`{name}`" in text for flag in row.flags.values() for name in flag.names)


def test_every_error_and_every_option_is_there() -> None:
    table, verbs = exit_codes(), command_line()
    assert {error.exit_code for error in errors()} >= {2, 3, 10, 126, 127}
    for error in (
        each for each in errors() if each.__module__ == "shadowgraph.common.errors"
    ):  # others have these codes, too
        assert f"| {error.exit_code} | `{error.__name__}` |" in table
    for verb, known in flags().items():
        section = verbs.split(f"## {verb}\n")[1].split("\n## ")[0]
        for flag in known - {"-h", "--help"}:
            assert re.search(rf":::\{{option\}} .*{re.escape(flag)}\b", section), (verb, flag)


def test_each_kind_has_its_section_and_its_row() -> None:
    headings = re.findall(r"^## (SG\d+)", (ROOT / "docs" / "findings.md").read_text("utf-8"), re.MULTILINE)
    assert headings == list(explanations()) == re.findall(r"\| \[(SG\d+)\]", kinds())


def test_attributes_get_the_types_of_the_class() -> None:
    doc = ["Two.", "", "Attributes", "----------", "first, last", "    Both", "    ends.", "", "Raises", "------", "X"]
    made = listed(doc, {"first": "int", "last": "int", "plain": "str", "_own": "int"})
    assert made[:5] == ["Two.", "", "Raises", "------", "X"]
    assert made[-3:-1] == ["* **first**, **last** (``int``): Both ends.", "* **plain** (``str``)"]
    assert listed(["One."], {}) == ["One."]


def figures(body: object) -> set[str]:
    return {costs._number(v) for k, v in costs.leaves(body) if isinstance(v, float) and not k.endswith(".seconds")}


def test_figures_are_those_of_the_evidence_with_card_and_source() -> None:
    shown = {name: costs.costs(name) for name in costs._SUBJECTS}
    bench = costs.evidence("bench_cuda")
    assert figures({key: bench[key] for key in ("guards", "diffs", "capture")}) <= set(
        re.findall(r"[\d,.]+\d", shown["checks"] + shown["capture"])
    )
    for name, text in shown.items():
        if name not in ("rest", "programs"):
            files = re.findall(r"\[(\w+)\.json\]", text)
            assert files, name
            for each in map(costs.evidence, files):
                assert f"{each['card']}, CUDA {each['cuda']}" in text, name
            assert "; source `" in text or "of no noted source" in text, name


def test_clean_programs_are_told_with_what_was_accused_and_what_was_found() -> None:
    shown = costs.costs("programs")
    body = costs.evidence("clean_host_baseline")
    ran, failing = body["clean"]["sources"]["all"]["ran"], len(body["clean"]["failing"])
    found = sum(row["found"] for row in body["planted"]["variants"].values())
    row = next(line for line in shown.splitlines() if f"| {found} |" in line)
    assert [f"| {count} |" in row for count in (ran, failing)] == [True, True]
    assert f"*host, torch {body['packages']['torch']}" in shown
    assert f"; source `{body['source']}`" in shown
    assert "clean_host_baseline" not in costs.costs("rest"), "no list of all its figures"


def test_what_wrapping_costs_a_server_is_told_with_the_noise() -> None:
    shown = costs.costs("serving")
    for name in ("live_small", "live_large"):
        speed = costs.evidence(name)["throughput"]
        told = [speed["ratio"], *speed["ratio_of_blocks"], *speed["plain_beside_plain"]]
        (line,) = [line for line in shown.splitlines() if f" {told[0]} |" in line]
        assert all(costs._number(value) in line for value in told)
    many = costs.evidence("live_many")["steps"]
    assert len({step["said"]["outputs"] for step in many}) == 1
    assert shown.count(many[0]["said"]["outputs"]) == len(many)


def test_other_evidence_changes_the_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    body = json.loads((costs.EVIDENCE / "bench_cuda.json").read_text())
    body["small_nodes"]["wall_watched_us"], body["source"] = 98765.43, costs.source()
    (tmp_path / "bench_cuda.json").write_text(json.dumps(body))
    (tmp_path / "bench_new.json").write_text(json.dumps({"packages": {"torch": "9.9"}, "runs": [{"us": 1234.5}]}))
    before = costs.costs("replay")
    assert "98,765.43" not in before
    monkeypatch.setattr(costs, "EVIDENCE", tmp_path)
    costs.evidence.cache_clear()
    try:
        after, rest = costs.costs("replay"), costs.costs("rest")
    finally:
        costs.evidence.cache_clear()
    assert "98,765.43" in after
    assert "the one that these pages are of" in after
    assert "| `runs.0.us` | 1,234.5 |" in rest
    assert "9.9" not in rest


def test_no_page_has_a_figure_of_its_own_about_time() -> None:
    page = (ROOT / "docs" / "costs.md").read_text("utf-8")
    assert not re.search(r"\d[\d,.]* ?(µs|ms|us)\b", re.sub(r"The bound for guards is 10 µs", "", page))


def test_the_diagrams_are_those_that_are_drawn() -> None:
    from draw_docs import IMAGES, SHEETS

    assert {path.stem for path in IMAGES.glob("*.svg")} == set(SHEETS)
    page = (ROOT / "docs" / "how.md").read_text("utf-8")
    for name, sheet in SHEETS.items():
        assert (IMAGES / f"{name}.svg").read_text("utf-8") == sheet().svg(), "run tools/draw_docs.py"
        assert f"](images/{name}.svg)" in page
