"""Labels of findings above their marks: one each where there is room, else one for several."""

from __future__ import annotations

from collections.abc import Mapping

from shadowgraph.render.plots.pen import Pen
from shadowgraph.views.scales import Span, spread

SIZE = 7.0
_FAR = 0.2  # inches that a label may lie beside its mark


def draw_ids(
    pen: Pen, places: list[tuple[float, int]], y: float, within: Span, said: Mapping[int, str] | None = None
) -> None:
    """Label marks at ascending positions with the ids of their findings; with `said`, each with its text as long as
    all texts fit.
    """
    for left, text in _labels(pen, places, within, said or {}) if places else ():
        pen.text(left, y, text, size=SIZE, bold=True)


def _labels(
    pen: Pen, places: list[tuple[float, int]], within: Span, said: Mapping[int, str]
) -> list[tuple[float, str]]:
    """Left ends and texts."""
    labels: list[tuple[float, str]] = []
    for together, words in ((0.0, said), (0.0, {}), (0.4, {}), (0.8, {}), (1.2, {})):
        groups = _groups(places, together)
        texts = [_ids(ids, words) for _, ids in groups]
        widths = [pen.measure(text, size=SIZE, bold=True) for text in texts]
        lefts = spread([x for x, _ in groups], widths, within)
        labels = list(zip(lefts, texts, strict=True))
        near = (left - _FAR <= x <= left + w + _FAR for (x, _), left, w in zip(groups, lefts, widths, strict=True))
        if all(near) and all(left >= within[0] - 1e-9 for left in lefts):
            break
    return labels


def _groups(places: list[tuple[float, int]], together: float) -> list[tuple[float, list[int]]]:
    """Findings whose marks lie within a distance share a label at the first mark."""
    groups: list[tuple[float, list[int]]] = []
    for x, finding in places:
        if groups and x - groups[-1][0] <= together:
            groups[-1][1].append(finding)
        else:
            groups.append((x, [finding]))
    return groups


def _ids(findings: list[int], said: Mapping[int, str]) -> str:
    ids = sorted(set(findings))
    if len(ids) == 1 and said.get(ids[0]):
        return f"#{ids[0]} {said[ids[0]]}"
    if len(ids) < 3:
        return " ".join(f"#{number}" for number in ids)
    return f"#{ids[0]} and {len(ids) - 1:,} more"
