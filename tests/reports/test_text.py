from __future__ import annotations

import io
import json
import re
from typing import Any

import msgspec
import pytest
import rich.console
from msgspec.structs import replace
from support.finding_samples import FINDING, altered, run_of

from shadowgraph.checks.out_of_bounds.facts import RowOverrun
from shadowgraph.model.coverage import Coverage
from shadowgraph.model.findings import Alias, Culprit, Finding, Neighbour, Reader, Severity, Status
from shadowgraph.model.guards import Side
from shadowgraph.model.kinds import decode_detail
from shadowgraph.model.phases import Phase
from shadowgraph.model.run_facts import Replays, RunFacts
from shadowgraph.model.stacks import Frame
from shadowgraph.monitor.merge_rules import widest_bytes
from shadowgraph.monitor.tensor_watches import Change
from shadowgraph.render.text.finding_rows import advice
from shadowgraph.render.text.text import Report, headline

ESCAPE = "\x1b"


def text(*findings: Finding, **facts: Any) -> str:
    return str(Report(run_of(*findings, **facts)))


def row(said: str, label: str) -> list[str]:
    """What stands under a label, its continuation lines included."""
    found: list[str] = []
    for line in said.splitlines():
        continued = found and line.startswith(" " * 13) and not re.match(r" +[+-]\d+ ", line)
        if continued or line.startswith(f"  {label:<11}"):
            found.append(line[13:])
        elif found:
            break
    return found


# -- the anatomy of a finding ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("label", "said"),
    [
        ("bytes", ["1,536 to 1,583 of a 1,536-byte buffer, 44 changed in 2 places; starts 0 bytes past the end"]),
        ("buffer", ["draft.kv_indices  int32[3, 128]  1,536 bytes at 0x7f0000001000, static, allocation 12"]),
        ("allocated", ["/srv/app/backend.py:41 in init_state", "/srv/app/server.py:7 in main"]),
        ("culprit", ["triton fill_indices, grid 3x2, defined at /srv/app/kernels.py:12 (confirmed)"]),
        ("launched", ["/srv/app/draft.py:120 in prepare", "/srv/app/server.py:9 in main"]),
        ("or", ["aten.copy_ (candidate)"]),
        (
            "rows",
            [
                "row 0 is 128 wide; 16 entries beyond it, into row 1; 12 entries lost",
                "row 2 is 128 wide; 12 entries beyond it, past the end of the buffer",
            ],
        ),
        ("read by", ["graph#1 node 4 aten.sum at /srv/app/model.py:33"]),
        ("alias", ["worker.indices is draft.kv_indices", "wrapper.buf is draft.kv_indices[0:9]"]),
        ("neighbour", ["next by address: draft.seq_lens (int64[2]), 512 bytes away"]),
        ("do", [advice(FINDING)]),
        ("finding", ["#1, error, confidence high, seen at replay_begin, fingerprint 0123456789ab"]),
    ],
)
def test_each_piece_has_its_row(label: str, said: list[str]) -> None:
    assert row(text(FINDING), label) == said


def test_the_verdict_comes_first_and_again_as_a_summary() -> None:
    lines = text(FINDING).splitlines()
    assert lines[0] == FINDING.message
    assert f"SUMMARY: shadowgraph: {FINDING.message}" in lines


def test_rows_say_what_was_hit() -> None:
    said = text(altered(rows=(RowOverrun(2, 1024, 1300, 0, (3, 4), 4),), buffer__shape=(512,)))
    assert row(said, "rows") == [
        "row 2 is 1,024 wide; 1,300 entries beyond it, into row 3 and past the end of the buffer"
    ]


