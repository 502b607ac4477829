"""Suppression rules: which findings they fit, how their files are read and written, what the store makes of them."""

from __future__ import annotations

import os
import re
import stat
import threading
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.finding_samples import CULPRIT, FINDING, altered, run_of

from shadowgraph.common.errors import MissingFileError, UsageError
from shadowgraph.dumps.redaction import redacted
from shadowgraph.model.findings import Culprit, Status, fingerprint
from shadowgraph.model.run_facts import without_memory
from shadowgraph.model.suppression_file import append_rule, line_of, parsed_rules, read_suppressions
from shadowgraph.model.suppressions import Rule, RuleCount, Suppressions, added_counts
from shadowgraph.monitor.finding_store import FindingStore
from shadowgraph.render.text.suppressed_text import suppressed_lines
from shadowgraph.render.text.text import lines

PRINT = fingerprint(FINDING)
UNKNOWN = {"culprit": Culprit(Status.UNKNOWN), "candidates": ()}
OTHER = replace(CULPRIT, name="another_kernel")


def rules(text: str, today: str = "2026-06-01") -> Suppressions:
    return Suppressions(parsed_rules(text, "known.txt"), today)


def hides(text: str, **facts: Any) -> bool:
    return rules(text).hiding(altered(**facts)) is not None


# -- what fits ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "0123456789ab",
        "code=SG101",
        "code=SG10? buffer=*.kv_indices",
        "buffer=draft.kv_indices",
        "buffer=kv_indices",
        "buffer=worker.indices",
        "buffer=wrapper.buf",
        "kernel=fill_*",
        "file=draft.py",
        "file=app/draft.py",
        "file=/srv/app/*.py",
        "file=server.py",
        "function=prepare",
        "function=main",
        "file=draft.py function=prepare",
        'code=SG101 kernel="fill_indices" reason="known upstream"',
    ],
)
def test_a_rule_that_fits(text: str) -> None:
    assert hides(text)


@pytest.mark.parametrize(
    "text",
    [
        "abcdefabcdef",
        "code=SG102",
        "code=SG101 buffer=page_table",
        "buffer=_indices",
        "buffer=kv_indice",
        "buffer=raft.kv_indices",
        "kernel=fill",
        "kernel=FILL_*",
        "file=raft.py",
        "file=draft.py function=main",
        "function=prepare_",
        "0123456789ab code=SG102",
        "file=backend.py",
    ],
)
def test_a_rule_that_does_not_fit(text: str) -> None:
    """Half a word, another letter case, two lines instead of one, and where the buffer was allocated."""
    assert not hides(text)


def test_brackets_of_a_name_are_meant_literally() -> None:
    name = 'attn["kv_indptr"]'
    assert hides(f"buffer={name}", buffer__name=name, buffer__names=(name,))
    assert hides("buffer=kv_indptr", buffer__name=name, buffer__names=(name,)), "by the key alone"
    assert hides("buffer=layers[3].*", buffer__name="layers[3].k", buffer__names=("layers[3].k",))
    assert not hides("buffer=layers[3].*", buffer__name="layers3.k", buffer__names=("layers3.k",))


def test_every_launch_that_may_have_done_it_must_fit() -> None:
    candidate, other = replace(CULPRIT, status=Status.CANDIDATE), replace(OTHER, status=Status.CANDIDATE)
    assert hides("kernel=fill_*", culprit=candidate, candidates=())
    assert not hides("kernel=fill_*", culprit=candidate, candidates=(other,)), "it may have been the other one"
    assert hides("kernel=*_*", culprit=candidate, candidates=(other,))
    assert not hides("kernel=fill_*", candidates=(OTHER,)), "both did, and only one is known"
    assert hides("kernel=fill_*", candidates=(other,)), "a confirmed one rules out those that could have"
    assert not hides("kernel=?*", **UNKNOWN)
    assert not hides("file=draft.py", **UNKNOWN)
    assert hides("buffer=kv_indices", culprit=candidate, candidates=(other,)), "a buffer's rule asks for no launch"


# -- files -------------------------------------------------------------------------------------------------------------


def suppressions(tmp_path: Path, text: str) -> Suppressions:
    path = tmp_path / "known.txt"
    path.write_text(text, encoding="utf-8")
    return read_suppressions(str(path))


def prints(read: Suppressions) -> set[str]:
    return {rule.fingerprint for rule in read.rules}


