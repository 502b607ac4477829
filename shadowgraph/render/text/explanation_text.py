"""Explanations of kinds of finding as text and JSON: a list of all, or one with cause, evidence and remedy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.text import Text

from shadowgraph.render.text.explanations import Explanation, explanations
from shadowgraph.render.text.shown import Reporter, prose, said

SCHEMA = "shadowgraph.explain/1"


class ExplanationReport(Reporter):
    """Kinds of finding, ready to be shown. Holds data only.

    Parameters
    ----------
    code
        The kind to explain; None for a list of all.
    """

    schema = SCHEMA

    def __init__(self, code: str | None) -> None:
        self.code = code

    def document(self) -> dict[str, Any]:
        known = explanations()
        chosen = known.values() if self.code is None else [known[self.code]]
        return {"kinds": list(map(_plain, chosen))}

    def lines(self, width: int | None = None) -> Iterator[Text]:
        """Every line, wrapped also in a pipe: it is running text."""
        if self.code is None:
            yield from _list()
        else:
            yield from _whole(explanations()[self.code], width)


def _plain(explanation: Explanation) -> dict[str, Any]:
    return {
        "code": explanation.code,
        "kind": explanation.kind,
        "cause": list(explanation.cause),
        "evidence": list(explanation.evidence),
        "remedy": explanation.remedy,
    }


def _list() -> Iterator[Text]:
    for code, explanation in explanations().items():
        yield said(f"{code}  {explanation.kind}")


def _whole(explanation: Explanation, width: int | None) -> Iterator[Text]:
    yield said(f"{explanation.code}: {explanation.kind}", "bold")
    parts = (("cause", explanation.cause), ("evidence", explanation.evidence), ("remedy", (explanation.remedy,)))
    for label, paragraphs in parts:
        yield Text()
        yield said(label, "bold")
        for place, paragraph in enumerate(paragraphs):
            if place:
                yield Text()
            yield from prose(_plain_text(paragraph), width, "  ")


def _plain_text(markdown: str) -> str:
    """A paragraph without Markdown emphasis and code marks, which a terminal does not show."""
    return markdown.replace("*", "").replace("`", "")
