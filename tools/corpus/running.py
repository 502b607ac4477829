"""Runs one program once: plain, as a probe, eagerly, or watched in one of the variants."""

from __future__ import annotations

import logging
import time
import traceback
import warnings
from typing import Any

from corpus.counting import Counting, counted
from corpus.env import Env, Program, first_line, seed_all
from corpus.planting import Plant

VARIANTS: dict[str, dict[str, Any]] = {
    # what a notebook does: inputs in guard(), refreshes in prepare()
    "guard": {"layout": "isolate"},
    # what `wrap` sets
    "wrap": {"layout": "faithful", "guard_eager": "auto"},
    # every graph's second replay is looked at node by node
    "locate": {"layout": "isolate", "locate": "all"},
}
Answer = dict[str, Any]


def run_plain(program: Program, backend: str, kind: str) -> Env:
    """A run without a debugger; what it raises goes on."""
    seed_all(1)
    env = Env(backend, kind)
    began = time.perf_counter()
    _run(program, env)
    env.times["total"] = time.perf_counter() - began
    env.graphs = []
    return env


def _run(program: Program, env: Env) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program(env)


class Heard(logging.Handler):
    """Keeps what shadowgraph logs of its own faults."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text += " | " + "".join(traceback.format_exception(record.exc_info[1]))[-1500:]
        if "fault" in text:
            self.lines.append(text[:2500])


class Watched:
    """One watched run, its results in `env`, what the debugger says in `answer`.

    Parameters
    ----------
    results
        How many results the plain run handed over, 0 where nothing is to be counted.
    plant
        A write to plant.
    """

    def __init__(
        self, program: Program, backend: str, variant: str, kind: str = "watched", results: int = 0,
        plant: Plant | None = None,
    ) -> None:  # fmt: skip
        self.answer: Answer = {"findings": [], "notes": [], "faults": {}, "error": None, "lost": None, "nodes": 0}
        self.env = Env(backend, kind)
        self.env.plant = plant
        self.env.counting = Counting(results) if results else None
        heard = Heard()
        logger = logging.getLogger("shadowgraph")
        logger.addHandler(heard)
        logger.propagate = False
        try:
            self._watch(program, variant)
        except Exception as error:
            self._failed("around", error)
        finally:
            logger.removeHandler(heard)
            self.env.debugger = None
        self.answer["log"] = heard.lines[:3]
        self.answer["times"] = {name: round(value, 4) for name, value in self.env.times.items()}

    def _watch(self, program: Program, variant: str) -> None:
        import shadowgraph as sg

        env, answer = self.env, self.answer
        with sg.debug(backend=env.backend, **VARIANTS[variant]) as debugger:
            env.debugger, env.guarding = debugger, variant != "wrap"
            seed_all(1)
            began = time.perf_counter()
            try:
                _run(program, env)
            except Exception as error:
                self._failed("", error)
            env.times["total"] = time.perf_counter() - began
            try:
                self._at_the_end(debugger)
            except Exception as error:
                self._failed("at the end", error)
            env.graphs = []
        answer["findings"] = [finding_facts(finding) for finding in debugger.findings]
        answer["notes"] = [finding_facts(note) for note in debugger.notes]
        answer["faults"] |= debugger.facts().faults

    def _at_the_end(self, debugger: Any) -> None:
        env, answer = self.env, self.answer
        debugger.check()
        if env.plant is not None:
            answer["planted"] = env.plant.outcome(debugger)
            env.plant.forget()
        answer["nodes"] = sum(len(graph.nodes) for graph in debugger.graphs)
        facts = debugger.facts()
        answer["faults"] = dict(facts.faults)
        answer["lost"] = str(facts.lost) if facts.lost else None
        answer["replays"] = env.replayed
        answer |= counted(debugger)
        answer["buffers"] = env.counting.buffers if env.counting is not None else {}
        answer["report"] = str(debugger.report(quiet=True))[-6000:] if debugger.findings else ""

    def _failed(self, when: str, error: Exception) -> None:
        """An exception in the program, or in the debugger around it: the first one counts."""
        if self.answer["error"] is None:
            self.answer["error"] = f"{when}: {said(error)}" if when else said(error)
            self.answer["trace"] = "".join(traceback.format_exception(error))[-3000:]


def said(error: BaseException) -> str:
    """An error's type and first line."""
    return f"{type(error).__name__}: {first_line(error)}"


def finding_facts(finding: Any) -> dict[str, Any]:
    """Of a finding what tells it from others."""
    whole = finding.to_dict()
    culprit, buffer, changed = (whole.get(name) or {} for name in ("culprit", "buffer", "bytes"))
    kept = {name: whole.get(name) for name in ("code", "severity", "confidence", "message", "phase", "detected_at")}
    return {
        **kept,
        "side": changed.get("side"),
        "culprit": culprit.get("name"),
        "status": culprit.get("status"),
        "line": f"{culprit.get('file')}:{culprit.get('line')}",
        "buffer": buffer.get("name"),
    }
