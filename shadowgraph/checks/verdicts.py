"""The one-line verdict of a finding, made from its facts. Pure functions; any thread."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from shadowgraph.common.kernel_names import brief
from shadowgraph.common.words import form, plural
from shadowgraph.model.findings import Finding, Severity, Status
from shadowgraph.model.guards import Side
from shadowgraph.model.overrun_extents import Reached
from shadowgraph.model.phases import Phase
from shadowgraph.model.probes import Search

_NAME = 60  # most columns of a culprit's name


def when(finding: Finding | Reached) -> str:
    """Phase, graph and replay in words."""
    if finding.phase is Phase.PREPARE and finding.graph:
        return f"while preparing replay {finding.replay} of {finding.graph}"
    if finding.phase is Phase.REPLAY and finding.graph:
        return f"in replay {finding.replay} of {finding.graph}"
    return {
        Phase.SETUP: "during set-up, before any replay",
        Phase.CAPTURE: "during a capture",
        Phase.PREPARE: "in prepare",
        Phase.REPLAY: "in a replay",
        Phase.EAGER: "in eager code",
    }[finding.phase]


def who(finding: Finding) -> str:
    """The culprit in words."""
    culprit = finding.culprit
    if culprit.name is None:
        before = f" before {os.path.basename(culprit.file)}:{culprit.line}" if culprit.file else ""
        return f"an unseen writer{before}"
    node = f" (node {culprit.node})" if culprit.node is not None else ""
    perhaps = "perhaps " if culprit.status is Status.NOT_REPRODUCED else ""
    return f"{perhaps}{brief(culprit.name, _NAME)}{node}"


def verdict(finding: Finding) -> str:
    """The one-line verdict; never empty, and the same text for the same facts."""
    say = _SAYS.get(finding.code, _other)
    first = "first " if _of_several(finding) else ""
    latest = "at the latest " if finding.confidence == "low" else ""
    return f"{finding.code} {finding.kind}: {say(finding)} {first}{latest}{when(finding)}"


def revised(finding: Finding) -> str:
    """The log line for the end of a closer look at a finding."""
    culprit = finding.culprit
    where = f" at {os.path.basename(culprit.file)}:{culprit.line}" if culprit.file and culprit.name else ""
    replay = f" of replay {culprit.seen_in}" if culprit.seen_in is not None else ""
    prefixes = f" {looked(culprit.search)}" if culprit.search is not None else ""
    said = {
        Status.CONFIRMED: f"seen in a closer look{replay}{prefixes}{where}",
        Status.NOT_REPRODUCED: f"not seen again in a closer look{replay}",
    }.get(culprit.status, f"no launch that we saw did it, says a closer look{replay}")
    return f"finding #{finding.id}, revision {finding.revision}: {finding.message}: {said}"


def looked(search: Search | None) -> str:
    """``run node by node``; ``by prefixes, 7 runs of 129 nodes``."""
    if search is None:
        return "run node by node"
    runs, nodes = plural(search.runs, "run"), plural(search.nodes, "node")
    disabled = ", the others disabled" if search.how == "disabled" else ""
    return f"by prefixes{disabled}, {runs} of {nodes}"


def _of_several(finding: Finding) -> bool:
    """Whether a later sighting reached further than the first one, whose phase and replay the finding states."""
    return finding.code == "SG101" and finding.revision > 1 and finding.occurrences > 1


def _out_of_bounds(finding: Finding) -> str:
    facts, buffer = finding.bytes, finding.buffer
    assert facts is not None
    named = f"{buffer.name} ({form(buffer.dtype, buffer.shape)}, {plural(buffer.nbytes, 'byte')})"
    most = "up to " if _of_several(finding) else ""
    further = max((reached.beyond for reached in finding.reaches), default=0)
    if facts.side is Side.AFTER:
        far = plural(max(finding.past_end, further), "byte")
        return f"{who(finding)} wrote {most}{far} past the end of {named}{_on_the_way(finding)}"
    if facts.side is Side.BEFORE:
        far = plural(max(-facts.first, further), "byte")
        return f"{who(finding)} wrote {most}{far} before the start of {named}{_on_the_way(finding)}"
    if facts.side is Side.ROW:
        return _past_the_width(finding, named)
    if facts.side is None:
        given = "outside the view that it was given" if finding.severity is Severity.ERROR else "beyond its view"
        return f"{who(finding)} wrote bytes [{facts.first}, {facts.last}] of {named}, {given},"
    return f"{who(finding)} wrote bytes [{facts.first}, {facts.last}] of {named}, which this graph did not capture,"


def _past_the_width(finding: Finding, named: str) -> str:
    lost = sum(row.lost for row in finding.rows)
    return (
        f"{who(finding)} wrote past the width of {_rows(finding)} of {named} into the next; "
        f"{lost:,} {'entry' if lost == 1 else 'entries'} lost"
    )


def _on_the_way(finding: Finding) -> str:
    """Buffers that an overrun ran over or came close to; for an overrun continued from another buffer, that buffer."""
    if finding.continues is not None:
        return f", going on from {finding.continues.buffer},"
    over = [reached.name for reached in finding.reaches if reached.over]
    if not over:
        return f", as far as {finding.reaches[0].name}," if finding.reaches else ""
    left = finding.reaches_total - len(finding.reaches) + len(over[2:])  # the unlisted ones lie between
    more = f" and {left:,} more" if left > 0 else ""
    return f", over {(', ' if more else ' and ').join(over[:2])}{more},"


def _rows(finding: Finding) -> str:
    """The rows that were overrun, the first four by number."""
    numbers = [str(row.row) for row in finding.rows]
    more = f" and {len(numbers) - 4:,} more" if len(numbers) > 4 else ""
    return f"{'row' if len(numbers) == 1 else 'rows'} {', '.join(numbers[:4])}{more}"


def _mutation(finding: Finding) -> str:
    facts = finding.bytes
    assert facts is not None
    changed = f"{who(finding)} changed {plural(facts.count, 'byte')} of {finding.buffer.name},"
    if finding.reader is None:
        return f"{changed} which host code owns,"
    said = f"{changed} which the host had read before and read again ({finding.reader.name}) without writing it,"
    return said if finding.reader.wrote is None else f"{said} to write from it {finding.reader.wrote},"


def _dangling(finding: Finding) -> str:
    buffer, ending = finding.buffer, finding.ending
    named = f"{buffer.name} ({form(buffer.dtype, buffer.shape)}, {plural(buffer.nbytes, 'byte')})"
    if ending is None:
        return f"{who(finding)} uses {named}, which is gone,"
    uses = "writes" if ending.access == "external-out" else "reads and writes" if ending.writes else "reads"
    fate = "moved to other memory" if ending.fate == "moved" else "freed"
    names = [victim.name for victim in ending.victims]
    more = f" and {len(names) - 2:,} more" if len(names) > 2 else ""
    now = f", now {' and '.join(names[:2])}{more}" if names else ""
    return f"{who(finding)} {uses} {named}, {fate} since the capture{now},"


def _invariant(finding: Finding) -> str:
    about, _, rest = (finding.rule or "").partition(": ")
    if about == "index in range":
        named = f"{finding.buffer.name} ({form(finding.buffer.dtype, finding.buffer.shape)})"
        return f"{who(finding)} was given an index out of range for {named}{', ' if rest else ''}{rest},"
    return f"{finding.buffer.name} breaks {finding.rule}, last written by {who(finding)},"


def _foreign(finding: Finding) -> str:
    facts, buffer = finding.bytes, finding.buffer
    assert facts is not None
    named = f"{buffer.name} ({form(buffer.dtype, buffer.shape)})"
    changed = f"{plural(facts.count, 'byte')} of {named}"
    return f"{who(finding)} changed {changed}, where none of its arguments leads,"


def _stale(finding: Finding) -> str:
    buffer, stale = finding.buffer, finding.stale
    named = f"{buffer.name} ({form(buffer.dtype, buffer.shape)})"
    if stale is None:
        return f"rows of {named} hold what they held in an older replay"
    if stale.viewed:
        named = f"{buffer.name} seen as {form(buffer.dtype, buffer.shape)}"
    left = rows_said((rows.first, rows.last) for rows in stale.stale)
    fresh = rows_said(stale.refreshed)
    since = [rows for rows in stale.stale if rows.replay is not None]
    latest = max(since, key=lambda rows: rows.replay or 0, default=None)
    when = f"replay {latest.replay} of {latest.graph}" if latest is not None else "an older replay"
    return f"{left} of {named} still hold what was written for {when}, though {fresh} {_was(fresh)} refreshed,"


def _was(rows: str) -> str:
    return "was" if rows.startswith("row ") else "were"


def rows_said(pairs: Iterable[tuple[int, int]]) -> str:
    """``row 0``, ``rows 1 to 3``, ``rows 0, 2 to 3 and 7 more``."""
    known = list(pairs)
    parts = [str(first) if first == last else f"{first} to {last}" for first, last in known]
    more = f" and {len(parts) - 4:,} more stretches" if len(parts) > 4 else ""
    one = len(known) == 1 and known[0][0] == known[0][1]
    return f"{'row' if one else 'rows'} {', '.join(parts[:4]) or 'unknown'}{more}"


def _rebound(finding: Finding) -> str:
    buffer, rebound = finding.buffer, finding.rebound
    named = f"{finding.graph} reads {buffer.name} ({form(buffer.dtype, buffer.shape)})"
    if rebound is None:
        return f"{named}, which host code does not refresh any more,"
    now = f" {rebound.now.name}" if rebound.now is not None else " other memory"
    if rebound.moved:
        return f"{named}, but {rebound.attribute} leads to{now} since, which host code refreshes instead,"
    instead = f", but{now}" if rebound.now is not None else ""
    return f"{named}, which host code did not refresh{instead}, as the plan needs,"


def _race(finding: Finding) -> str:
    facts = finding.bytes
    assert facts is not None
    others = [f"{brief(one.name or '', _NAME)} (node {one.node})" for one in finding.candidates[:3]]
    both = " and ".join([who(finding), *others])
    return f"{both} write the same bytes [{facts.first}, {facts.last}] of {finding.buffer.name} in no order,"


def _other(finding: Finding) -> str:
    return f"{who(finding)} on {finding.buffer.name}"


_SAYS: dict[str, Callable[[Finding], str]] = {
    "SG101": _out_of_bounds,
    "SG102": _mutation,
    "SG103": _stale,
    "SG104": _dangling,
    "SG106": _foreign,
    "SG108": _rebound,
    "SG109": _invariant,
    "SG112": _race,
}
