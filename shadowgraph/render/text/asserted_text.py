"""Failed index assertion of compiled code, in one line."""

from __future__ import annotations

from shadowgraph.model.launch_arguments import AssertedIndex


def asserted_line(found: AssertedIndex) -> str:
    """``asserts 0 <= tmp24 < ks2 (2): would be 0 to 2, out of range at x = 0, 1; an index into out_ptr1``."""
    high = "" if found.high is None or found.rule.endswith(f"< {found.high}") else f" ({found.high})"
    values = f"{found.least} to {found.most}" if found.least != found.most else f"{found.least}"
    more = f" and {found.more_places:,} more" if found.more_places else ""
    places = f", out of range at x = {', '.join(map(str, found.places))}{more}" if found.places else ""
    holds = "which holds a copy of" if found.copied else "which is"
    named = f", {holds} {found.owner}" if found.owner else ""
    into = f"; an index into {found.into}{named}" if found.into else ""
    return f"asserts {found.rule}{high}: would be {values}{places}{into}"
