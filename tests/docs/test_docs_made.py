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

from building import costs, parts, support  # noqa: E402
from building.api_names import documented  # noqa: E402
from building.command_line import command_line, flags  # noqa: E402
from building.docstrings import listed  # noqa: E402
from building.exit_codes import errors, exit_codes  # noqa: E402
from building.kinds import kinds  # noqa: E402
from building.repository import from_docs  # noqa: E402
from building.settings_text import settings_table, settings_text  # noqa: E402
from update_docs import pages, with_parts  # noqa: E402

from shadowgraph.common.options import OPTIONS  # noqa: E402
from shadowgraph.common.settings import Settings  # noqa: E402
from shadowgraph.render.text.explanations import explanations  # noqa: E402

END = "<!-- end -->"


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_can_be_read_in_the_repository_and_is_current(page: Path) -> None:
    text = page.read_text("utf-8")
    assert with_parts(text) == text, "run tools/update_docs.py"
    prose = re.sub(r"<!--.*?-->|```\{.*?```|:::.*?:::|^#.*?$", "", text, flags=re.DOTALL | re.MULTILINE)
    assert len(prose.split()) > 40, "a page without content where nothing builds it"
    for gone in (r"^\(\w[\w-]*\)=$", r"^:::\{", r"\]\(#shadowgraph\.", r"\[\]\("):
        assert not re.search(gone, text, re.MULTILINE), f"GitHub does not show {gone}"


def test_every_mark_in_a_page_has_a_maker() -> None:
    marks = [
        mark for page in pages() for mark in re.findall(r"^<!-- put: (\S+)", page.read_text("utf-8"), re.MULTILINE)
    ]
    assert set(marks) == set(parts.MAKERS), "a mark without a maker, or a maker that no page uses"


def test_a_part_is_made_again_and_the_rest_stays() -> None:
    made = parts.filled(f"a\n<!-- put: kinds -->\nold\n{END}\nb\n")
    assert made == f"a\n<!-- put: kinds -->\n\n{kinds()}\n\n{END}\nb\n"
    assert parts.filled(made) == made


@pytest.mark.parametrize(
    ("page", "said"),
    [
        (f"<!-- put: no-such-part -->\n{END}", "nothing makes 'no-such-part'"),
        ("<!-- put: kinds -->", "has no end"),
        (f"<!-- put: kinds -->\n<!-- put: settings -->\n{END}\n{END}", "'kinds' has no end"),
        (f"{END}", "an end no part"),
    ],
)
def test_marks_that_are_wrong_are_refused(page: str, said: str) -> None:
    with pytest.raises(LookupError, match=said):
        parts.filled(page)


def test_links_of_pages_lead_to_files_and_headings() -> None:
    for page in pages():
        text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text("utf-8"), flags=re.DOTALL)
        for target, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", text):
            if re.match(r"\w+:", target):
                continue
            there = (page.parent / target).resolve() if target else page
            assert there.exists(), f"{page.name}: {target}"
            if anchor and there.suffix == ".md":
                assert anchor in anchors(there), f"{page.name}: {target}#{anchor}"


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    heads = [re.sub(r"[`*]|\]\([^)]*\)|\[", "", head) for head in re.findall(r"^#+ (.+)$", text, re.MULTILINE)]
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


def test_a_newcomer_is_led_to_every_page() -> None:
    for folder in (ROOT / "docs", ROOT / "docs" / "api"):
        index = (folder / "index.md").read_text("utf-8")
        index = re.sub(r"^```.*?^```", "", index, flags=re.DOTALL | re.MULTILINE)
        linked = {target for target in re.findall(r"\]\(([^)#]+)", index) if "/" not in target}
        assert {path.name for path in folder.glob("*.md")} - {"index.md"} <= linked


