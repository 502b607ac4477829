"""Two engines on one GPU, one plain and one under `shadowgraph wrap`, that take turns: plain, wrapped, wrapped, plain.

A machine's clock and its other guests make rounds of one engine differ by half. Rounds that lie beside each other in
time share that, so each is compared with its neighbours only. The engine whose turn it is not is stopped: a scheduler
that waits for work would keep a core busy.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from threading import Timer
from types import TracebackType
from typing import Any, NamedTuple

WARM = 6  # rounds


class EndedError(Exception):
    """An engine is gone in the middle of it."""


class Block(NamedTuple):
    """Tokens a second of a plain round, two wrapped ones and a plain one again, in this order of time."""

    plain: float
    wrapped: float
    wrapped_again: float
    plain_again: float

    @property
    def ratio(self) -> float:
        """How many tokens the wrapped engine gave in the time in which the plain one gave one."""
        return (1 / self.plain + 1 / self.plain_again) / (1 / self.wrapped + 1 / self.wrapped_again)


class Player:
    """An engine that waits for its turn.

    Parameters
    ----------
    command
        `tools/live_engine.py` with ``--told``, plain or under `wrap`.
    log
        File for what it prints.
    limit
        Seconds after which it is ended.
    """

    def __init__(self, command: list[str], environment: dict[str, str], folder: Path, log: Path, limit: float) -> None:
        self._log = log.open("w")
        self._began = time.perf_counter()
        self._program = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            errors="replace",
            process_group=0,
        )
        self._timer = Timer(limit, self._kill)
        self._timer.start()

    def __enter__(self) -> Player:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._timer.cancel()
        self._kill()  # the engine's own processes must not stay on the GPU
        self._program.wait()
        self._log.close()

    def heard(self, word: str) -> dict[str, Any]:
        """The next line of data that it prints behind a word."""
        assert self._program.stdout is not None
        for line in self._program.stdout:
            self._log.write(line)
            self._log.flush()
            if line.startswith(word):
                found: dict[str, Any] = json.loads(line.removeprefix(word))
                return found
        raise EndedError(f"the engine ended before it said {word.strip()}; see its log")

    def turn(self) -> dict[str, Any]:
        """One round: `rate` in tokens a second, and `outputs`, by which rounds with the same tokens are known."""
        assert self._program.stdin is not None
        self._signal(signal.SIGCONT)
        try:
            self._program.stdin.write("round\n")
            self._program.stdin.flush()
        except OSError:
            raise EndedError("the engine ended between two rounds; see its log") from None
        found = self.heard("ROUND ")
        self._signal(signal.SIGSTOP)
        return found

    def end(self) -> tuple[dict[str, Any], int, float]:
        """What it says in the end, its exit code, and the seconds that it ran."""
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        self._signal(signal.SIGCONT)
        self._program.stdin.close()
        said = self.heard("LIVE ")
        for line in self._program.stdout:
            self._log.write(line)
        return said, self._program.wait(), round(time.perf_counter() - self._began, 1)

    def _kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._program.pid, number)


def play(plain: Player, wrapped: Player, blocks: int, warm: int = WARM) -> tuple[list[Block], bool]:
    """Rounds in turn, and whether both engines gave the same tokens: in their first round, in their second, and so on.

    Parameters
    ----------
    warm
        Rounds of each that do not count: a wrapped engine is observed all the time for its first 512 replays.
    """
    outputs: dict[Player, list[str]] = {plain: [], wrapped: []}

    def rate(player: Player) -> float:
        round_ = player.turn()
        outputs[player].append(round_["outputs"])
        return float(round_["rate"])

    for player in (plain, wrapped):
        for _ in range(warm):
            rate(player)
    played = [Block(*(rate(player) for player in (plain, wrapped, wrapped, plain))) for _ in range(blocks)]
    return played, outputs[plain] == outputs[wrapped]


def measured(blocks: list[Block]) -> dict[str, Any]:
    """The ratio with its quartiles, and that of plain rounds beside each other: a difference below it says nothing."""
    plain = [rate for block in blocks for rate in (block.plain, block.plain_again)]
    wrapped = [rate for block in blocks for rate in (block.wrapped, block.wrapped_again)]
    ratios = [block.ratio for block in blocks]
    neighbours = [one.plain_again / other.plain for one, other in pairwise(blocks)]
    return {
        "blocks": len(blocks),
        "plain_tokens_per_s": _spread(plain, 0),
        "wrapped_tokens_per_s": _spread(wrapped, 0),
        "ratio": round(sum(1 / rate for rate in plain) / sum(1 / rate for rate in wrapped), 3),
        "ratio_of_blocks": _spread(ratios, 3),
        "plain_beside_plain": _spread(neighbours, 3),
    }


def _spread(values: list[float], digits: int) -> list[float]:
    """Lower quartile, median and upper quartile."""
    return [round(value, digits) for value in statistics.quantiles(values, n=4)] if len(values) > 1 else []