def test_the_bytes_around_the_damage() -> None:
    said = text(FINDING)
    assert re.search(r"^ +\+1536 +07 00 00 00 07 00 00 00 .*7 7 7 7 +was a1 a1", said, re.MULTILINE)
    assert not re.search(r"^ +\+1520 ", said, re.MULTILINE), "rows that are as they should be are left out"
    assert re.search(r"^ +-16 ", text(altered(window__offset=-32)), re.MULTILINE)


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"bytes__truncated": True}, "; reaches the end of what was armed, so there may be more"),
        ({"bytes__distance": 1, "bytes__ranges_total": 1}, "44 changed; starts 1 byte past the end"),
        ({"bytes__side": Side.BEFORE, "bytes__distance": 8}, "; ends 8 bytes before the start"),
        (
            {"bytes__side": Side.SLACK, "bytes__first": -4},
            "-4 to 1,583 of a 1,536-byte buffer, 44 changed in 2 places\n",
        ),
        ({"culprit": Culprit(Status.UNKNOWN)}, "  culprit    not seen: no launch, operator or node that we watch"),
        ({"culprit__node": 0}, "triton fill_indices, node 0, grid 3x2"),
        ({"rule": "nondecreasing: [3] = 1 after [2] = 5"}, "  rule       nondecreasing: [3] = 1 after [2] = 5\n"),
        ({"reader": Reader("host", "tolist", None, "/srv/a.py", 3)}, "  read by    the host, tolist at /srv/a.py:3\n"),
        ({"reader": Reader("host", "item")}, "  read by    the host, item\n"),
        ({"aliases": (Alias("w.b", "bytes [0, 8)"),)}, "  alias      w.b is draft.kv_indices bytes [0, 8)\n"),
        ({"aliases": (Alias("w.b", "[0:9].view(3, 3)"),)}, "  alias      w.b is draft.kv_indices[0:9].view(3, 3)\n"),
        (
            {"neighbour": Neighbour("x", Side.BEFORE, 1024, 4, "int8", (4,))},
            "previous by address: x (int8[4]), 1,024 bytes",
        ),
        (
            {"occurrences": 1200, "revision": 2},
            "#1, revision 2, error, confidence high, seen at replay_begin, seen 1,200 times,",
        ),
        ({"severity": Severity.NOTE, "confidence": "medium"}, "#1, note, confidence medium,"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_other_facts_are_said(facts: dict[str, Any], said: str) -> None:
    assert said in text(altered(**facts))


def test_what_is_not_known_has_no_row() -> None:
    bare = altered(
        buffer__allocated=(), culprit=Culprit(Status.UNKNOWN), candidates=(), aliases=(), neighbour=None, reader=None,
        window=None, bytes=None, code="SG104",
    )  # fmt: skip
    said = text(bare)
    labels = [line[2:13].strip() for line in said.splitlines() if line.startswith("  ")]
    assert labels == ["buffer", "culprit", "do", "finding"]


@pytest.mark.parametrize("count", [8, 9, 12])
def test_long_lists_are_cut_and_counted(count: int) -> None:
    aliases = tuple(Alias(f"owner{i}", "") for i in range(count))
    rows = tuple(RowOverrun(i, 4, 1, 1, (i + 1,), 99) for i in range(count))
    said = text(altered(aliases=aliases, rows=rows))
    assert said.count(" is draft.kv_indices\n") == said.count(" is 4 wide") == 8
    assert ("more owners" in said, "more rows" in said) == (count > 8, count > 8)
    if count > 8:
        assert f"... and {count - 8} more owners\n" in said
        assert f"... and {count - 8} more rows\n" in said


def test_stacks_show_their_innermost_frames() -> None:
    stack = tuple(Frame(f"/srv/f{i}.py", i, "f") for i in range(9))
    assert row(text(altered(culprit__stack=stack)), "launched") == [f"/srv/f{i}.py:{i} in f" for i in range(5)]


def test_paths_are_shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getcwd", lambda: "/home/me")
    stack = tuple(Frame(p, 1, "f") for p in ("/v/site-packages/sglang/a.py", "/home/me/x/b.py", "/home/meg/c.py"))
    said = row(text(altered(culprit__stack=stack)), "launched")
    assert said == ["sglang/a.py:1 in f", "x/b.py:1 in f", "/home/meg/c.py:1 in f"]


# -- the run ---------------------------------------------------------------------------------------------------------


def test_coverage_comes_last_after_the_counts() -> None:
    covered = "coverage: guarded exactly against out-of-bounds writes: 63 % of the 100 B that graphs write"
    covered += "; 0 records dropped"
    assert text() == f"shadowgraph: no findings\n{covered}\n"
    assert text(FINDING).splitlines()[-3:] == [
        f"SUMMARY: shadowgraph: {FINDING.message}",
        "shadowgraph: 1 finding",
        covered,
    ]
    both = text(FINDING, FINDING, notes=(altered(severity=Severity.NOTE),))
    assert both.splitlines()[-2:] == ["shadowgraph: 2 findings, 1 note", covered]
    none = text(coverage=Coverage(0, 0, (), 0))
    assert (
        none == "shadowgraph: no findings\n"
        "coverage: no graph captured under the debugger wrote anything yet; 0 records dropped\n"
    )


def test_the_counts_of_a_program_that_met_an_early_end() -> None:
    fence, child = "the program died at a fence", "process 7 ended by ValueError"
    none = text(endings=(fence, child)).splitlines()[-2]
    assert none == f"shadowgraph: no findings before {fence}, {child}; no graph was replayed"
    replayed = text(endings=(child,), replays=Replays(3, 3, 3)).splitlines()[-2]
    assert replayed == f"shadowgraph: no findings before {child}"
    assert text(FINDING, endings=(fence,)).splitlines()[-2] == f"shadowgraph: 1 finding; {fence}"
    many = text(endings=(child,) * 4).splitlines()[-2]
    assert many.startswith(f"shadowgraph: no findings before {child}, {child}, {child}, ...; ")


def test_the_headline_is_the_first_finding_that_is_no_consequence() -> None:
    assert headline(run_of()) == "shadowgraph: no findings"
    assert headline(run_of(FINDING)) == FINDING.message
    other = altered(fingerprint="0" * 12, id=8)
    assert headline(run_of(FINDING, other)) == f"{FINDING.message}, and 1 more finding"


def test_a_count_of_a_later_replay_is_not_told_of_the_first_one() -> None:
    first = altered(code="SG102", detail=None, phase=Phase.REPLAY, replay=1, bytes__count=8)
    later = replace(first, replay=3, bytes=replace(first.bytes, count=13))
    both = widest_bytes(first, later)
    assert both is not None
    assert both.message == (
        "SG102 in-graph mutation: fill_indices changed up to 13 bytes of draft.kv_indices, which the host had read "
        "before and read again (aten.sum) without writing it, first in replay 1 of graph#1"
    )
    assert row(text(both), "most") == ["in replay 3 of graph#1: the bytes shown are from then"]
    again = widest_bytes(both, first)
    assert again is both, "a smaller sighting changes nothing"
    assert "changed 8 bytes" in first.message
    assert row(text(first), "most") == []


def test_notes_are_shown_and_not_summed_up() -> None:
    said = text(notes=(altered(severity=Severity.NOTE),))
    assert FINDING.message in said
    assert "SUMMARY" not in said


def test_what_stood_in_the_way_is_said() -> None:
    said = text(suppressed=1200, faults={"check: KeyError: 1": 3}, guards_shrunk=2, guards_dropped=1000)
    assert "suppressed: 1,200 sightings\n" in said
    assert "internal error of shadowgraph, 3 times (the program went on): check: KeyError: 1\n" in said
    assert re.search(r"^guards: 2 .*1,000 left out", said, re.MULTILINE)
    assert "guards:" not in text(suppressed=1)
    assert "guards:" in text(guards_shrunk=1)
    assert "guards:" in text(guards_dropped=1)
    assert "suppressed" not in text(guards_shrunk=1)


def test_watches_show_their_last_changes() -> None:
    stack = (Frame("/srv/a.py", 3, "f"),)
    changes = [Change(None, None, None, "early", None, (), i, i) for i in range(8)]
    changes += [
        Change(Phase.REPLAY, "graph#1", 4, "aten.add_", 2, stack, 0, 7),
        Change(Phase.SETUP, None, None, None, None, (), 4, 4),
    ]
    said = text(watches=(("lens", tuple(changes), 5),))
    assert said.startswith("watch lens: 15 changes\n")
    assert "graph#1 replay 4 node 2: aten.add_ wrote [0, 7] at /srv/a.py:3\n" in said
    assert "setup: an unseen writer wrote [4, 4]\n" in said
    assert "eager code: early wrote [7, 7]\n" in said
    assert said.count("early") == 6
    assert text(watches=(("x", (changes[0],), 0),)).startswith("watch x: 1 change\n")


# -- where it is shown -----------------------------------------------------------------------------------------------


def test_a_pipe_gets_plain_text_of_any_width(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.setenv("COLUMNS", "40")
    long = altered(buffer__name="root." + "x" * 300 + "[red]{bold}:smile:[/red]")
    report = Report(run_of(long))
    stream = io.StringIO()
    report.print(stream)
    report.print()
    assert capsys.readouterr().out == stream.getvalue() == str(report)
    assert ESCAPE not in str(report)
    assert f"{long.buffer.name}  int32[3, 128]" in str(report)


def test_a_terminal_gets_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    stream, writes = Terminal(), []
    monkeypatch.setattr(stream, "write", lambda text: writes.append(text) or io.StringIO.write(stream, text))
    report = Report(run_of(FINDING, notes=(altered(severity=Severity.NOTE),)))
    report.print(stream)
    coloured = stream.getvalue()
    assert writes == [coloured], "a notebook takes each write for an output of its own"
    assert re.sub(rf"{ESCAPE}\[[\d;]*m", "", coloured) == str(report)
    assert coloured.startswith(f"{ESCAPE}[1;31mSG101")
    assert f"{ESCAPE}[1;33mSG101" in coloured
    assert f"{ESCAPE}[1;31m07 " in coloured, "changed bytes stand out"
    assert f"{ESCAPE}[2ma1 " in coloured


def test_str_is_plain_wherever_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    said = text(FINDING)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(rich.console, "_is_jupyter", lambda: True)
    assert text(FINDING) == said
    assert ESCAPE not in said
    stream = io.StringIO()
    Report(run_of(FINDING)).print(stream)
    assert "SUMMARY: shadowgraph:" in stream.getvalue(), "a notebook's own display does not swallow a file"


def test_repr_counts() -> None:
    assert repr(Report(run_of(FINDING, notes=(FINDING, FINDING)))) == "<Report: 1 finding, 2 notes>"


def test_the_json_document() -> None:
    changes = (Change(Phase.REPLAY, "graph#1", 4, "aten.add_", 2, (), 0, 7),)
    facts = run_of(FINDING, notes=(FINDING,), watches=(("lens", changes, 0),), faults={"f": 1})
    document = json.loads(Report(facts).to_json())
    assert document["schema"] == "shadowgraph.report/2"
    assert set(document["versions"]) == {"shadowgraph", "python", "torch", "numpy"}
    assert document["findings"] == document["notes"] == [FINDING.to_dict()]
    assert (document["coverage"]["written"], document["coverage"]["unguarded"]) == (100, [])
    assert document["graphs"] == [["graph#1", 5, 7]]
    del document["schema"], document["versions"]
    assert msgspec.convert(document, RunFacts, dec_hook=decode_detail) == facts
