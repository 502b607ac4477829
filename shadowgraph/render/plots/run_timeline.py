"""Timelines of processes as a figure: replays a second as bars, findings and high-water marks as lines across them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from shadowgraph.common.console import tame
from shadowgraph.common.errors import NothingToDrawError
from shadowgraph.render.plots.pen import BLUE, GREEN, SKY, VERMILLION, require_matplotlib
from shadowgraph.render.plots.saving import format_of, save_figure
from shadowgraph.views.run_timeline import RunTimeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST = 12  # processes that are drawn
_LABELLED = 12  # findings of a process that have their numbers written


def run_timeline_figure(timelines: Sequence[RunTimeline]) -> Figure:
    """Draw the timelines one below the other.

    Raises
    ------
    NothingToDrawError
        Without any process that replayed or has findings.
    MissingPackageError
        When matplotlib is not installed.
    """
    require_matplotlib()
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    drawn = [each for each in timelines if each.steps][:_MOST]
    if not drawn:
        raise NothingToDrawError("no process of this run has replayed a graph or has a finding")
    figure = Figure(figsize=(12, 1 + 2.2 * len(drawn)), layout="constrained")
    for axes, each in zip(figure.subplots(len(drawn), squeeze=False)[:, 0], drawn, strict=True):
        _draw(axes, each)
    entries = [
        Patch(color=SKY, label="replays a second"),
        Line2D([], [], color=BLUE, marker="|", linestyle="", label="batches"),
        Line2D([], [], color=VERMILLION, label="finding, where it was first seen"),
        Line2D([], [], color=GREEN, linestyle=":", label="high-water mark"),
    ]
    figure.legend(handles=entries, loc="outside lower center", ncols=4, frameon=False)
    return figure


def save_run_timeline(timelines: Sequence[RunTimeline], path: str | os.PathLike[str]) -> Path:
    """Draw timelines into a file, atomically; the suffix png, svg or pdf selects the format.

    Raises
    ------
    UsageError
        For a suffix that is no picture format.
    NothingToDrawError, MissingFileError, MissingPackageError
        As of drawing and of writing.
    """
    format_of(path)
    return save_figure(run_timeline_figure(timelines), path)


def _draw(axes: Axes, each: RunTimeline) -> None:
    width = each.width
    starts = [step.start - each.start for step in each.steps]
    rates = [step.replays / width for step in each.steps]
    axes.bar(starts, rates, width=width, align="edge", color=SKY, linewidth=0, gid="replays")
    batches = [start + width / 2 for start, step in zip(starts, each.steps, strict=True) if step.batches]
    axes.plot(batches, [0.0] * len(batches), "|", color=BLUE, markersize=8, gid="batches")
    for mark in each.marks:
        if mark.time is not None:
            axes.axvline(mark.time - each.start, color=GREEN, linestyle=":", linewidth=1.2, gid="mark")
    top = max([*rates, 1.0]) * 1.25
    for place, found in enumerate(found for found in each.findings if found.is_error):
        at = found.time - each.start
        axes.axvline(at, color=VERMILLION, linewidth=1.4, gid=f"finding:{found.id}")
        if place < _LABELLED:
            label = f" #{found.id} {found.code}"
            height = top * (0.98 - 0.11 * (place % 4))
            axes.text(at, height, label, va="top", fontsize=8, color=VERMILLION, clip_on=True)
    axes.set_xlim(0, each.stop - each.start)
    axes.set_ylim(0, top)
    axes.set_ylabel("replays / s")
    axes.set_xlabel("seconds since the start of the process")
    axes.set_title(f"process {each.pid}, {tame(each.title)[:90]}", loc="left", fontsize=9, parse_math=False)
    axes.spines[["top", "right"]].set_visible(False)
