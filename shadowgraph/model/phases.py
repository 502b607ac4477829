"""Phases of a program that uses graphs, and the clock that knows which one runs."""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    """What the program was doing (see the design's words)."""

    SETUP = "setup"  # before the first replay: initialisation, warm-ups, captures
    CAPTURE = "capture"
    PREPARE = "prepare"  # host code that refreshes what the coming replay reads
    REPLAY = "replay"
    EAGER = "eager"  # host work that touches nothing a graph reads
