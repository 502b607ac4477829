"""Explanations of kinds of finding: cause, evidence, remedy, as each kind gives them.

The sections of ``docs/findings.md`` are the same text; ``tools/update_docs.py`` puts it there.
"""

from __future__ import annotations

from dataclasses import dataclass

from shadowgraph.checks.kind import FindingKind
from shadowgraph.checks.kinds import kinds

_CAUSE, _EVIDENCE, _REMEDY = "*Cause.* ", "*Evidence.* ", "*Remedy.* "


@dataclass(frozen=True, slots=True)
class Explanation:
    """Markdown paragraphs on a kind of finding, each on one line."""

    code: str
    kind: str
    remedy: str
    cause: tuple[str, ...]
    evidence: tuple[str, ...]

    def markdown(self) -> str:
        """A section of ``docs/findings.md``, its paragraphs unwrapped."""
        cause, evidence = "\n\n".join(self.cause), "\n\n".join(self.evidence)
        head = f"## {self.code}: {self.kind}"
        return "\n\n".join((head, _CAUSE + cause, _EVIDENCE + evidence, _REMEDY + self.remedy))


def explanations() -> dict[str, Explanation]:
    """All kinds of finding that this version checks, by code."""
    return {kind.code: _explanation(kind) for kind in kinds()}


def _explanation(kind: FindingKind) -> Explanation:
    paragraphs = [" ".join(text.split()) for text in kind.explanation().strip().split("\n\n")]
    turn = next(place for place, text in enumerate(paragraphs) if text.startswith(_EVIDENCE))
    cause, evidence = paragraphs[:turn], paragraphs[turn:]
    cause[0], evidence[0] = cause[0].removeprefix(_CAUSE), evidence[0].removeprefix(_EVIDENCE)
    return Explanation(kind.code, kind.title, kind.remedy, tuple(cause), tuple(evidence))