def test_a_file_of_fingerprints(tmp_path: Path) -> None:
    text = "# known\n\n0123456789ab  a bug of ours, don't 3 < 4\n  abcdefabcdef#upstream\n\t# more\n0123456789ab\n"
    read = suppressions(tmp_path, text)
    assert prints(read) == {"0123456789ab", "abcdefabcdef"}
    assert [rule.reason for rule in read.rules] == ["a bug of ours, don't 3 < 4", ""]
    assert [rule.place.rpartition(":")[2] for rule in read.rules] == ["3", "4"]
    assert prints(suppressions(tmp_path, "")) == set()
    assert prints(suppressions(tmp_path, "0123456789ab\r\nabcdefabcdef")) == {"0123456789ab", "abcdefabcdef"}
    assert prints(suppressions(tmp_path, "\ufeff0123456789ab\n")) == {"0123456789ab"}, "as some editors write UTF-8"


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("SG101 out-of-bounds write\n", 1, "'SG101' is no fingerprint (12 hexadecimal digits, see a report)"),
        ("# fine\n0123456789ab\n\n0123456789a\n", 4, "'0123456789a' is no fingerprint"),
        ("0123456789abc", 1, "'0123456789abc' is no fingerprint"),
        ("0123456789AB", 1, "'0123456789AB' is no fingerprint"),
        ("\n0123456789ag # g", 2, "'0123456789ag' is no fingerprint"),
        ("code=SG101 kernle=fill", 1, "no key 'kernle'; did you mean kernel?"),
        ("0123456789ab expire=2027-01-31", 1, "no key 'expire'; did you mean expires?"),
        ("\n\ncode=SG999", 3, "no kind of finding has a code like 'SG999'"),
        ("code=sg101", 1, "no kind of finding has a code like 'sg101'"),
        ("code=SG101 expires=soon", 1, "expires must be a date such as 2027-01-31, not 'soon'"),
        ("code=SG101 expires=2027-02-30", 1, "expires must be a date such as 2027-01-31, not '2027-02-30'"),
        ("code=SG101 expires=20270131", 1, "expires must be a date"),
        ("code=SG101 code=SG102", 1, "code is given twice"),
        ("buffer=", 1, "buffer is empty"),
        ('buffer=""', 1, "buffer is empty"),
        ('kernel="fill', 1, "the quoted text of kernel does not end"),
        ("kernel='fill'x", 1, "the quoted text of kernel does not end, or something follows its quote"),
        ("buffer=*", 1, "the rule would hide every finding"),
        ("code=SG*", 1, "the rule would hide every finding"),
        ("reason=why", 1, "the rule would hide every finding"),
        ("expires=2027-01-31", 1, "the rule would hide every finding"),
        ("code=SG101 and more", 1, "'and' is no fingerprint"),
    ],
)
def test_a_line_that_is_no_rule(tmp_path: Path, text: str, line: int, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        suppressions(tmp_path, text)
    assert f"known.txt:{line}: {said}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.txt")
    with pytest.raises(
        MissingFileError, match=r"cannot read suppressions [^:]*missing\.txt: No such file or directory$"
    ):
        read_suppressions(missing)
    with pytest.raises(MissingFileError, match="cannot read suppressions"):
        read_suppressions(str(tmp_path))
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(MissingFileError, match=r"cannot read suppressions .*: it is no text in UTF-8$"):
        read_suppressions(str(binary))


def test_comments_and_quotes() -> None:
    (rule,) = parsed_rules("  buffer=workspace#2  reason='see #12'   # upstream\n", "known.txt")
    assert (rule.buffer, rule.reason, rule.place) == ("workspace#2", "see #12", "known.txt:1")
    (rule,) = parsed_rules(r'kernel="void fill<\"a b\">(int*)"', "known.txt")
    assert rule.kernel == 'void fill<"a b">(int*)'


@pytest.mark.parametrize(
    "rule",
    [
        Rule(fingerprint="0123456789ab"),
        Rule(fingerprint="0123456789ab", reason='known, see "#12" \\ 3', expires="2027-01-31"),
        Rule(code="SG101", buffer='attn["kv indptr"]', kernel="void f<int>(a, b)", file="a b/c.py", function="f"),
        Rule(buffer="'x'", reason="it's"),
        Rule(buffer="workspace#2"),
    ],
)
def test_a_written_rule_reads_as_it_was(tmp_path: Path, rule: Rule) -> None:
    place = append_rule(tmp_path / "new.txt", rule)
    assert place == f"{tmp_path / 'new.txt'}:1"
    assert read_suppressions(tmp_path / "new.txt").rules == (replace(rule, place=place),)


