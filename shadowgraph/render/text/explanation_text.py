"""Explanations of kinds of finding as text and JSON: a list of all, or one with cause, remedy and evidence."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from rich.text import Text

from shadowgraph.common.words import plural
from shadowgraph.render.text.explanations import Explanation, explanations
from shadowgraph.render.text.shown import Reporter, prose, said

SCHEMA = "shadowgraph.explain/1"
_LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")


class ExplanationReport(Reporter):
    """Kinds of finding, ready to be shown. Holds data only.

    Parameters
    ----------
    code
        The kind to explain; None for a list of all.
    long
        With all of the evidence, and not its first paragraph alone.
    """

    schema = SCHEMA

    def __init__(self, code: str | None, long: bool = False) -> None:
        self.code, self.long = code, long

    def document(self) -> dict[str, Any]:
        known = explanations()
        chosen = known.values() if self.code is None else [known[self.code]]
        return {"kinds": list(map(_plain, chosen))}

    def lines(self, width: int | None = None) -> Iterator[Text]:
        """Every line, wrapped also in a pipe: it is running text."""
        if self.code is None:
            yield from _list()
        else:
            yield from _whole(explanations()[self.code], self.long, width)


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


def _whole(explanation: Explanation, long: bool, width: int | None) -> Iterator[Text]:
    yield said(f"{explanation.code}: {explanation.kind}", "bold")
    evidence = explanation.evidence if long else explanation.evidence[:1]
    parts = (("cause", explanation.cause), ("remedy", (explanation.remedy,)), ("evidence", evidence))
    for label, paragraphs in parts:
        yield Text()
        yield said(label, "bold")
        for place, paragraph in enumerate(paragraphs):
            if place:
                yield Text()
            yield from prose(_plain_text(paragraph), width, "  ")
    left = len(explanation.evidence) - len(evidence)
    if left:
        yield Text()
        yield said(f"  ... {plural(left, 'paragraph')} more on evidence with --long", "dim")


def _plain_text(markdown: str) -> str:
    """A paragraph without Markdown's links, emphasis and code marks, which a terminal does not show."""
    return _LINK.sub(r"\1", markdown).replace("*", "").replace("`", "")
