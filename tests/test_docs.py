"""docs/verbs.md and docs/report.md are kept true: every output in them is the one that is printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "verbs.md").read_text("utf-8")
REPORT = (ROOT / "docs" / "report.md").read_text("utf-8")
# Addresses, processes, times of day, days, versions, bytes of canaries (which depend on addresses), line numbers.
VARYING = re.compile(
    r"(?<=on demand; ).*|(?<=  was )[0-9a-f]{2} .*|"
    r"0x[0-9a-f]+|process \d+|\d\d:\d\d:\d\d(\.\d{3})?|\d{4}-\d\d-\d\d|(?<=\.py:)\d+|^ +not  .*|[0-9a-f]{2}(?=[|*])"
)


def settled(page: str) -> list[str]:
    """Lines of the console blocks without what differs from run to run."""
    blocks = re.findall(r"```console\n(.*?)```", page, re.DOTALL)
    return [VARYING.sub("#", line) for block in blocks for line in block.splitlines()]


@pytest.mark.slow
def test_verbs_print_what_the_docs_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    from update_docs import with_outputs

    wanted = settled(PAGE)
    assert sum(line.startswith("$ shadowgraph ") for line in wanted) >= 7
    assert settled(with_outputs(PAGE, tmp_path)) == wanted, "run tools/update_docs.py"


@pytest.mark.slow
def test_the_report_is_the_one_that_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    from update_docs import with_outputs, with_words

    wanted = settled(REPORT)
    assert sum(line.startswith("SG10") for line in wanted) == 2
    assert settled(with_outputs(REPORT, tmp_path)) == wanted, "run tools/update_docs.py"
    words = with_words(REPORT, tmp_path / "buggy.dump")
    assert words == REPORT, "run tools/update_docs.py"
    for said in ("(candidate)", "not reproduced in replay 2", "at the latest while", "up to 48 bytes", "perhaps fill"):
        assert said in words


def test_every_row_of_a_report_is_explained() -> None:
    sources = "".join(path.read_text("utf-8") for path in (ROOT / "shadowgraph" / "render" / "text").glob("*_text.py"))
    for name in ("text.py", "finding_rows.py", "folding.py"):
        sources += (ROOT / "shadowgraph" / "render" / "text" / name).read_text("utf-8")
    sources += "".join(path.read_text("utf-8") for path in (ROOT / "shadowgraph" / "checks").glob("*/kind.py"))
    table = re.search(r"^\| row \|.*?\n\n", REPORT, re.DOTALL | re.MULTILINE)
    assert table is not None
    explained = {
        name for row in table[0].strip().splitlines()[2:] for name in re.findall(r"`([^`]+)`", row.split("|")[1])
    }
    shown = {line[2:13].strip() for line in settled(REPORT) if re.match(r"  [a-z]", line)}
    assert {"bytes", "culprit", "launched", "read by", "finding"} <= shown
    assert {name for name in shown if not name.startswith("tools/")} <= explained
    for name in explained - {"dump of", "+48"}:
        assert f'"{name}"' in sources, f"no report has a row {name}"


def test_every_verb_that_looks_at_a_dump_is_there() -> None:
    from shadowgraph.commands.main import parser

    (verbs,) = (action.choices for action in parser()._actions if action.dest == "command")
    assert verbs is not None
    assert {"aliases", "diff", "explain", "hexdump", "map", "nodes", "report", "timeline"} <= set(verbs)
    for verb in ("explain", "hexdump", "timeline", "aliases", "map", "diff"):
        assert f"\n## {verb}\n" in PAGE
        assert f"`shadowgraph.{verb}/1`" in PAGE


def test_links_exist() -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", PAGE):
        assert (ROOT / "docs" / target).exists(), target


def test_no_path_of_a_machine_is_shown() -> None:
    assert "tools/verbs_program.py:" in PAGE
    assert not re.search(r"(?<![\w.])/(?:work|home|tmp|root|usr)/", PAGE)
    assert str(ROOT) not in PAGE


def test_the_lengths_of_sampling_are_those_of_the_code() -> None:
    from shadowgraph.monitor.sampling import observation

    said = (ROOT / "docs" / "wrap.md").read_text("utf-8")
    said = " ".join(said.split())
    assert f"Where {observation.QUIET} replays have brought no error" in said.replace("where 512", "Where 512")
    assert (
        f"operators pass unobserved for {observation.PERIOD:,} replays, are observed for {observation.WINDOW}," in said
    )
    assert f"fewer than {observation.FAMILIAR} of its replays" in said
    assert f"one in {observation.LOOKS_APART[0]} to {observation.LOOKS_APART[1]} is looked at more closely" in said
    assert (observation.WINDOW + observation.PERIOD) / observation.WINDOW == 256, (
        "one replay in 256, say the pages on costs and the options"
    )
