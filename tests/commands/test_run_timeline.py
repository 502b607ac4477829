"""`shadowgraph timeline` without a buffer: a run over time, bounded however long it was."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from commands.verb_makers import Capture, empty_dump, of_process, printed, refused, run_folder
from reports.page_reading import read_page
from serving.run_folders import made_folder, with_process

from shadowgraph.commands.main import main
from shadowgraph.common.errors import NothingToDrawError
from shadowgraph.dumps.reader import read_dump
from shadowgraph.render.html.timeline import timeline_page
from shadowgraph.render.text.run_timeline_text import lasting
from shadowgraph.views.run_timeline import FoundAt, MarkAt, RunTimeline, TimelineStep, dump_timeline, run_timelines
from shadowgraph.wrap.folder.heartbeats import Heartbeat
from shadowgraph.wrap.folder.reader import read_run
from shadowgraph.wrap.status.heartbeat_writer import _HISTORY, _History

START = 4_000_000_000.0  # of the process in a made folder
HOURS = 10


def long_run(folder: Path) -> Path:
    """A run of ten hours whose replays stop in the middle, with a finding in its sixth hour."""
    made = made_folder(folder)
    minutes = [(START + 60.0 * minute, 600 * min(minute, 300)) for minute in range(1, 60 * HOURS)]
    pulse = Heartbeat(time=START + 3600 * HOURS, replays=180_000, checked=180_000, history=tuple(minutes))
    path = with_process(made, pulse)
    *before, last = map(json.loads, path.read_text().splitlines())
    last["finding"]["time"] = START + 5.5 * 3600
    path.write_text("".join(json.dumps(line) + "\n" for line in (*before, last)))
    return made


def test_a_dump_over_time(worker: Path, capsys: Capture) -> None:
    with read_dump(worker) as dump:
        told = dump_timeline(dump)
        replays = dump.manifest.replays
    assert told.replays == sum(step.replays for step in told.steps) == len(replays) == 3
    for row in replays:
        step = told.steps[told.step_of(row.time)]
        assert step.replays >= 1, "each replay is in the step of its time"
    assert {found.code for found in told.findings} == {"SG101", "SG102", "SG104"}
    assert [found.time for found in told.findings] == sorted(found.time for found in told.findings)
    text = printed(capsys, "timeline", str(worker))
    assert "; 3 replays, 3 findings\n" in text
    assert text.index("SG102 in-graph") < text.index("SG101 out-of-bounds") < text.index("SG104 dangling")
    assert main(["timeline", str(worker), "--json"]) == 0
    assert '"schema": "shadowgraph.run-timeline/1"' in capsys.readouterr().out


def test_hours_are_as_many_steps_as_minutes(tmp_path: Path, capsys: Capture) -> None:
    folder = long_run(tmp_path / "run")
    (told,) = run_timelines(read_run(folder))
    assert len(told.steps) == 40
    assert sum(step.replays for step in told.steps) == told.replays == 180_000
    assert told.width == pytest.approx(3600 * HOURS / 40, rel=0.01)
    busy = [step.replays for step in told.steps[:19]]
    assert max(busy) - min(busy) <= 20, "replays came evenly"
    assert all(step.replays == 0 for step in told.steps[21:]), "and stopped after five hours"
    text = printed(capsys, "timeline", str(folder))
    assert len(text.splitlines()) < 60
    assert "  no replay for " in text
    assert "180,000 replays, 1 finding" in text


def test_pictures_and_pages(worker: Path, tmp_path: Path, capsys: Capture) -> None:
    page = tmp_path / "run.html"
    assert printed(capsys, "timeline", str(worker), "-o", str(page)) == f"wrote {page}\n"
    read = read_page(page.read_text("utf-8"))
    assert read.scripts == []
    assert "SG101 out-of-bounds write: fill wrote 12 bytes past the end of worker.table" in read.words
    pytest.importorskip("matplotlib")
    for suffix, begins in (("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")):
        path = tmp_path / f"run.{suffix}"
        assert printed(capsys, "timeline", str(worker), "-o", str(path)) == f"wrote {path}\n"
        assert path.read_bytes().startswith(begins)
    assert re.search(r'id="finding:\d+"', (tmp_path / "run.svg").read_text())
    said = refused(capsys, 2, "timeline", str(worker), "-o", "run.txt")
    assert "must end in .png, .svg, .pdf or .html" in said
    assert "take one of them" in refused(capsys, 2, "timeline", str(worker), "--json", "-o", "run.svg")
    assert "take it without a buffer" in refused(capsys, 2, "timeline", str(worker), "worker.table", "-o", "run.svg")


def test_nothing_happened(tmp_path: Path, capsys: Capture) -> None:
    folder = str(run_folder(tmp_path / "run"))
    assert printed(capsys, "timeline", folder) == "no process of this run has replayed a graph or has a finding\n"
    assert "no process 7 of " in refused(capsys, 2, "timeline", folder, "--pid", "7")
    pytest.importorskip("matplotlib")
    said = refused(capsys, NothingToDrawError.exit_code, "timeline", folder, "-o", str(tmp_path / "run.png"))
    assert "no process of this run has replayed" in said
    assert "0 replays, 0 findings" in printed(capsys, "timeline", str(empty_dump(tmp_path / "empty.dump")))


def test_two_dumps_of_a_process_name_it(worker: Path, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "one.dump").write_bytes(of_process(worker.read_bytes(), 7, 1.0))
    assert "timeline of process 7, one.dump: " in printed(capsys, "timeline", str(tmp_path / "one.dump"))


def test_marks_stand_where_their_replays_are() -> None:
    steps = tuple(TimelineStep(float(at), 5) for at in range(10))
    marks = (MarkAt(3.5, "kv", 90, 100, "graph#1", 17), MarkAt(None, "x", 1, 2, "graph#1", 3))
    found = FoundAt(7.2, 4, "SG101", True, "SG101 <b>bold</b>", 2)
    told = RunTimeline(1, "serve", 0.0, 10.0, 50, 0.0, steps, (found,), marks)
    read = read_page(timeline_page([told]))
    assert "00:00:03 5 replays 00:00:03 90 % of kv in use, 90 of 100, its most: replay 17 of graph#1" in read.words
    assert "00:00:07 5 replays 00:00:07 #4 SG101 <b>bold</b> (seen 2 times)" in read.words
    assert "50 % of x in use" in read.words
    assert "b" not in read.tags


def test_the_history_of_a_process_is_bounded() -> None:
    history = _History()
    for pulse in range(100_000):  # six days
        history.add(5.0 * pulse, 100 * pulse)
    points: list[tuple[float, Any]] = history.points
    assert _HISTORY // 2 - 1 <= len(points) <= _HISTORY
    assert points[0] == (0.0, 0)
    assert points[-1][0] > 0.97 * 5.0 * 100_000
    assert all(count == 20 * time for time, count in points)
    gaps = [after[0] - before[0] for before, after in pairwise(points)]
    assert max(gaps) <= 4 * min(gaps)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.012, "12 ms"),
        (0.4, "0.4 s"),
        (12.3, "12 s"),
        (185, "3 min 5 s"),
        (7800, "2 h 10 min"),
        (90_000, "25 h 0 min"),
    ],
)
def test_lengths_of_time(seconds: float, said: str) -> None:
    assert lasting(seconds) == said
