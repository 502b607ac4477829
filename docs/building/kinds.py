"""The kinds of finding: those that this version looks for, and the codes kept for others."""

from __future__ import annotations

from building.markdown import table
from shadowgraph.checks.reserved import RESERVED
from shadowgraph.render.text.explanations import explanations, not_looked_for


def kinds() -> str:
    """Each kind with the first sentence of its cause; codes link to their section of the findings page."""
    rows = []
    for code, explanation in explanations().items():
        anchor = f"{code}: {explanation.kind}".lower().replace(":", "").replace(" ", "-")
        first = explanation.cause[0].split(". ")[0].split(": ")[0].rstrip(".")
        rows.append((f"[{code}](findings.md#{anchor})", explanation.kind, f"{first}."))
    return table(("code", "kind", "cause"), rows)


def kinds_not_looked_for() -> str:
    """Names of codes that nothing reports."""
    return ", ".join(f"{code} ({RESERVED[code]})" for code in not_looked_for()) + "."
