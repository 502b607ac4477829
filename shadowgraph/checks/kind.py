"""Base of the kinds of finding. A kind is one unit: its facts, its check, its words, its merge rule.

Each kind stands in a folder (or file) of its own, and `shadowgraph.checks.kinds` lists them. Everything else of the
package (text, JSON, pages, dumps, redaction, suppressions, `explain`, the plug-in for pytest) asks a finding's kind.
Kinds have no state; any thread may ask them. They import no torch, so that reports of dumps need none.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from shadowgraph.checks.verdicts import because, when
from shadowgraph.model.findings import Finding, Successor
from shadowgraph.model.kinds import Detail
from shadowgraph.model.stacks import Frame

if TYPE_CHECKING:
    from shadowgraph.checks.base import Check, Context, Detection
    from shadowgraph.model.buffers import Buffer

Row = tuple[str, str]  # a label and a text; with an empty label the row continues the one before


class CulpritIs(StrEnum):
    """What the culprit of a finding did to its bytes."""

    WRITER = "writer"  # changed them
    LAST_SEEN = "last_seen"  # wrote them last, of the launches that were seen: on a device overruns are not
    READER = "reader"  # took them as input


class KindWords(ABC):
    """What a kind of finding is called, and what reports say of a finding.

    Attributes
    ----------
    code, title
        ``SG101`` and ``out-of-bounds write``.
    remedy
        What to do, in two sentences.
    bytes_are, expected_label
        What the bytes of a finding are, and what the expected ones would have been, in words of a report.
    buffer_is_gone
        Whether it is about a buffer that was freed or moved.
    reports
        Public reports that are found as this kind, by programs after them: ``owner/repository#number``.
    """

    code: ClassVar[str]
    title: ClassVar[str]
    remedy: ClassVar[str] = ""
    bytes_are: ClassVar[str] = "changed"
    expected_label: ClassVar[str] = "was"
    buffer_is_gone: ClassVar[bool] = False
    reports: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def verdict(self, finding: Finding) -> str:
        """The main clause of the message, without code, phase and replay."""

    def message(self, finding: Finding) -> str:
        """The finding in one line; never empty, and the same text for the same facts."""
        first = "first " if self.has_grown(finding) else ""
        latest = "at the latest " if finding.confidence == "low" else ""
        return f"{self.code} {self.title}: {self.verdict(finding)} {first}{latest}{when(finding)}{because(finding)}"

    def has_grown(self, finding: Finding) -> bool:
        """Whether a later sighting changed more than the first one, whose phase and replay the finding has."""
        return finding.widest is not None

    def extent_rows(self, finding: Finding) -> Iterable[Row]:
        """Rows of a report right below the bytes."""
        return ()

    def rows(self, finding: Finding) -> Iterable[Row]:
        """Rows of a report below the culprits."""
        return ()

    def may_go_further(self, finding: Finding) -> bool:
        """Whether damage that reaches the end of what was armed may go on from there, unknown."""
        return True

    def victims(self, finding: Finding) -> Iterable[Successor]:
        """Other buffers that the finding is about as well."""
        return ()

    def advice(self, finding: Finding) -> str:
        """What to do about this finding."""
        return self.remedy

    def explanation(self) -> str:
        """Cause and evidence in Markdown, as in ``docs/findings.md``: by default ``explanation.md`` in its folder."""
        source = sys.modules[type(self).__module__].__file__ or ""
        return Path(source).with_name("explanation.md").read_text("utf-8")


class FindingKind(KindWords):
    """A kind of finding.

    Attributes
    ----------
    detail
        Type of its facts: a frozen msgspec struct on top of `Detail`, with the code as its tag. Redaction drops every
        field whose type is not marked, see `shadowgraph.model.redaction`. None for a kind without facts of its own.
    needs_bytes
        Whether a finding without bytes makes no sense, as in a damaged dump.
    node_is_sought
        Whether a closer look at the replay shows which node changed the bytes.
    writer_may_come_late
        Whether damage may be seen too late to know its writer, so that a later sighting supplies it.
    keeps_first_example
        Whether the facts are an example, of which the first one is kept.
    needs_observation
        Whether it follows, where nothing is declared, from operators or copies, which are observed in windows only once
        a program is in the steady state.
    """

    detail: type[Detail] | None = None
    needs_bytes: ClassVar[bool] = False
    node_is_sought: ClassVar[bool] = False
    writer_may_come_late: ClassVar[bool] = False
    keeps_first_example: ClassVar[bool] = False
    needs_observation: ClassVar[bool] = False

    def with_text(self, detail: Detail, text_of: Callable[[Frame], str]) -> Detail:
        """The detail with the source text of its most telling line."""
        return detail

    def touched(self, finding: Finding) -> str:
        """How the culprit used a whole buffer that the finding is about, before its name: ``read by``."""
        return "read by" if self.culprit_is(finding) is CulpritIs.READER else "changed by"

    def culprit_is(self, finding: Finding) -> CulpritIs:
        """What the finding's culprit did to its bytes."""
        return CulpritIs.WRITER

    def values_of(self, finding: Finding) -> int | None:
        """Serial of the buffer whose values are wrong, where it is known."""
        return finding.buffer.serial

    def cause(self, finding: Finding) -> str:
        """What tells findings apart that differ in nothing else of their fingerprint; without numbers."""
        return ""

    def make_checks(self, context: Context) -> Iterable[Check]:
        """The checks that report findings of this kind, for one debugger."""
        return ()

    def further_buffers(self, draft: Detection) -> Iterable[Buffer]:
        """Buffers besides the detection's own that its facts name."""
        return ()

    def describe(self, draft: Detection, context: Context) -> Detail | None:
        """The facts of a detection, with names; by default those that the check has given."""
        return draft.facts if isinstance(draft.facts, Detail) else None

    def alike(self, finding: Finding) -> Hashable:
        """What of its facts is equal in findings of several processes that a report shows as one."""
        return None

    def merged(self, known: Finding, again: Finding) -> Finding | None:
        """The known finding after another sighting of the same cause, where the kind's own facts decide; else None."""
        return None

    def widened(self, known: Finding, shown: Finding, further: bool) -> Detail | None:
        """The known finding's facts once its bytes are those of two sightings, of which one is shown; `further` where
        they reach further than those of the first."""
        return known.detail

    def is_same_sight(self, known: Finding, again: Finding) -> bool:
        """Whether a sighting shows nothing but the state that was already seen, and counts as no occurrence."""
        return False
