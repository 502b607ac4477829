"""What is read off a debugger: replays checked, bytes guarded by class of buffer, each way of stepping aside."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from corpus.env import Env

FOUND = "found"  # what a planted write is to be
# Fields of the facts that are no counts of what was left undone.
_OTHERS = {"findings", "notes", "coverage", "graphs", "faults", "watches", "lost", "last_values", "last_launches"}
_OTHERS |= {"failures"}


class Counting:
    """Sums up the debugger's buffers when a program hands over its last result: then they are still alive.

    Parameters
    ----------
    results
        How many results the program hands over.
    """

    def __init__(self, results: int) -> None:
        self._results = results
        self.buffers: dict[str, dict[str, int]] = {}

    def kept(self, env: Env) -> None:
        """Results were handed over."""
        if env.debugger is not None and not self.buffers and len(env.kept) >= self._results:
            self.buffers = buffers_by_class(env.debugger)


def buffers_by_class(debugger: Any) -> dict[str, dict[str, int]]:
    """Bytes of live buffers by role, and of each how many have a guard at their last byte, at a distance, and none."""
    found: dict[str, Counter[str]] = {}
    for buffer in debugger.buffers:
        near = buffer.guarded or buffer.gap > 0
        how = "exact" if buffer.exact else "inexact" if near else "none"
        found.setdefault(str(buffer.role), Counter())[how] += buffer.nbytes
    return {role: dict(sizes) for role, sizes in found.items()}


def counted(debugger: Any) -> dict[str, Any]:
    """Replays, coverage, and what was left undone."""
    facts = debugger.facts()
    coverage = facts.coverage
    counts = _replay_counts(debugger)
    return {
        "began": counts.replays,
        "checked": counts.checked,
        "coverage": {"written": coverage.written, "exact": coverage.exact, "inexact": coverage.inexact},
        "unguarded_inputs": coverage.inputs,
        "aside": {**left_undone(facts), **({"records dropped": coverage.dropped} if coverage.dropped else {})},
    }


def _replay_counts(debugger: Any) -> Any:
    """What counts replays begun and checked, also in the sources of a baseline, which call it otherwise."""
    runner = getattr(debugger, "runner", None)
    if runner is not None:
        return runner.counts()
    monitor = getattr(debugger, "monitor", None)
    return debugger.supervisor.outside if monitor is None else monitor.hooks


def left_undone(facts: Any) -> dict[str, int]:
    """Every count in the facts that tells of something not done, by its name; also of fields to come."""
    told: Counter[str] = Counter()
    for field in facts.__struct_fields__:
        value = getattr(facts, field)
        if field in _OTHERS or not value:
            continue
        name = field.replace("_", " ")
        if isinstance(value, int):
            told[name] += int(value)
        elif isinstance(value, dict):
            for reason, count in value.items():
                told[f"{name}: {without_numbers(str(reason))}"] += count if isinstance(count, int) else 1
        elif isinstance(value, (tuple, list)):
            for sentence in value:
                told[f"{name}: {without_numbers(str(sentence))}"] += 1
    return dict(told)


def without_numbers(text: str) -> str:
    """A message with its numbers and addresses replaced, so that like ones are counted together."""
    return re.sub(r"0x[0-9a-f]+|(?<![A-Za-z\d])\d[\d,.]*", "N", text)[:160]
