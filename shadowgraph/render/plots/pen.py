"""Drawing primitives on a page in inches from its top left corner, in colours that colour-blind readers can tell apart.

Uses only matplotlib's object-oriented interface: no display, no global state, any thread. Overrides the user's style
sheet, so that lengths measured here hold.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from shadowgraph.common.errors import MissingPackageError
from shadowgraph.common.install_hint import install_command
from shadowgraph.views.scales import Span

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.collections import Collection
    from matplotlib.figure import Figure
    from matplotlib.font_manager import FontProperties

# Okabe and Ito's palette.
SKY, GREEN, YELLOW, PURPLE, VERMILLION, BLUE = "#56B4E9", "#009E73", "#F0E442", "#CC79A7", "#D55E00", "#0072B2"
BLACK, GREY, PALE, FAINT, TINT = "#000000", "#595959", "#F2F2F2", "#D0D0D0", "#FBEADF"
GUARD_HATCH, SOME_HATCH = "/////", "xxxx"
_SANS, _MONO = "DejaVu Sans", "DejaVu Sans Mono"  # shipped with matplotlib
_POINTS = 72.0
Box = tuple[float, float, float, float]  # left, top, right, bottom


def require_matplotlib() -> None:
    """Check that matplotlib is installed.

    Raises
    ------
    MissingPackageError
        When matplotlib cannot be imported.
    """
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise MissingPackageError(f"plots need matplotlib ({reason}): {install_command('plot')}") from error


class Pen:
    """A figure of a given size with methods to draw on it.

    Attributes
    ----------
    figure
        The matplotlib figure; its only axes span the page, in inches, y downward.
    """

    def __init__(self, width: float, height: float) -> None:
        require_matplotlib()
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        self.figure: Figure = Figure(figsize=(width, height), facecolor="white")
        self.figure.set_layout_engine("none")
        FigureCanvasAgg(self.figure)
        self._axes = self.figure.add_axes((0, 0, 1, 1), frameon=False)
        self._axes.set_axis_off()
        self._axes.set_xlim(0, width)
        self._axes.set_ylim(height, 0)
        self._axes.set_autoscale_on(False)
        self._fonts: dict[tuple[bool, float, bool], FontProperties] = {}

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: float = 7.5,
        color: str = BLACK,
        mono: bool = False,
        bold: bool = False,
        align: str = "left",
        room: float | None = None,
        gid: str | None = None,
    ) -> float:
        """Write one line, `y` at its middle, shortened to `room`; returns its width."""
        text = self.fit(text, room, size=size, mono=mono, bold=bold) if room is not None else drawable(text)
        if not text:
            return 0.0
        artist = self._axes.text(
            x, y, text, color=color, ha=align, va="center_baseline", parse_math=False, usetex=False, gid=gid
        )
        artist.set_fontproperties(self._font(mono, size, bold))
        return self.measure(text, size=size, mono=mono, bold=bold)

    def measure(self, text: str, *, size: float, mono: bool = False, bold: bool = False) -> float:
        """Width of a drawable text."""
        from matplotlib.textpath import text_to_path

        if not text:
            return 0.0
        font = self._font(mono, size, bold)
        width, _, _ = text_to_path.get_text_width_height_descent(text, font, ismath=False)
        return float(width) / _POINTS

    def fit(self, text: str, room: float, *, size: float, mono: bool = False, bold: bool = False) -> str:
        """The text with its middle left out where it is wider than `room`: both ends of a path matter."""
        text = drawable(text)
        if self.measure(text, size=size, mono=mono, bold=bold) <= room:
            return text
        low, high = 0, len(text)
        while low < high:
            kept = (low + high + 1) // 2
            if self.measure(_without_middle(text, kept), size=size, mono=mono, bold=bold) <= room:
                low = kept
            else:
                high = kept - 1
        return _without_middle(text, low)

    def bars(
        self,
        spans: Sequence[Span],
        y: float,
        height: float,
        color: str,
        *,
        edge: str = "none",
        hatch: str | None = None,
        dashed: bool = False,
        gid: str | None = None,
        order: float = 1.0,
    ) -> Artist:
        """Bars of one style at one height, as one artist."""
        from matplotlib.collections import PolyCollection

        corners = [[(x0, y), (x1, y), (x1, y + height), (x0, y + height)] for x0, x1 in spans]
        return self._add(
            PolyCollection(
                corners,
                facecolors=color,
                edgecolors=edge,
                hatch=hatch,
                linewidths=0.6,
                linestyles="--" if dashed else "-",
                antialiaseds=True,
                zorder=order,
            ),
            gid,
        )

    def boxes(
        self,
        boxes: Sequence[Box],
        color: str,
        *,
        edge: str = "none",
        hatch: str | None = None,
        dashed: bool = False,
        width: float = 0.6,
        gid: str | None = None,
        order: float = 1.0,
    ) -> Artist:
        """Rectangles (left, top, right, bottom) of one style, as one artist. `width` of their edges in points."""
        from matplotlib.collections import PolyCollection

        corners = [[(x0, y0), (x1, y0), (x1, y1), (x0, y1)] for x0, y0, x1, y1 in boxes]
        return self._add(
            PolyCollection(
                corners,
                facecolors=color,
                edgecolors=edge,
                hatch=hatch,
                linewidths=width,
                linestyles="--" if dashed else "-",
                zorder=order,
            ),
            gid,
        )

    def shape(self, points: Iterable[tuple[float, float]], color: str, *, order: float = 1.0) -> Artist:
        """A filled polygon."""
        from matplotlib.collections import PolyCollection

        return self._add(PolyCollection([list(points)], facecolors=color, edgecolors="none", zorder=order), None)

    def lines(
        self,
        segments: Sequence[tuple[tuple[float, float], tuple[float, float]]],
        color: str = FAINT,
        *,
        width: float = 0.5,
        dashed: bool = False,
        gid: str | None = None,
        order: float = 0.5,
    ) -> Artist:
        """Straight lines of one style, as one artist. `width` in points."""
        from matplotlib.collections import LineCollection

        style = "--" if dashed else "-"
        return self._add(LineCollection(segments, colors=color, linewidths=width, linestyles=style, zorder=order), gid)

    def _add(self, artist: Collection, gid: str | None) -> Artist:
        artist.set_gid(gid)
        self._axes.add_collection(artist, autolim=False)
        return artist

    def _font(self, mono: bool, size: float, bold: bool) -> FontProperties:
        from matplotlib.font_manager import FontProperties

        key = (mono, size, bold)
        if key not in self._fonts:
            weight = "bold" if bold else "normal"
            self._fonts[key] = FontProperties(family=[_MONO if mono else _SANS], size=size, weight=weight)
        return self._fonts[key]


def drawable(text: str) -> str:
    """The text on one line, with escapes for characters that the fonts lack: a name may hold any dictionary key."""
    return "".join(c if _drawn(c) else c.encode("unicode_escape").decode() for c in text)


def _drawn(character: str) -> bool:
    """Whether a character prints, in a script that both fonts contain."""
    if character.isascii():
        return character.isprintable()
    if character in "…↳":
        return True
    script = unicodedata.name(character, "").split(" ")[0]
    return character.isprintable() and ord(character) < 0x0530 and script in ("LATIN", "GREEK", "CYRILLIC", "MICRO")


def _without_middle(text: str, kept: int) -> str:
    """`kept` characters of a text, more of its end than of its start, around an ellipsis."""
    tail = -(-kept * 3 // 5)
    return f"{text[: kept - tail]}…{text[len(text) - tail :]}"
