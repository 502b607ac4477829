"""Explanations of kinds of finding: cause, evidence, remedy.

Cause and evidence are in ``explanations.md`` beside this file, remedies in `advice`, where reports take them from too.
The sections of ``docs/findings.md`` are the same text; ``tools/update_docs.py`` puts it there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from shadowgraph.model.findings import Kind
from shadowgraph.render.text.advice import REMEDIES

_TEXT = Path(__file__).with_name("explanations.md")
_CAUSE, _EVIDENCE, _REMEDY = "*Cause.* ", "*Evidence.* ", "*Remedy.* "


@dataclass(frozen=True, slots=True)
class Explanation:
    """Markdown paragraphs on a kind of finding, each on one line."""

    code: str
    cause: tuple[str, ...]
    evidence: tuple[str, ...]

    @property
    def kind(self) -> Kind:
        return Kind[self.code]

    @property
    def remedy(self) -> str:
        return REMEDIES[self.code]

    def markdown(self) -> str:
        """A section of ``docs/findings.md``, its paragraphs unwrapped."""
        cause, evidence = "\n\n".join(self.cause), "\n\n".join(self.evidence)
        head = f"## {self.code}: {self.kind}"
        return "\n\n".join((head, _CAUSE + cause, _EVIDENCE + evidence, _REMEDY + self.remedy))


@cache
def explanations() -> dict[str, Explanation]:
    """All kinds of finding that this version checks, by code."""
    sections = _TEXT.read_text("utf-8").split("## ")[1:]
    return {made.code: made for made in map(_explanation, sections)}


def not_looked_for() -> tuple[str, ...]:
    """Codes reserved for kinds that this version does not check."""
    return tuple(kind.name for kind in Kind if kind.name not in explanations())


def _explanation(section: str) -> Explanation:
    head, *paragraphs = (" ".join(text.split()) for text in section.strip().split("\n\n"))
    turn = next(place for place, text in enumerate(paragraphs) if text.startswith(_EVIDENCE))
    cause, evidence = paragraphs[:turn], paragraphs[turn:]
    cause[0], evidence[0] = cause[0].removeprefix(_CAUSE), evidence[0].removeprefix(_EVIDENCE)
    return Explanation(head.split(":")[0], tuple(cause), tuple(evidence))
