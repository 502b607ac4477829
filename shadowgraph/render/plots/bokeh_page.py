"""Page of an interactive map as Bokeh models: findings, two scales as tabs with an overview strip of all memory, and a
table of buffers. It opens on the first finding.

``browsing.js`` draws the visible part in the browser, in detail or joined, from columns that are sent once, and follows
the browser's theme, or that of the notebook around the page.
"""

from __future__ import annotations

from importlib import resources
from typing import Any

from bokeh.document import Document
from bokeh.models import (
    AdaptiveTicker,
    Button,
    CDSView,
    Column,
    ColumnDataSource,
    CustomJS,
    CustomJSTickFormatter,
    DataTable,
    Div,
    HoverTool,
    HTMLTemplateFormatter,
    IndexFilter,
    InlineStyleSheet,
    Legend,
    LegendItem,
    NumberFormatter,
    Range1d,
    RangeTool,
    Row,
    TableColumn,
    TabPanel,
    Tabs,
    TextInput,
)
from bokeh.plotting import figure

from shadowgraph.render.engine import render, source
from shadowgraph.render.plots.browsing import SCALES, Chart, strip_of
from shadowgraph.render.plots.page import role_color
from shadowgraph.render.plots.pen import BLACK, FAINT, GREY, PALE, PURPLE, VERMILLION
from shadowgraph.views.memory_map import MemoryMap

STEP = 1.8  # from one row of buffers to the next, in bar heights
_HEIGHT, _PER_LANE = 250, 70  # pixels of the map with one row, and of each further one
_FRAME, _FINDING, _FINDINGS = 570, 25, 5  # pixels: page without map, a row of findings; visible rows
_BUTTON = 45  # pixels
_INK, _SOFT, _LINE, _PAPER, _PANEL = (  # light and dark, as in the style sheet
    ("#1b1f24", "#e6e9ed"), ("#57606a", "#a0a8b2"), ("#d0d7de", "#3d444d"), ("#ffffff", "#14181d"), (PALE, "#232a31"),
)  # fmt: skip
_TABS = {
    "log": ("every part visible", "each part as wide as the logarithm of its length; hover for addresses"),
    "bytes": ("bytes in proportion", "address; wide gaps are folded"),
}
_KINDS = ("buffers", "guards", "owners", "damages", "marks", "gaps")
_BAR = ("left", "right", "bottom", "top", "name", "address")
_DRAWN = {
    "buffers": (*_BAR, "color", "line", "form", "size", "role", "guard", "also", "findings"),
    "guards": (*_BAR, "size"),
    "owners": (*_BAR, "relation"),
    "damages": (*_BAR, "size", "told", "hatch"),
    "names": ("x", "y", "text"),
    "labels": ("x", "y", "text"),
}
_TIPS = {
    "buffers": [
        *[("buffer", "@name"), ("form", "@form"), ("bytes", "@size"), ("address", "@address"), ("role", "@role")],
        *[("guards", "@guard"), ("also", "@also"), ("findings", "@findings")],
    ],
    "guards": [("guard", "@name"), ("bytes", "@size"), ("address", "@address")],
    "owners": [("owner", "@name"), ("is", "@relation"), ("address", "@address")],
    "damages": [("finding", "@told"), ("buffer", "@name"), ("broken", "@size"), ("address", "@address")],
}
_GUARD = {"fill_color": _PAPER, "line_color": (FAINT, "#59626c"), "hatch_color": (GREY, _SOFT[1])}
_LOOKS: dict[str, dict[str, Any]] = {
    "guards": {"hatch_pattern": "/", "hatch_alpha": 0.5, "hatch_scale": 8},
    "buffers": {"fill_color": "color", "line_color": "line", "line_width": 0.7},
    "owners": {"fill_color": PURPLE, "line_color": PURPLE},
    "damages": {
        "fill_color": VERMILLION,
        "line_color": VERMILLION,
        "line_width": 2,
        "hatch_pattern": {"field": "hatch"},
        "hatch_color": "white",
        "hatch_scale": 6,
    },
}
_HEX = "<code>0x<%= value.toString(16) %></code>"
_SHOW_ALL = """
for (const scale of Object.keys(ranges)) ranges[scale].setv({start: ends[scale][0], end: ends[scale][1]});
marks.selected.indices = [];
"""
_TICK = """
const {place, address} = points.data;
let low = 0, high = place.length - 1;
while (high - low > 1) {
  const middle = (low + high) >> 1;
  if (place[middle] <= tick) low = middle; else high = middle;
}
const share = Math.min(1, Math.max(0, (tick - place[low]) / (place[high] - place[low])));
return "0x" + Math.round(address[low] + share * (address[high] - address[low])).toString(16);
"""


