"""The metrics text: read by a small reader of the format, numbers from pulses, labels escaped."""

from __future__ import annotations

import re
from pathlib import Path

from run_folders import COVERAGE, made_folder, with_process

from shadowgraph.render.text.run_text import RunReport
from shadowgraph.wrap.folder.heartbeats import Heartbeat
from shadowgraph.wrap.folder.reader import read_run
from shadowgraph.wrap.status.metrics import metrics

SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)")
LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\["\\n])*)"(?:,|$)')
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def parsed(text: str) -> tuple[Samples, dict[str, str]]:
    """Samples by name and labels, and the kind of every metric; anything out of place fails."""
    samples: Samples = {}
    kinds: dict[str, str] = {}
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# HELP "):
            continue
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in kinds
            kinds[name] = kind
            continue
        match = SAMPLE.fullmatch(line)
        assert match is not None, line
        name, inside, number = match.groups()
        assert name in kinds, line
        labels = LABEL.findall(inside or "")
        assert "".join(f'{key}="{value}",' for key, value in labels).rstrip(",") == (inside or ""), line
        plain = {(key, value.replace(r"\"", '"').replace(r"\n", "\n").replace(r"\\", "\\")) for key, value in labels}
        key = name, frozenset(plain)
        assert key not in samples, line
        samples[key] = float(number)
    return samples, kinds


def at(samples: Samples, name: str, **labels: str) -> float:
    return samples[f"shadowgraph_{name}", frozenset(labels.items())]


def test_numbers_of_two_processes(tmp_path: Path) -> None:
    folder = made_folder(tmp_path / "run")
    pulse = Heartbeat(
        time=10.0,
        replays=100,
        checked=25,
        every=4,
        overhead=1.5,
        faults=2,
        coverage=COVERAGE,
        occurrences=((1, 1, 25),),
    )
    with_process(folder, pulse, rank=None)
    with_process(folder, Heartbeat(replays=10, checked=10, pauses=1, off=3.5), pid=2**22 + 1, occurrences=3)
    samples, kinds = parsed(metrics(RunReport(read_run(folder))))
    assert at(samples, "findings", code="SG101", severity="error") == 2
    assert at(samples, "finding_occurrences_total", code="SG101", severity="error") == 28
    assert (at(samples, "replays_total"), at(samples, "replays_checked_total")) == (110, 35)
    assert (at(samples, "coverage_ratio"), at(samples, "records_dropped_total")) == (0.75, 3)
    assert (at(samples, "processes", state="running"), at(samples, "processes", state="gone")) == (1, 1)
    assert at(samples, "switched_on") == 1
    pids = {dict(labels)["pid"] for (name, labels) in samples if name == "shadowgraph_checking"}
    (pid,) = pids  # the other is dead
    assert (at(samples, "overhead_percent", pid=pid), at(samples, "check_every", pid=pid)) == (1.5, 4)
    assert at(samples, "checking", pid=pid) == 1
    assert kinds["shadowgraph_replays_total"] == "counter"
    assert kinds["shadowgraph_findings"] == "gauge"


def test_labels_are_escaped(tmp_path: Path) -> None:
    words = ("python", 'a "quoted" \\ word', "x\ny")
    folder = made_folder(tmp_path / "run", *words)
    samples, _ = parsed(metrics(RunReport(read_run(folder))))
    (labels,) = (dict(labels) for (name, labels) in samples if name == "shadowgraph_run_info")
    assert "\"quoted\" \\ word' 'x y'" in labels["command"]
    assert r"\"quoted\" \\ word" in metrics(RunReport(read_run(folder)))


def test_a_run_in_which_nothing_happened_yet(tmp_path: Path) -> None:
    samples, kinds = parsed(metrics(RunReport(read_run(made_folder(tmp_path / "run")))))
    assert at(samples, "replays_total") == 0
    assert "shadowgraph_coverage_ratio" in kinds
    assert not any(name == "shadowgraph_coverage_ratio" for name, _ in samples)
