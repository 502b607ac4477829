"""The pages of a run's memory: its map, and each finding with its bytes and its place, out of the newest dump.

Built in a thread of the status server.
"""

from __future__ import annotations

from shadowgraph.common.errors import ShadowgraphError
from shadowgraph.render.engine import render
from shadowgraph.render.html.cards import card_of
from shadowgraph.render.text.run_text import RunReport
from shadowgraph.wrap.status.dumped import NewestDumps
from shadowgraph.wrap.status.page import REFRESH

_NONE = (
    "no dump in the run folder yet. A process writes one at its first finding, and at the signal that --dump-signal "
    "names (SIGUSR2): `kill -USR2 PID`"
)
_NOT_IN_ANY = (
    "no dump in the run folder has this finding yet: there is no map, and of the bytes only what the finding kept. A "
    "process writes a dump at the signal that --dump-signal names (SIGUSR2): `kill -USR2 PID`"
)


def map_page(report: RunReport, dumps: NewestDumps) -> bytes:
    """The map of the newest dump; it says so when there is none, or no readable one."""
    try:
        memory, missing = dumps.memory(report.run, report.facts.told, ""), _NONE
    except ShadowgraphError as error:
        memory, missing = None, str(error)
    return _encoded("memory.html", memory=memory, missing=missing)


def finding_page(report: RunReport, number: int, dumps: NewestDumps) -> bytes:
    """A finding as its card, with the bytes around it and the map of its place.

    Raises
    ------
    LookupError
        When the run has no finding with that number.
    """
    told = report.facts.told
    at = next((place for place, finding in enumerate(told) if finding.id == number), None)
    if at is None:
        raise LookupError(f"this run has no finding #{number}")
    finding, near = told[at], dumps.finding(report.run, told[at], told, "../")
    return _encoded(
        "finding.html",
        finding=card_of(finding, near.bytes if near is not None else None),
        near=near,
        missing=_NOT_IN_ANY,
        before=told[at - 1].id if at else None,
        after=told[at + 1].id if at + 1 < len(told) else None,
        refresh=REFRESH,
    )


def _encoded(template: str, **values: object) -> bytes:
    return render(template, **values).encode("utf-8", "backslashreplace")
