"""SG113, headroom, as a kind of finding.

Facts and words of the kind; pure, any thread. The check is in `check`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from shadowgraph.checks.headroom import CODE
from shadowgraph.checks.headroom.facts import HeadroomDetail
from shadowgraph.checks.kind import CulpritIs, FindingKind, Row
from shadowgraph.checks.verdicts import named
from shadowgraph.common.words import plural
from shadowgraph.model.findings import Finding
from shadowgraph.model.high_water import Forecast
from shadowgraph.model.kinds import Detail

if TYPE_CHECKING:
    from shadowgraph.checks.base import Check, Context, Detection


class HeadroomKind(FindingKind):
    """The use of a buffer grows toward its end, and will pass it."""

    code = CODE
    title = "headroom"
    reports = ("sgl-project/sglang#27338",)
    detail = HeadroomDetail
    needs_observation = True
    remedy = (
        "Size the buffer for the largest batch and the longest context that the configuration allows, with every "
        "factor that its writer applies (draft branches, pages, padding). Or refuse, before the write, what does not "
        "fit."
    )

    def verdict(self, finding: Finding) -> str:
        detail, buffer = finding.detail, named(finding.buffer)
        if not isinstance(detail, HeadroomDetail):
            return f"{buffer} fills up"
        held = f"it held {detail.used:,} of {detail.capacity:,} entries{' of a row' if detail.by_row else ''}"
        row = f"row {detail.row} of " if detail.row is not None and not finding.buffer.view else ""
        return f"{row}{buffer} will overflow {_where(detail.forecast)}; {held}"

    def rows(self, finding: Finding) -> Iterable[Row]:
        detail = finding.detail
        if not isinstance(detail, HeadroomDetail):
            return
        forecast, steps = detail.forecast, plural(detail.forecast.steps, "step")
        how = "exactly" if forecast.exact else "nearly"
        yield "growth", f"follows the {forecast.driver} {how}, in {steps}; it was {forecast.now:,}"
        yield "entries", ", ".join(f"{entries:,} at {value:,}" for value, entries in forecast.points)
        if forecast.limit:
            yield "limits", f"a {forecast.driver} of {forecast.limit:,} takes {forecast.at_limit:,} entries"

    def culprit_is(self, finding: Finding) -> CulpritIs:
        return CulpritIs.LAST_SEEN

    def values_of(self, finding: Finding) -> int | None:
        return None

    def describe(self, draft: Detection, context: Context) -> Detail | None:
        """The facts, without the row where the name of the part says which it is."""
        facts = draft.facts
        if not isinstance(facts, HeadroomDetail) or facts.row is None or draft.view is None:
            return super().describe(draft, context)
        own, whole = (context.names.name_of(draft.buffer, part)[0] for part in (draft.view.hull, None))
        return facts if own == whole else msgspec.structs.replace(facts, row=None)

    def make_checks(self, context: Context) -> Iterable[Check]:
        from shadowgraph.checks.headroom.check import Headroom

        yield Headroom(context)


def _where(forecast: Forecast) -> str:
    allowed = f", of the {forecast.limit:,} that the limits allow" if forecast.limit else " at this pace"
    return f"at a {forecast.driver} of {forecast.overflows_at:,}{allowed}"
