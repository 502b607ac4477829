"""The kinds of finding."""

from __future__ import annotations

from building.markdown import table
from shadowgraph.checks.kinds import kind_of
from shadowgraph.render.text.explanations import explanations


def kinds() -> str:
    """Each kind with the first sentence of its cause; codes link to their section of the findings page."""
    rows = []
    for code, explanation in explanations().items():
        anchor = f"{code}: {explanation.kind}".lower().replace(":", "").replace(" ", "-")
        first = explanation.cause[0].split(". ")[0].split(": ")[0].rstrip(".")
        found = ", ".join(map(_link, kind_of(code).reports))
        rows.append((f"[{code}](findings.md#{anchor})", explanation.kind, f"{first}.", found))
    return table(("code", "kind", "cause", "public reports that are found"), rows)


def _link(report: str) -> str:
    repository, number = report.split("#")
    return f"[{repository.split('/')[1]} {number}](https://github.com/{repository}/issues/{number})"