def test_what_is_in_a_file_stays(tmp_path: Path) -> None:
    path, link = tmp_path / "known.txt", tmp_path / "link.txt"
    path.write_bytes(b"\xef\xbb\xbf# mine\r\n0123456789ab why")
    path.chmod(0o640)
    link.symlink_to(path)
    place = append_rule(link, Rule(code="SG102"), "SG102 in-graph\nmutation")
    assert path.read_bytes() == b"\xef\xbb\xbf# mine\r\n0123456789ab why\n# SG102 in-graph mutation\ncode=SG102\n"
    assert place == f"{link}:4"
    assert read_suppressions(path).rules[1].place == f"{path}:4"
    assert link.is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_nothing_is_added_to_a_damaged_file_or_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "known.txt"
    path.write_text("nonsense\n")
    with pytest.raises(UsageError, match=r"known\.txt:1: 'nonsense' is no fingerprint"):
        append_rule(path, Rule(code="SG101"))
    assert path.read_text() == "nonsense\n"
    path.write_text("code=SG102\n")
    write = os.write
    monkeypatch.setattr(os, "write", lambda number, data: write(number, data[:4]))
    with pytest.raises(MissingFileError, match="no space left on device"):
        append_rule(path, Rule(code="SG101"))
    assert path.read_text() == "code=SG102\n"


def test_rules_appended_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "known.txt"
    work = [threading.Thread(target=append_rule, args=(path, Rule(buffer=f"b{number}"), "why")) for number in range(16)]
    for each in work:
        each.start()
    for each in work:
        each.join()
    assert {rule.buffer for rule in read_suppressions(path).rules} == {f"b{number}" for number in range(16)}
    assert all(line_of(rule) in path.read_text() for rule in read_suppressions(path).rules)


# -- the store ---------------------------------------------------------------------------------------------------------


def test_counts_by_rule() -> None:
    book = FindingStore(rules("kernel=nothing\ncode=SG101 buffer=kv_indices\ncode=SG101\n"))
    for _ in range(3):
        assert not book.add(FINDING, "kernel")[1]
    book.add(altered(culprit=OTHER), "another")
    book.add(altered(buffer__name="b", buffer__names=("b",), aliases=()), "kernel")
    assert [(row.findings, row.sightings, row.is_stale) for row in book.rule_counts] == [
        (0, 0, True),
        (2, 4, False),
        (1, 1, False),
    ]
    assert (book.suppressed, len(book), len(book.hidden)) == (5, 0, 3)
    assert {finding.suppressed_by for finding in book.hidden} == {"known.txt:2", "known.txt:3"}


def test_a_hidden_finding_hides_no_other() -> None:
    book = FindingStore(rules("kernel=fill_*"))
    book.add(FINDING, "kernel")
    kept, new = book.add(altered(culprit=OTHER), "kernel")
    assert (new, kept.id, kept.occurrences) == (True, 1, 1), "the same place, key and side: another launch"
    again, new = book.add(altered(**UNKNOWN), "kernel")
    assert (new, again.id, book.findings) == (False, 1, (again,))


def test_a_confirmed_culprit_decides_again() -> None:
    book = FindingStore(rules("kernel=fill_*"))
    kept, new = book.add(altered(**UNKNOWN), "unseen")
    assert new
    revised = book.revise(kept.id, CULPRIT)
    assert revised is not None
    assert (revised.suppressed_by, book.findings, len(book)) == ("known.txt:1", (), 0)
    assert book.get(kept.id) == revised, "it stays under its id, for those that were told of it"
    stirs = book.stirs
    other = book.revise(kept.id, CULPRIT, (OTHER,))
    assert other is not None
    assert (other.suppressed_by, book.findings) == ("", (other,)), "another launch did it as well"
    assert book.stirs == stirs + 1, "as a new error"


def test_what_was_hidden_for_a_guess_is_shown_when_that_is_wrong() -> None:
    book = FindingStore(rules("kernel=fill_*"))
    guess = replace(CULPRIT, status=Status.CANDIDATE)
    assert not book.add(altered(culprit=guess, candidates=()), "kernel")[1]
    kept, new = book.add(altered(culprit=OTHER), "kernel")
    assert new
    assert book.findings == (kept,)


def test_an_expired_rule_hides_nothing_and_says_so() -> None:
    text = "code=SG101 expires=2026-05-31 reason=soon\ncode=SG101 expires=2026-06-01\n"
    today, after = (FindingStore(rules(text, day)) for day in ("2026-06-01", "2026-06-02"))
    assert not today.add(FINDING, "kernel")[1], "its last day"
    assert after.add(FINDING, "kernel")[1]
    assert [row.expired for row in today.rule_counts] == [True, False]
    first, second = after.rule_counts
    assert (first.expired, second.expired, first.shown, first.sightings) == (True, True, 1, 0)
    assert first.sentence() == "expired on 2026-05-31, hides nothing, 1 finding of it shown: code=SG101 (soon)"


def test_hidden_findings_are_bounded() -> None:
    book = FindingStore(rules("code=SG101"))
    for number in range(300):
        book.add(altered(culprit__name=f"kernel_{number}"), "kernel")
    assert (book.suppressed, len(book.hidden)) == (300, 256)


# -- what is said ------------------------------------------------------------------------------------------------------

