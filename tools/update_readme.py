"""Run the case that the README shows, and put its report into the README and into the picture: tools/update_readme.py

Needs the environment of `tools/bootstrap.py demo`, with sglang and matplotlib. The picture has the whole report as a
terminal shows it, and under it the memory map of the same run. Both stay where a new run says the same up to addresses.
"""

from __future__ import annotations

import html
import io
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("TRITON_INTERPRET", "1")  # before the first import of Triton
ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]
from varying import settled  # noqa: E402

README, PICTURE = ROOT / "README.md", ROOT / "docs" / "images" / "report.svg"
CASE = "S-eagle-48"
COLUMNS, GAP = 140, 16
SHOWN = ("SG101", "  culprit", "  launched", "shadowgraph: ")  # rows of the report's excerpt
_FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)  # rich's own is on the network
_SIZE = re.compile(r'viewBox="0 0 ([\d.]+) ([\d.]+)"')


class Shown(NamedTuple):
    """The report of the case's buggy program as text, and as a terminal and its memory map would show it."""

    report: str
    picture: str


def run_case() -> Shown:
    """Run the case under the debugger, on the host.

    Raises
    ------
    SystemExit
        When it does not end as it should.
    """
    import logging

    from rich.console import Console

    from shadowgraph.commands.demo import chosen
    from shadowgraph.demos.device import HostDevice
    from shadowgraph.demos.runner import run_case as run
    from shadowgraph.render.text.text import Report, lines

    logging.getLogger("shadowgraph").setLevel(logging.CRITICAL)  # each finding is in the report
    device = HostDevice()  # lets Triton interpret, before a case imports it
    (case,), _ = chosen("all", [CASE])
    outcome = run(case, device)
    if outcome.verdict != "passed" or outcome.buggy is None or outcome.memory is None:
        raise SystemExit(f"{CASE} {outcome.verdict}: {'; '.join(outcome.complaints)}")
    plain = {"highlight": False, "markup": False}
    terminal = Console(file=io.StringIO(), record=True, width=COLUMNS, force_terminal=True, **plain)
    for line in lines(outcome.buggy):
        terminal.print(line)
    shown = terminal.export_svg(title=f"shadowgraph demo --case {CASE} --reports", unique_id="report")
    return Shown(str(Report(outcome.buggy)), composed(_FONT.sub("", shown), drawn(outcome.memory)))


def drawn(memory: object) -> str:
    """The memory map as SVG, without the head of a file; its texts stay texts."""
    import matplotlib

    from shadowgraph.render.plots.memory_map import memory_map
    from shadowgraph.render.plots.saving import save_map

    with tempfile.TemporaryDirectory() as folder, matplotlib.rc_context({"svg.hashsalt": CASE, "svg.fonttype": "none"}):
        file = save_map(memory_map, memory, Path(folder) / "map.svg", title=f"memory map of {CASE}")
        text = file.read_text("utf-8")
    return re.sub(r" *<metadata>.*?</metadata>\n", "", text[text.index("<svg") :], flags=re.DOTALL)


def composed(report: str, memory: str) -> str:
    """One picture of two: the map below the report, as wide as that."""
    width, height = map(float, _SIZE.search(report).groups())  # type: ignore[union-attr]
    map_width, map_height = map(float, _SIZE.search(memory).groups())  # type: ignore[union-attr]
    below = round(map_height * width / map_width)
    whole = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height + GAP + below:g}" role="img">'
    said = "<title>A report of shadowgraph, and the memory map of the same run</title>"
    parts = (placed(report, 0, width, height), placed(memory, height + GAP, width, below))
    return "\n".join(line.rstrip() for line in "\n".join((whole, said, *parts, "</svg>\n")).split("\n"))


def placed(picture: str, top: float, width: float, height: float) -> str:
    """A picture as a part of another one."""
    head = re.match(r"<svg[^>]*>", picture)
    assert head is not None
    names = " ".join(re.findall(r'xmlns(?::\w+)?="[^"]*"|viewBox="[^"]*"|class="[^"]*"', head[0]))
    return f'<svg x="0" y="{top:g}" width="{width:g}" height="{height:g}" {names}>{picture[head.end() :].strip()}'


def words(picture: str) -> str:
    """All that stands in a picture, with single spaces."""
    body = re.sub(r"<style.*?</style>|<!--.*?-->", "", picture, flags=re.DOTALL)
    return " ".join(html.unescape(" ".join(re.findall(r">([^<>]+)<", body))).split())


def excerpt(report: str) -> str:
    """Its rows that the README has as text."""
    return "\n".join(line for line in report.splitlines() if line.startswith(SHOWN))


def with_report(readme: str, report: str) -> str:
    """The README with the excerpt between the ``text`` fences."""
    return re.sub(r"```text\n.*?```", lambda _: f"```text\n{excerpt(report)}\n```", readme, flags=re.DOTALL)


def store(path: Path, made: str, said: str, stored: str) -> None:
    """Write a file, unless what it says is what is stored."""
    if settled(said) != settled(stored):
        path.write_text(made, "utf-8")


def main() -> int:
    shown = run_case()
    readme = README.read_text("utf-8")
    made = with_report(readme, shown.report)
    store(README, made, made, readme)
    store(PICTURE, shown.picture, words(shown.picture), words(PICTURE.read_text("utf-8")) if PICTURE.exists() else "")
    return 0


if __name__ == "__main__":
    sys.exit(main())