def page_of(memory: MemoryMap, chart: Chart | None, title: str, counts: str) -> Document:
    """A document with the whole page; without a chart it shows only the text `counts`."""
    head = render("map_head.html", title=title, counts=counts)
    parts: list[Any] = [Div(text=head, sizing_mode="stretch_width")]
    document = Document()
    if chart is not None:
        drawing = _Drawing(memory, chart)
        parts += [*drawing.findings(), drawing.tabs(), *drawing.buffers()]
        document.js_on_event("document_ready", drawing.script)
    document.add_root(Column(*parts, sizing_mode="stretch_width"))
    return document


def height_of(memory: MemoryMap, chart: Chart | None) -> int:
    """Height of the page in pixels."""
    if chart is None:
        return 80
    findings = _findings_height(memory) + _BUTTON if memory.damages else 0
    return _FRAME + _map_height(chart) + findings


def _map_height(chart: Chart) -> int:
    return _HEIGHT + _PER_LANE * (chart.lanes - 1)


def _findings_height(memory: MemoryMap) -> int:
    return 32 + _FINDING * min(len(memory.damages), _FINDINGS)


class _Drawing:
    """The models of one map; the columns are shared by both scales."""

    def __init__(self, memory: MemoryMap, chart: Chart) -> None:
        self.memory, self.chart = memory, chart
        self.sources = {kind: ColumnDataSource(getattr(chart, kind), name=kind) for kind in _KINDS}
        self.ranges = {scale: self._range(scale) for scale in SCALES}
        self.themed: list[tuple[Any, str, str, str]] = []  # model, property, light and dark
        self.sheet = InlineStyleSheet(css=source("map_widgets.css"))
        self.seen = {
            scale: {kind: ColumnDataSource({name: [] for name in names}) for kind, names in _DRAWN.items()}
            for scale in SCALES
        }
        self.said = Div(text="", width=220, margin=(28, 5, 5, 5))
        self.view = CDSView(filter=IndexFilter(list(range(len(memory.buffers)))))
        self.sought = TextInput(
            title="find a buffer by name, form, address or finding", width=380, name="find", stylesheets=[self.sheet]
        )
        self.plots: dict[str, Any] = {}
        self.script = self._script()
        for each in self.ranges.values():
            each.js_on_change("start", self.script)
            each.js_on_change("end", self.script)
        self.sought.js_on_change("value", self.script)
        for kind in ("buffers", "marks"):
            self.sources[kind].selected.js_on_change("indices", self.script)

    def _range(self, scale: str) -> Range1d:
        """The visible range: at first that of the first finding; a reset shows all."""
        low, high = self.chart.ends[scale]
        window = (low, high)
        if self.memory.damages:
            self.sources["marks"].selected.indices = [0]
            window = float(self.chart.marks[f"from_{scale}"][0]), float(self.chart.marks[f"to_{scale}"][0])
        return Range1d(
            *window, reset_start=low, reset_end=high, bounds=(low, high), min_interval=8 if scale == "bytes" else 0.5
        )

    def _dress(self, model: Any, **colors: tuple[str, str]) -> None:
        """Give a model its light colours, and its dark ones to the script."""
        for name, (light, dark) in colors.items():
            setattr(model, name, light)
            self.themed.append((model, name, light, dark))

    def _script(self) -> CustomJS:
        """``browsing.js`` with its arguments."""
        roles = {buffer.role for buffer in self.memory.buffers}
        args = {
            **{kind: self.sources[kind] for kind in _KINDS},
            "ranges": self.ranges,
            "ends": self.chart.ends,
            "seen": self.seen,
            "step": STEP,
            "colors": {role: role_color(role) for role in roles},
            "sought": self.sought,
            "said": self.said,
            "view": self.view,
            "plots": self.plots,
            "heights": [_HEIGHT, _PER_LANE],
            "themed": self.themed,
        }
        return CustomJS(args=args, code=resources.files(__package__).joinpath("browsing.js").read_text("utf-8"))

    def tabs(self) -> Tabs:
        """The map on each scale, with the strip above it, which so stays where it is when the map's height changes."""
        panels = [
            TabPanel(child=Column(self._strip(scale), self._map(scale), sizing_mode="stretch_width"), title=title)
            for scale, (title, _) in _TABS.items()
        ]
        self.script.args = {**self.script.args, "plots": self.plots, "themed": self.themed}
        return Tabs(tabs=panels, sizing_mode="stretch_width", stylesheets=[self.sheet])

    def _map(self, scale: str) -> Any:
        plot = figure(
            height=_map_height(self.chart),
            sizing_mode="stretch_width",
            x_range=self.ranges[scale],
            y_range=(-STEP * (self.chart.lanes - 1) - 0.5, 1.65),
            tools="xpan,xwheel_zoom,xbox_zoom,reset,save",
            active_scroll="xwheel_zoom",
            x_axis_label=_TABS[scale][1],
            name=f"map:{scale}",
        )
        plot.toolbar.logo = None
        plot.yaxis.visible = plot.ygrid.visible = plot.xgrid.visible = False
        plot.xaxis.axis_label_text_font_style = "normal"
        plot.xaxis.axis_label_text_font_size = "12px"
        self._ticks(plot, scale)
        self._bars(plot, scale)
        self._findings(plot, scale)
        plot.text(
            "x", "y", "text", source=self.seen[scale]["names"], text_align="center", text_baseline="middle",
            text_font_size="11px",
        )  # fmt: skip
        self._legend(plot)
        self._dress(plot, background_fill_color=_PAPER, border_fill_color=_PAPER, outline_line_color=_LINE)
        self._dress(plot.xaxis[0], axis_label_text_color=_SOFT, major_label_text_color=_SOFT, axis_line_color=_SOFT)
        self._dress(plot.xaxis[0], major_tick_line_color=_SOFT, minor_tick_line_color=_SOFT)
        plot.js_on_change("inner_width", self.script)
        self.plots[scale] = plot
        return plot

    def _ticks(self, plot: Any, scale: str) -> None:
        """Addresses below the scale in bytes; on the logarithmic scale a position has no readable address."""
        if scale != "bytes":
            plot.xaxis.ticker = []
            return
        known = self.chart.scales[scale]
        points = ColumnDataSource({"place": known.places, "address": known.addresses})
        plot.xaxis.formatter = CustomJSTickFormatter(args={"points": points}, code=_TICK)
        plot.xaxis.ticker = AdaptiveTicker(base=16, mantissas=[1, 2, 4, 8], desired_num_ticks=6)  # round in hexadecimal

    def _bars(self, plot: Any, scale: str) -> None:
        low = -STEP * (self.chart.lanes - 1) - 0.3
        folded = plot.quad(
            left=f"left_{scale}", right=f"right_{scale}", bottom=low, top=1.5, source=self.sources["gaps"],
            line_color=None, hatch_pattern="/", name=f"gaps:{scale}",
        )  # fmt: skip
        self._dress(folded.glyph, fill_color=_PANEL, hatch_color=_LINE)
        tip = [("no buffer", "@nbytes{0,0} B, folded")]
        plot.add_tools(HoverTool(renderers=[folded], tooltips=tip, visible=False))
        for kind, look in _LOOKS.items():
            drawn = plot.quad(
                left="left", right="right", bottom="bottom", top="top", source=self.seen[scale][kind],
                name=f"{kind}:{scale}", **look,
            )  # fmt: skip
            if kind == "guards":
                self._dress(drawn.glyph, **_GUARD)
            plot.add_tools(
                HoverTool(renderers=[drawn], tooltips=_TIPS[kind], visible=False, point_policy="follow_mouse")
            )

    def _findings(self, plot: Any, scale: str) -> None:
        """A mark below each damaged place, of the same size at any zoom."""
        if not self.memory.damages:
            return
        source = self.sources["marks"]
        left, right = (self.chart.marks[f"{side}_{scale}"] for side in ("left", "right"))
        source.add([(a + b) / 2 for a, b in zip(left, right, strict=True)], f"x_{scale}")
        source.data["y"] = [-STEP * int(lane) - 0.13 for lane in self.chart.marks["lane"]]
        looks = {"nonselection_fill_alpha": 1.0, "nonselection_line_alpha": 1.0}
        marks = plot.scatter(
            f"x_{scale}", "y", source=source, marker="triangle", size=11, fill_color=VERMILLION, line_color=BLACK,
            name=f"marks:{scale}", **looks,
        )  # fmt: skip
        labels = plot.text(
            "x", "y", "text", source=self.seen[scale]["labels"], y_offset=7, text_align="center", text_baseline="top",
            text_font_size="11px", text_font_style="bold", name=f"labels:{scale}",
        )  # fmt: skip
        self._dress(labels.glyph, text_color=_INK)
        tip = [("finding", "@told"), ("buffer", "@name")]
        plot.add_tools(HoverTool(renderers=[marks], tooltips=tip, visible=False))

    def _entries(self) -> dict[str, dict[str, Any]]:
        """Labels of the legend, for the kinds of bars in this map only, each with the look of its bar."""
        buffers = self.memory.buffers
        shown = {role: role_color(role) for role in sorted({buffer.role for buffer in buffers if buffer.alive})}
        if any(not buffer.alive for buffer in buffers):
            shown["freed"] = "white"
        looks: dict[str, dict[str, Any]] = {
            f"{role} buffer": {"fill_color": color, "line_color": BLACK} for role, color in shown.items()
        }
        for kind, label in (("guards", "guard"), ("owners", "another owner"), ("damages", "broken bytes")):
            if len(getattr(self.chart, kind)["left_log"]):
                looks[label] = {**_LOOKS[kind], "hatch_pattern": "/" if kind == "guards" else None}
        return looks

    def _legend(self, plot: Any) -> None:
        items = []
        for label, look in self._entries().items():
            sample = plot.quad(left=[0], right=[0], bottom=[0], top=[0], **look)
            if label == "guard":
                self._dress(sample.glyph, **_GUARD)
            items.append(LegendItem(label=label, renderers=[sample]))
        legend = Legend(
            items=items, orientation="horizontal", location="left", border_line_color=None, padding=0, margin=4,
            label_text_font_size="12px", glyph_height=14, glyph_width=18, spacing=12,
        )  # fmt: skip
        self._dress(legend, background_fill_color=_PAPER, label_text_color=_INK)
        plot.add_layout(legend, "above")

    def _strip(self, scale: str) -> Any:
        """All memory, with a window that shows and moves the visible range above."""
        plot = figure(
            height=64, sizing_mode="stretch_width", x_range=Range1d(*self.chart.ends[scale]), y_range=(-0.15, 1.15),
            tools="", toolbar_location=None, name=f"strip:{scale}",
        )  # fmt: skip
        plot.xaxis.visible = plot.yaxis.visible = plot.ygrid.visible = plot.xgrid.visible = False
        self._dress(plot, background_fill_color=_PAPER, border_fill_color=_PAPER, outline_line_color=_LINE)
        for role, (left, right) in strip_of(self.memory, self.chart, scale).items():
            plot.quad(left=left, right=right, bottom=0, top=1, color=role_color(role), line_color=None)
        if self.memory.damages:
            plot.segment(
                x0=f"x_{scale}", x1=f"x_{scale}", y0=-0.1, y1=1.1, source=self.sources["marks"], line_color=VERMILLION,
                line_width=2.5, nonselection_line_alpha=1.0,
            )  # fmt: skip
        tool = RangeTool(x_range=self.ranges[scale])
        tool.overlay.fill_alpha = 0.25
        self._dress(tool.overlay, fill_color=(GREY, "#ffffff"), line_color=_SOFT)
        plot.add_tools(tool)
        return plot

    def findings(self) -> list[Any]:
        """The findings, and a way back to all memory; a click on a row moves the map there."""
        if not self.memory.damages:
            return []
        show_all = Button(label="show all memory", width=150, name="all", stylesheets=[self.sheet])
        args = {"ranges": self.ranges, "ends": self.chart.ends, "marks": self.sources["marks"]}
        show_all.js_on_event("button_click", CustomJS(args=args, code=_SHOW_ALL))
        hint = Div(text="the map shows the selected finding; a click on another one goes there", margin=(11, 5, 5, 5))
        titles = {"label": ("finding", 50), "told": ("what", 560), "name": ("buffer", 300)}
        columns = [
            TableColumn(field=each, title=title, width=wide, formatter=_formatter(each))
            for each, (title, wide) in titles.items()
        ]
        height = _findings_height(self.memory)
        return [self._table("marks", columns, height, CDSView()), Row(show_all, hint)]

    def buffers(self) -> list[Any]:
        """The buffers, and a search among them; a click on a row moves the map there."""
        columns = [
            TableColumn(field="name", title="buffer", width=320, formatter=_formatter("name")),
            TableColumn(field="form", title="form", width=110),
            TableColumn(field="nbytes", title="bytes", width=80, formatter=NumberFormatter(format="0,0")),
            TableColumn(field="role", title="role", width=110),
            TableColumn(field="start", title="address", width=120, formatter=HTMLTemplateFormatter(template=_HEX)),
            TableColumn(field="findings", title="findings", width=260, formatter=_formatter("findings")),
        ]
        return [Row(self.sought, self.said), self._table("buffers", columns, 230, self.view)]

    def _table(self, kind: str, columns: list[TableColumn], height: int, view: CDSView) -> DataTable:
        return DataTable(
            source=self.sources[kind], columns=columns, view=view, height=height, index_position=None,
            sizing_mode="stretch_width", sortable=False, reorderable=False, name=f"table:{kind}",
            stylesheets=[self.sheet],
        )  # fmt: skip


def _formatter(field: str) -> HTMLTemplateFormatter:
    """Text of the program, escaped, with all of it as a tip; of a name the end is kept, which is the telling part."""
    return HTMLTemplateFormatter(template=source("map_ending.html" if field == "name" else "map_whole.html"))
