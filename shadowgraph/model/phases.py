"""Phases of a program that uses CUDA graphs."""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    """The program's current activity (see the design document's terms)."""

    SETUP = "setup"  # before the first replay: initialisation, warm-ups, captures
    CAPTURE = "capture"
    PREPARE = "prepare"  # host code that refreshes the inputs of the next replay
    REPLAY = "replay"
    BETWEEN = "between"  # eager code between two pieces of a step (`shadowgraph.tracking.steps`)
    STEP = "step"  # a replay of one of several pieces, or code between them: only the step is known
    EAGER = "eager"  # host work that touches no memory of a graph
