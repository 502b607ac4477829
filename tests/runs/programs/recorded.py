"""A decode loop that is killed at a chosen place: recorded.py PLACE HOW [REPLAYS].

PLACE: ``after`` a replay, inside ``prepare``, inside the ``replay``, ``before`` the first one.
HOW: ``clean``, or where damage is done in the last replay: ``prepare`` or ``replay``; ``forked`` does it in a child.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

import torch

import shadowgraph as sg
from shadowgraph import HostGraph, host_graph


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


class Decode:
    """A decode step with one static input, which `prepare` fills."""

    def __init__(self, place: str, how: str) -> None:
        self.place, self.how = place, how
        self.last = False
        self.page_table = torch.zeros((4, 4), dtype=torch.int32)
        self.lengths = torch.ones(4, dtype=torch.int32)
        self.graph = HostGraph()
        with host_graph(self.graph):
            self.out = self.page_table.sum(1)
            self.graph.call(self.inside, writes=())

    def inside(self) -> None:
        """Between two nodes of each replay."""
        if self.last and self.how == "replay":
            self.run_past()
        if self.last and self.place == "replay":
            die()

    def run_past(self) -> None:
        ctypes.memset(self.page_table.data_ptr() + 64, 1, 8)

    def prepare(self) -> None:
        current = sg.current()
        assert current is not None
        with current.prepare(self.graph):
            self.page_table.copy_(self.lengths[:, None].expand(4, 4))
            if self.last and self.how == "prepare":
                self.run_past()
            self.lengths.add_(1)
            if self.last and self.place == "prepare":
                die()


def run(place: str, how: str, replays: int) -> None:
    decode = Decode(place, how)
    if place == "before":
        die()
    for number in range(1, replays + 1):
        decode.last = number == replays
        decode.prepare()
        decode.graph.replay()
    if place == "after":
        die()


if __name__ == "__main__":
    place, how, replays = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if how == "forked":
        decode = Decode("none", "clean")
        decode.prepare()
        decode.graph.replay()
        child = os.fork()
        for _ in range(replays):
            if not child:
                decode.last, decode.how = True, "replay"
                decode.prepare()
                decode.graph.replay()
        if child:
            os.waitpid(child, 0)
        die()
    run(place, how, replays)
