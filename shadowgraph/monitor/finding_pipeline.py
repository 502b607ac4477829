"""Path of a detection to a stored finding: naming, counting, notification of listeners, localization.

Checks call `take` in the thread of an event, in most cases under the debugger's lock; listener calls and log lines are
posted to the outbox.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from shadowgraph.checks.base import Context, Detection
from shadowgraph.checks.verdicts import revised
from shadowgraph.common.errors import FindingsError
from shadowgraph.common.finalizer_safe_lock import weak_callback
from shadowgraph.common.internal_errors import error_barrier, log
from shadowgraph.common.settings import Settings
from shadowgraph.localize.launch_stepper import UNSEEN, LaunchStepper
from shadowgraph.localize.locator import Locator
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.findings import Batch, Culprit, Finding, Severity, Status, fingerprint
from shadowgraph.model.guards import Side
from shadowgraph.model.suppression_file import read_suppressions
from shadowgraph.monitor.finding_builder import build_finding
from shadowgraph.monitor.finding_store import FindingStore
from shadowgraph.monitor.logged_culprits import LoggedPhases, Operators, with_logged_culprits
from shadowgraph.monitor.name_search import NameSearch
from shadowgraph.monitor.overruns import Overruns
from shadowgraph.monitor.program_failures import BatchSources
from shadowgraph.monitor.source_lines import with_source_line, with_source_lines
from shadowgraph.monitor.subscriptions import Callbacks
from shadowgraph.monitor.unnoted_nodes import with_unnoted_nodes

_CANDIDATES = 8


class FindingPipeline:
    """Turns detections into stored findings.

    Parameters
    ----------
    search
        Names the buffers of a finding.
    batches
        Say which batch of requests a finding belongs to.
    told
        Subscribers that are told of every stored finding.

    Attributes
    ----------
    book
        The findings.
    inferred
        Reads by the host that are inferences and no findings: counted, and listed on request.
    stays
        Whether the bytes of a broken guard are as its damage left them; set by the owner.
    locator, stepper, context
        Localization by node and by launch, and the state that checks share; set by the owner before the first
        detection.
    """

    locator: Locator
    stepper: LaunchStepper

    def __init__(
        self,
        settings: Settings,
        search: NameSearch,
        batches: BatchSources,
        told: Callbacks[[Finding]],
        operators: Operators = lambda *_: (),
    ) -> None:
        self._settings, self._search, self._batches, self._told = settings, search, batches, told
        self._suppressions = read_suppressions(settings.suppressions) if settings.suppressions else None
        self.book = FindingStore(self._suppressions)
        self.inferred = FindingStore()
        self._overruns: Overruns | None = None
        self.stays: Callable[[Buffer, Side], bool] = lambda *_: False
        self._untold: set[int] = set()  # parts of overruns that were never published as findings
        self._operators, self._logged = operators, LoggedPhases()

    @property
    def context(self) -> Context:
        """The state that checks share."""
        return self._context

    @context.setter
    def context(self, context: Context) -> None:
        self._context, context.judged = context, weak_callback(self._judged)

    def start_over(self) -> None:
        """In a forked child: discard the parent's findings and pending localizations."""
        self.book, self.inferred = FindingStore(self._suppressions), FindingStore()
        self.locator.forget()
        self.stepper.forget()

    def take(self, draft: Detection) -> None:
        """A check reports a detection: name it, store it, and in sync mode raise it."""
        self.context.names.refresh()
        with error_barrier("launch log"):
            draft = with_logged_culprits(draft, self._logged.at(draft.checkpoint), self._operators)
        with error_barrier("nodes of a graph"):
            draft = with_unnoted_nodes(draft, self.context)
        self._search.name_all(draft)
        finding = build_finding(draft, self.context)
        if draft.inferred and not self._settings.list_inferred:
            self.inferred.add(finding, draft.key)
            return
        # The grouping of sightings must not depend on a running localization.
        stepped = self.stepper.identity(draft)
        key, mark = stepped or (draft.key, fingerprint(finding))
        finding = self._looked_up(draft, finding)
        finding = msgspec.structs.replace(finding, batch=self._batch(draft))
        with error_barrier("source lines"):
            finding = with_source_lines(finding)
        observed = draft.checkpoint.observed
        kept, new = self.book.add(finding, key, mark, not self.context.engine.asynchronous, observed)
        kept = self._with_culprits(kept, finding, new, stepped is not None)
        kept = self._tied(kept, draft)
        self._publish(kept, new)
        alarming = new and kept.severity is Severity.ERROR and not kept.suppressed_by
        if alarming:
            # In this event: the program may not reach its report.
            log(logging.ERROR, "%s", kept.message, finding=kept)
        with error_barrier("closer look"):
            sought = _sought(kept)
            self.locator.noticed(draft, sought, new)
            self.stepper.noticed(draft, sought, key, mark)
        if alarming and self._settings.sync:
            raise FindingsError(kept.message)

    def _batch(self, draft: Detection) -> Batch | None:
        """The batch of the replay that a finding belongs to, where an adapter knows it."""
        if draft.graph is None or draft.replay is None:
            return None
        return self._batches.of(draft.graph, draft.replay)

    def _publish(self, finding: Finding, new: bool = False) -> None:
        """Notify the subscribers of a stored finding. A suppressed sighting has no id and is skipped; a finding that
        turned out to be suppressed is published, which withdraws it.

        Part of another finding's overrun is published only where it was published as a finding before: that withdraws
        it.
        """
        if finding.continues is not None and (new or finding.id in self._untold):
            self._untold.add(finding.id)
        elif finding.id:
            self._untold.discard(finding.id)
            self._told.post(finding)

    def _with_culprits(self, kept: Finding, finding: Finding, new: bool, stepped: bool) -> Finding:
        """A stored finding after another sighting: with a surer culprit, or with a second one."""
        if not new and _surer(finding.culprit, kept.culprit):
            return self._revise(kept.id, finding.culprit, finding.candidates) or kept
        if stepped and _is_another(finding.culprit, kept):
            return self.book.revise(kept.id, kept.culprit, (*kept.candidates, finding.culprit)) or kept
        return kept

    def located(self, id: int, culprits: tuple[Culprit, ...]) -> None:
        """Localization has found the culprits of a finding."""
        self._conclude(id, culprits[0], culprits[1 : 1 + _CANDIDATES])

    def not_seen(self, id: int, replay: int) -> None:
        """A localized replay has ended without the damage."""
        known = self.book.get(id)
        if known is not None:
            missed = msgspec.structs.replace(known.culprit, status=Status.NOT_REPRODUCED, seen_in=replay)
            self._conclude(id, missed, known.candidates)

    def needs_culprit(self, id: int) -> bool:
        """Whether the culprit is still unknown."""
        known = self.book.get(id)
        return known is not None and not _settled(known.culprit)

    def _looked_up(self, draft: Detection, finding: Finding) -> Finding:
        """The finding with a culprit that localization has shown in this same phase."""
        found: tuple[Culprit, ...] = ()
        with error_barrier("closer look"):
            if finding.culprit.status is not Status.CONFIRMED:
                found = self.locator.culprits(draft) or self.stepper.unseen(draft)
        if not found:
            return finding
        return msgspec.structs.replace(finding, culprit=found[0], candidates=found[1 : 1 + _CANDIDATES])

    def _conclude(self, id: int, culprit: Culprit, candidates: tuple[Culprit, ...]) -> None:
        kept = self._revise(id, culprit, candidates)
        if kept is not None:
            self._publish(self._tied(kept))

    def _tied(self, kept: Finding, draft: Detection | None = None) -> Finding:
        """A finding after it is linked to its overrun or cause; listeners are told of other findings that this
        changes."""
        with error_barrier("overrun"):
            for other in self._links().noticed(kept, draft):
                if other.id != kept.id:
                    self._publish(other)
        return self.book.get(kept.id) or kept

    def _judged(self) -> None:
        """All evidence that has arrived was dispatched."""
        if self._overruns is not None:
            for changed in self._links().judged():
                self._publish(changed)

    def _links(self) -> Overruns:
        overruns = self._overruns
        if overruns is None or overruns.book is not self.book:
            overruns = self._overruns = Overruns(self.book, self._context, self._search, self.stays)
        return overruns

    def _revise(self, id: int, culprit: Culprit, candidates: tuple[Culprit, ...]) -> Finding | None:
        with error_barrier("source lines"):
            culprit = with_source_line(culprit)
        before, kept = self.book.get(id), self.book.revise(id, culprit, candidates)
        if kept is None or before is None or kept.continues is not None:
            return kept
        if not kept.suppressed_by:
            log(logging.WARNING, "%s", revised(kept), finding=kept)
        elif not before.suppressed_by:
            log(
                logging.WARNING,
                "finding #%d is suppressed by %s: %s",
                id,
                kept.suppressed_by,
                kept.message,
                finding=kept,
            )
        return kept


def _sought(kept: Finding) -> Finding:
    """A finding as closer looks see it: the launch of an overrun's part is sought until it is confirmed."""
    return msgspec.structs.replace(kept, severity=Severity.ERROR) if kept.continues is not None else kept


def _surer(now: Culprit, before: Culprit) -> bool:
    """Whether a sighting identifies the culprit better than earlier ones."""
    if before.status is Status.CONFIRMED:
        return False
    return now.status is Status.CONFIRMED or (now.kind == UNSEEN and before.kind != UNSEEN)


def _is_another(now: Culprit, kept: Finding) -> bool:
    """Whether a sighting shows a launch other than the known culprits of a finding."""
    named = kept.culprit, *kept.candidates
    return (
        Status.CONFIRMED is now.status is kept.culprit.status
        and len(kept.candidates) < _CANDIDATES
        and all((one.name, one.node, one.stack) != (now.name, now.node, now.stack) for one in named)
    )


def _settled(culprit: Culprit) -> bool:
    return culprit.status is Status.CONFIRMED or culprit.kind == UNSEEN