def test_every_name_of_the_api_is_in_a_table_with_its_file() -> None:
    for page in sorted((ROOT / "docs" / "api").glob("*.md")):
        text = page.read_text("utf-8")
        for name in documented(text):
            said = name.removeprefix("shadowgraph.") if name.count(".") == 1 else name
            (path,) = re.findall(rf"^\| \[`{re.escape(said)}`\]\((\S+)\) \| \S", text, re.MULTILINE)
            assert (page.parent / path).is_file(), name


def test_the_versions_are_those_of_the_gates_the_tools_and_the_evidence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rows = {row.split(" | ")[0].strip("| "): row.split(" | ")[1:] for row in support.support().splitlines()}
    assert rows["torch"][0] == "≥ 2.10"
    assert support.TORCH.removeprefix("torch==") in rows["torch"][1]
    assert rows["sglang"][0].startswith("0.5.11 to ")
    monkeypatch.setattr(support, "EVIDENCE", tmp_path)
    monkeypatch.setattr(support.vllm, "LAST", (0, 99, 7))
    body = {
        "card": "NVIDIA X1",
        "cuda": "99.1",
        "python": "3.99.1",
        "packages": {"torch": "9.8.7+cu991", "vllm": "0.98.0"},
    }
    (tmp_path / "made_up.json").write_text(json.dumps(body))
    table = support.support()
    for row in ("| CUDA | 12, 13 | not | 99.1 |", "| vLLM | 0.21.0 to 0.99.7 | not | 0.98.0 |", "| 9.8.7 |"):
        assert row in table
    assert "| NVIDIA X1, CUDA 99.1 | 3.99.1 | torch 9.8.7+cu991, vllm 0.98.0 | [made_up]" in support.run_on()


def test_the_root_is_read_from_docs() -> None:
    said = from_docs(
        "[docs/wrap.md](docs/wrap.md#sglang) [tour](notebooks/tour.ipynb) [all](tools/evidence) [web](https://x.y/z) "
        "[SECURITY.md](SECURITY.md)"
    )
    moved = "[wrap.md](wrap.md#sglang) [tour](../notebooks/tour.ipynb) `all` [web](https://x.y/z)"
    assert said == f"{moved} [security.md](security.md)"


def test_every_setting_is_there_with_its_variable_default_and_text() -> None:
    table, text = settings_table(), settings_text()
    assert [field.name for field in fields(Settings)] == [row.name for row in OPTIONS]
    for row in OPTIONS:
        assert f"`{row.variable}` | `{row.default!r}` | {row.kind.values} |" in table
        assert re.search(rf"^### {row.name}\n\n[A-Z`].+\. Default: ", text, re.MULTILINE)
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
            assert re.search(rf"^- `[^`]*{re.escape(flag)}\b", section, re.MULTILINE), (verb, flag)


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
    body["small_nodes"]["wall_watched_us"], body["source"] = 98765.43, "0123abcd4567"
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
    assert "; source `0123abcd4567`; " in after
    assert "| `runs.0.us` | 1,234.5 |" in rest
    assert "9.9" not in rest


def test_no_page_has_a_figure_of_its_own_about_time() -> None:
    page = re.sub(rf"<!-- put: .*?{END}", "", (ROOT / "docs" / "costs.md").read_text("utf-8"), flags=re.DOTALL)
    assert "The bound for guards is 10 µs" in page
    assert not re.search(r"\d[\d,.]* ?(µs|ms|us)\b", re.sub(r"The bound for guards is 10 µs", "", page))


def test_the_diagrams_are_those_that_are_drawn() -> None:
    from draw_docs import IMAGES, SHEETS
    from update_readme import PICTURE

    assert {path.stem for path in IMAGES.glob("*.svg")} == {*SHEETS, PICTURE.stem}
    page = (ROOT / "docs" / "how.md").read_text("utf-8")
    for name, sheet in SHEETS.items():
        assert (IMAGES / f"{name}.svg").read_text("utf-8") == sheet().svg(), "run tools/draw_docs.py"
        assert f"](images/{name}.svg)" in page