RULE = Rule("/srv/known.txt:3", code="SG101", reason="upstream")
COUNTS = (
    RuleCount(RULE, 2, 1200),
    RuleCount(Rule("/srv/known.txt:4", kernel="fill_*")),
    RuleCount(Rule("/srv/known.txt:5", buffer="b", expires="2026-01-31"), expired=True),
)


def text(**facts: Any) -> list[str]:
    return [line.plain for line in lines(run_of(**facts)) if "suppress" in line.plain]


def test_a_report_says_what_each_rule_hid() -> None:
    first = ["suppressed: 2 findings, 1,200 sightings", "suppression /srv/known.txt:3: 2 findings, 1,200 sightings: "]
    last = "suppression /srv/known.txt:5: expired on 2026-01-31, hides nothing: buffer=b"
    stale = "suppression /srv/known.txt:4: stale, hid nothing in this run: kernel=fill_*"
    first[1] += "code=SG101 (upstream)"
    assert text(suppressed=1200, suppressions=COUNTS) == [*first, last], "a run that goes on may still need a rule"
    assert text(suppressed=1200, suppressions=COUNTS, ended=True) == [first[0], first[1], stale, last]
    assert text() == []


def test_many_stale_rules_take_few_lines() -> None:
    many = tuple(RuleCount(Rule(f"known.txt:{number}", kernel=f"k{number}")) for number in range(50))
    said = text(suppressions=many, ended=True)
    assert len(said) == 21
    assert said[-1] == "suppression: 30 more rules hid nothing in this run"
    assert text(suppressions=many) == []


def test_too_many_rules() -> None:
    file = "".join(f"buffer=b{number}\n" for number in range(4097))
    with pytest.raises(UsageError, match=r"^known.txt:4097: more than 4,096 rules"):
        parsed_rules(file, "known.txt")
    assert len(parsed_rules(file.rpartition("b4096")[0] + "b1", "known.txt")) == 4096


def blocks() -> list[str]:
    """The examples of the documentation: a file of rules, and what a report says of them."""
    docs = (Path(__file__).parents[1] / "docs" / "findings.md").read_text("utf-8")
    return re.findall(r"```text\n(.*?)```", docs.partition("## Suppressions")[2], re.DOTALL)


def test_the_documentation_shows_what_is_read_and_said() -> None:
    file, said = blocks()
    first, second, third, fourth, fifth = parsed_rules(file, "known.txt")
    assert (first.fingerprint, second.reason) == ("0123456789ab", "fixed by the next release")
    rows = (
        RuleCount(replace(third, place="known.txt:3"), 2, 5),
        RuleCount(replace(fourth, place="known.txt:4")),
        RuleCount(replace(fifth, place="known.txt:5", expires="2026-01-31"), expired=True, shown=1),
    )
    assert said.splitlines() == [line.plain for line in suppressed_lines(5, rows, ended=True)]


def test_counts_of_processes_are_added() -> None:
    other = (RuleCount(RULE), RuleCount(COUNTS[1].rule, 1, 1), COUNTS[2])
    added = added_counts([COUNTS, other])
    assert [(row.findings, row.sightings) for row in added] == [(2, 1200), (1, 1), (0, 0)]
    assert added[2].expired
    assert not any(row.is_stale for row in added)


def test_status_pages_show_no_memory_of_hidden_findings() -> None:
    facts = run_of(hidden=(FINDING,))
    assert facts.hidden[0].window is not None
    assert without_memory(facts).hidden[0].window is None


def test_redaction_keeps_what_a_rule_names_and_drops_its_reason() -> None:
    secret = Rule("known.txt:1", buffer='cache["a prompt, or a token"].k', kernel="fill_*", reason="a prompt")
    facts = redacted(run_of(hidden=(FINDING,), suppressions=(RuleCount(secret, 1, 2),), ended=True))
    (count,) = facts.suppressions
    assert (count.rule.reason, count.rule.kernel, count.rule.buffer) == ("", "fill_*", "cache[...].k")
    assert (count.rule.place, count.findings, count.sightings, facts.ended) == ("known.txt:1", 1, 2, True)
    assert facts.hidden[0].window is None


def test_many_stars_are_tried_in_one_way() -> None:
    """Tried in all ways, for a name that does not fit, this would not end within the run."""
    name, pattern = "f(" + "float*, " * 30 + "int)", "*float*, " * 20 + "*double)"
    assert not Rule(kernel=pattern).fits(altered(culprit__name=name))
    assert Rule(kernel=pattern.replace("double", "int")).fits(altered(culprit__name=name))


def test_the_last_key_of_several_is_a_name() -> None:
    found = altered(buffer__name='attn["x"]["kv"]', buffer__names=('attn["x"]["kv"]',))
    assert Rule(buffer="kv").fits(found)
    assert not Rule(buffer="x").fits(found)
