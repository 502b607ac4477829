"""Data of an interactive map as columns: every part with its position on two scales, and its hover text.

Nothing is judged here: buffers, owners and damage come from `shadowgraph.views.memory_map`. Draws nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from shadowgraph.common.console import tame
from shadowgraph.common.words import form, plural
from shadowgraph.render.plots.browsing_scales import Floats, Scale, Spans, islands_of, logarithmic, proportional
from shadowgraph.views.map_places import by, reach, where
from shadowgraph.views.memory_map import MapBuffer, MapDamage, MemoryMap

Columns = dict[str, list[str] | list[int] | Floats]

SCALES = ("log", "bytes")
LANES = 6  # rows for buffers that overlap; the rest share the last one
_OWNERS = 4  # listed for each buffer
_LONGEST = 160
_STRIP = 1_200  # bins of the strip of all memory
_LABEL = 44  # letters of a name in a mark's label
_ROOM = {"log": 16.0, "bytes": 64.0}  # at least, on both sides of what a window shows
_WIDER = 16  # times its damage: of a wider buffer the scale in bytes shows only the damage


@dataclass(frozen=True, slots=True)
class Chart:
    """Columns of equal length, by name, for each kind of part.

    Every part has ``left_log``, ``right_log``, ``left_bytes``, ``right_bytes``: its ends on the two scales. Addresses
    and sizes are float64, which holds whole numbers up to 2**53.

    Attributes
    ----------
    buffers
        One row for each buffer, in order of address: ``name``, ``start``, ``nbytes``, ``form``, ``role``, ``alive``,
        ``lane``, ``head_guard``, ``tail_guard``, ``gap``, ``also`` (other owners), ``findings``.
    guards
        One row for each guard, in order of its ``buffer``, an index; ``start``, ``nbytes``.
    owners
        Other owners of a buffer's bytes, the first few of each: ``buffer``, ``place`` (from 0), ``name``,
        ``relation``, ``start``, ``nbytes``.
    damages
        One row for each stretch of damaged bytes: ``buffer``, ``finding``, ``start``, ``nbytes``, ``exact``.
    marks
        One row for each finding: ``buffer``, ``finding``, ``label``, ``caption``, ``told``, ``name``, ``lane``; and
        for each scale its window, ``from_log`` to ``to_log``, which shows the bytes and their buffer.
    gaps
        Stretches without a buffer that the scale in bytes folds: ``start``, ``nbytes``.
    """

    buffers: Columns
    guards: Columns
    owners: Columns
    damages: Columns
    marks: Columns
    gaps: Columns
    scales: dict[str, Scale]

    @property
    def lanes(self) -> int:
        """Rows of buffers."""
        return max(int(lane) for lane in self.buffers["lane"]) + 1

    @property
    def ends(self) -> dict[str, tuple[float, float]]:
        """First and last position of each scale."""
        return {name: (float(scale.places[0]), float(scale.places[-1])) for name, scale in self.scales.items()}


def chart_of(memory: MemoryMap) -> Chart:
    """The columns of a map with at least one buffer."""
    payloads = [(buffer.start, max(buffer.stop, buffer.start + 1)) for buffer in memory.buffers]
    guards = [(index, span) for index, buffer in enumerate(memory.buffers) for span in _guards(buffer)]
    pieces = _pieces(memory)
    broken = [(first, last + 1) for _, (first, last) in pieces]
    around = [span for _, span in guards]
    islands = islands_of([*payloads, *around, *broken])
    scales = {"log": logarithmic([*payloads, *broken], around), "bytes": proportional(islands)}
    lanes = lanes_of(memory.buffers)
    return Chart(
        buffers={**_placed(scales, payloads), **_buffers(memory, lanes)},
        guards={**_placed(scales, around), **_spanned(around), "buffer": [index for index, _ in guards]},
        owners=_owners(memory, scales),
        damages={**_placed(scales, broken), **_spanned(broken), **_damages([damage for damage, _ in pieces])},
        marks=_marks(memory, scales, lanes),
        gaps=_gaps(islands, scales),
        scales=scales,
    )


def _pieces(memory: MemoryMap) -> list[tuple[MapDamage, tuple[int, int]]]:
    """Each stretch of damaged bytes, with its damage."""
    return [(damage, piece) for damage in memory.damages if damage.located for piece in damage.pieces]


def _damages(damages: Sequence[MapDamage]) -> Columns:
    return {
        "buffer": [damage.buffer for damage in damages],
        "finding": [damage.finding for damage in damages],
        "exact": [int(damage.exact) for damage in damages],
    }


def lanes_of(buffers: Sequence[MapBuffer]) -> list[int]:
    """A lane for each buffer, so that overlapping buffers do not hide each other: live buffers from lane 0 on, freed
    ones below them.
    """
    lanes = [0] * len(buffers)
    base = 0
    for alive in (True, False):
        ends: list[int] = []  # of each lane, so far
        for index, buffer in enumerate(buffers):
            if buffer.alive is alive:
                lane = next((at for at, end in enumerate(ends) if end <= buffer.start), len(ends))
                ends[lane : lane + 1] = [max(buffer.stop, buffer.start + 1)]
                lanes[index] = min(base + lane, LANES - 1)
        base += len(ends)
    return lanes


def _guards(buffer: MapBuffer) -> list[tuple[int, int]]:
    found = [(buffer.start - buffer.head_guard, buffer.start)] if buffer.head_guard else []
    return [*found, buffer.tail] if buffer.tail_guard else found


def _placed(scales: dict[str, Scale], spans: Spans) -> Columns:
    ends = np.array(spans, dtype=np.float64).reshape(-1, 2)
    columns: Columns = {}
    for name, scale in scales.items():
        columns[f"left_{name}"], columns[f"right_{name}"] = scale.at(ends[:, 0]), scale.at(ends[:, 1])
    return columns


def _spanned(spans: Spans) -> Columns:
    ends = np.array(spans, dtype=np.float64).reshape(-1, 2)
    return {"start": ends[:, 0].copy(), "nbytes": ends[:, 1] - ends[:, 0]}


def _numbers(values: Iterable[float]) -> Floats:
    return np.array(list(values), dtype=np.float64)


def _buffers(memory: MemoryMap, lanes: list[int]) -> Columns:
    damages, buffers = memory.damages_of(), memory.buffers
    return {
        "name": [shown(buffer.name) for buffer in buffers],
        "start": _numbers(buffer.start for buffer in buffers),
        "nbytes": _numbers(buffer.nbytes for buffer in buffers),
        "form": [shown(form(buffer.dtype, buffer.shape)) for buffer in buffers],
        "role": [_role(buffer) for buffer in buffers],
        "alive": [int(buffer.alive) for buffer in buffers],
        "lane": lanes,
        "head_guard": _numbers(buffer.head_guard for buffer in buffers),
        "tail_guard": _numbers(buffer.tail_guard for buffer in buffers),
        "gap": _numbers(buffer.gap for buffer in buffers),
        "also": [_also(buffer) for buffer in buffers],
        "findings": [_findings(buffer, damages.get(index, ())) for index, buffer in enumerate(buffers)],
    }


def shown(text: str) -> str:
    """A name of the program on one line, cut in its middle where it is very long."""
    text = tame(text)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 3]}…{text[-_LONGEST // 2 :]}"


def _role(buffer: MapBuffer) -> str:
    """The role as text; its first word is the role itself."""
    graph = f" of {shown(buffer.graph)}" if buffer.graph is not None else ""
    return f"{buffer.role}{graph}{'' if buffer.alive else ', freed'}"


def _also(buffer: MapBuffer) -> str:
    told = [f"{shown(alias.name)} is {_relation(buffer, alias.relation)}" for alias in buffer.aliases[:_OWNERS]]
    more = len(buffer.aliases) - _OWNERS
    return "; ".join([*told, *([f"and {plural(more, 'more owner')}"] if more > 0 else [])])


def _relation(buffer: MapBuffer, relation: str) -> str:
    return shown(f"{buffer.name}{relation}" if relation[:1] in ("", "[", ".") else relation)


def _findings(buffer: MapBuffer, damages: Sequence[MapDamage]) -> str:
    told = [_told(damage, buffer) for damage in damages[:_OWNERS]]
    more = len(damages) - _OWNERS
    return "; ".join([*told, *([f"and {more:,} more"] if more > 0 else [])])


def _told(damage: MapDamage, buffer: MapBuffer) -> str:
    named = replace(damage, culprit=shown(damage.culprit))
    place = f": {where(damage, buffer)}" if damage.located else f" {shown(buffer.name)}"
    return f"#{damage.finding} {damage.code}{place}{by(named)} {damage.when}".rstrip()


def _owners(memory: MemoryMap, scales: dict[str, Scale]) -> Columns:
    rows = [
        (index, place, alias)
        for index, buffer in enumerate(memory.buffers)
        for place, alias in enumerate(buffer.aliases[:_OWNERS])
    ]
    spans = [(alias.start, max(alias.stop, alias.start + 1)) for _, _, alias in rows]
    return {
        **_placed(scales, spans),
        **_spanned(spans),
        "buffer": [index for index, _, _ in rows],
        "place": [place for _, place, _ in rows],
        "name": [shown(alias.name) for _, _, alias in rows],
        "relation": [_relation(memory.buffers[index], alias.relation) for index, _, alias in rows],
    }


def _marks(memory: MemoryMap, scales: dict[str, Scale], lanes: Sequence[int]) -> Columns:
    """A mark for each finding; a finding without bytes of its own marks its whole buffer."""
    spans = [(damage.first, damage.last + 1) for damage in memory.damages]
    homes = [memory.buffers[damage.buffer] for damage in memory.damages]
    return {
        **_placed(scales, spans),
        **_windows(scales, spans, [(home.start, max(home.stop, home.start + 1)) for home in homes]),
        "buffer": [damage.buffer for damage in memory.damages],
        "lane": [lanes[damage.buffer] for damage in memory.damages],
        "label": [f"#{damage.finding}" for damage in memory.damages],
        "caption": [_caption(damage, home) for damage, home in zip(memory.damages, homes, strict=True)],
        "finding": [damage.finding for damage in memory.damages],
        "name": [shown(home.name) for home in homes],
        "told": [_told(damage, home) for damage, home in zip(memory.damages, homes, strict=True)],
    }


def _caption(damage: MapDamage, home: MapBuffer) -> str:
    """Victim and culprit, for the label of a mark: names by their ends."""
    named = replace(damage, culprit=ending(damage.culprit))
    place = f": {reach(damage, home)}" if damage.located else ""
    return f"#{damage.finding} {ending(home.name)}{place}{by(named)}"


def ending(name: str) -> str:
    """The end of a name, which tells it from others."""
    name = tame(name)
    return name if len(name) <= _LABEL else f"…{name[1 - _LABEL :]}"


def _windows(scales: dict[str, Scale], spans: Spans, homes: Spans) -> Columns:
    """The window of each finding: its bytes with their buffer and room on both sides; on the scale in bytes, where a
    buffer may be a million times as wide as its damage, the bytes alone then.
    """
    columns: Columns = {}
    marks, around = (np.array(ends, dtype=np.float64).reshape(-1, 2) for ends in (spans, homes))
    for name, scale in scales.items():
        left, right = scale.at(marks[:, 0]), scale.at(marks[:, 1])
        low, high = np.minimum(left, scale.at(around[:, 0])), np.maximum(right, scale.at(around[:, 1]))
        if name == "bytes":
            fits = high - low <= _WIDER * np.maximum(right - left, _ROOM[name])
            low, high = np.where(fits, low, left), np.where(fits, high, right)
        room = np.maximum(0.6 * (high - low), _ROOM[name])
        columns[f"from_{name}"] = np.maximum(low - room, scale.places[0])
        columns[f"to_{name}"] = np.minimum(high + room, scale.places[-1])
    return columns


def _gaps(islands: Floats, scales: dict[str, Scale]) -> Columns:
    spans = [(int(start), int(stop)) for start, stop in zip(islands[:-1, 1], islands[1:, 0], strict=True)]
    return {**_placed(scales, spans), **_spanned(spans)}


def strip_of(memory: MemoryMap, chart: Chart, scale: str) -> dict[str, tuple[Floats, Floats]]:
    """Left and right ends of the bars of each role in the strip of all memory: each bin shows the role that covers most
    of it, whatever the number of buffers.
    """
    edges = np.linspace(*chart.ends[scale], _STRIP + 1)
    roles = sorted({buffer.role for buffer in memory.buffers})
    covered = [_covered(chart, scale, np.array([b.role == role for b in memory.buffers]), edges) for role in roles]
    best, most = np.argmax(covered, axis=0), np.max(covered, axis=0)
    return {role: _runs((best == index) & (most > 0), edges) for index, role in enumerate(roles)}


def _runs(mine: npt.NDArray[np.bool_], edges: Floats) -> tuple[Floats, Floats]:
    """Ends of the runs of true bins."""
    change = np.diff(np.concatenate(([0], mine.astype(np.int8), [0])))
    return edges[np.flatnonzero(change == 1)], edges[np.flatnonzero(change == -1)]


def _covered(chart: Chart, scale: str, own: npt.NDArray[np.bool_], edges: Floats) -> Floats:
    """The covered length of each bin between `edges`, by the selected buffers."""
    left, right = np.asarray(chart.buffers[f"left_{scale}"])[own], np.asarray(chart.buffers[f"right_{scale}"])[own]
    stops = np.maximum.accumulate(right)
    starts = np.maximum(left, np.concatenate((left[:1], stops[:-1])))
    lengths = np.maximum(stops - starts, 0.0)
    so_far = np.concatenate(([0.0], np.repeat(np.cumsum(lengths), 2)[:-1]))
    return np.diff(np.interp(edges, np.column_stack((np.minimum(starts, stops), stops)).reshape(-1), so_far))
