"""Batches of the latest replays, as adapters of servers know them: sizes, lengths and request ids, never what a request
says.

Written in the thread that prepares a replay, of every replay, observed or not; read where a finding or an exception is
recorded. Takes no lock.
"""

from __future__ import annotations

import ctypes
from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from shadowgraph.adapter_interface import launch_recording
from shadowgraph.graphs import host_tensors
from shadowgraph.model.findings import Batch
from shadowgraph.model.graphs import Graph
from shadowgraph.model.launch_log import SharedText
from shadowgraph.model.launch_log_format import OPEN, RowKind

_KEPT = 256  # replays: evidence of a device arrives a few replays later
_LOGGED, _LOGGED_IDS = 8, 64  # lengths and ids in the launch log
FEW = 64  # up to so many lengths, a list costs less than a copy of the memory
_INTEGERS = {torch.int32: np.int32, torch.int64: np.int64}
_values = torch._C.TensorBase.tolist  # torch's own: checks would see `tolist` of a tensor as a read by the program
_Tensor = torch.Tensor
_largest = np.maximum.reduce

Lengths = list[int] | npt.NDArray[np.signedinteger[Any]]
Sizes = tuple[int, int, int, int]  # requests, what they are padded to, tokens, what these are padded to
# Serial and coming replay of a graph; sizes, lengths, ids.
_Noted = tuple[int, int, Sizes, Lengths, tuple[object, ...]]


class _Ids:
    """The ids of a batch, which the batches of a step share, and those of most steps."""

    __slots__ = ("given", "ids", "said", "texts")

    def __init__(self, given: Any) -> None:
        # A copy, with which the next ids are compared: the program may change its own list.
        self.given = list(given) if isinstance(given, list) else given if isinstance(given, tuple) else None
        self.ids: tuple[object, ...] = tuple(given or ())
        said = ", ".join(map(str, self.ids[:_LOGGED_IDS])).replace(OPEN, " ")
        self.said = f"; ids {said}" if self.ids else ""
        self.texts: dict[tuple[Sizes, bool], SharedText] = {}  # by sizes, and whether there are lengths

    def text(self, sizes: Sizes, has_lengths: bool) -> SharedText:
        """Make the text for rows of the launch log."""
        size, padded_to, tokens, padded_tokens = sizes
        text = f"{size} request{'s' * (size != 1)}, padded to {padded_to}"
        if tokens and (tokens, padded_tokens) != (size, padded_to):
            text += f"; {tokens} new tokens, padded to {padded_tokens}"
        made = SharedText(RowKind.BATCH, text, f"; {OPEN} tokens{self.said}" if has_lengths else self.said)
        self.texts[sizes, has_lengths] = made
        return made


class Batches:
    """The batches of the latest replays, by graph and replay. Tensors are copied, not kept."""

    def __init__(self) -> None:
        self._noted: deque[_Noted] = deque(maxlen=_KEPT)
        self._latest = _Ids(None)

    def forget_texts(self) -> None:
        """No debugger watches any longer: let go of its launch log."""
        self._latest = _Ids(None)

    def record(self, graph: Graph, sizes: Sizes, lengths: Lengths, ids: Any) -> int:
        """Record the batch of a graph's coming replay.

        Parameters
        ----------
        sizes
            Requests, the number that they are padded to, tokens, the number that these are padded to; 0 for tokens
            that are not known.
        lengths
            Tokens of each request, not changed any more by the caller; empty where not known.
        ids
            Request ids, a list of the program's or a tuple; None where not known.

        Returns
        -------
        int
            The longest length, or 0.
        """
        serial, replay, latest = graph.serial, graph.replays + 1, self._latest
        if ids != latest.given:
            latest = self._latest = _Ids(ids)
        self._noted.append((serial, replay, sizes, lengths, latest.ids))
        longest, count = 0, len(lengths)
        shown: Any = lengths
        if count:  # sooner than `max` with a default, which costs more
            longest, shown = _of_many(lengths) if count > _LOGGED else (max(lengths), lengths)
        log = launch_recording.current
        if log is not None:  # what is known of it after the process's death
            said = latest.texts.get((sizes, count > 0)) or latest.text(sizes, count > 0)
            log.note_shared(said, serial, replay, shown)
        return longest

    def of(self, graph: Graph, replay: int) -> Batch | None:
        """The batch of a replay, if it is one of the latest."""
        return self.of_serial(graph.serial, replay)

    def of_serial(self, graph: int, replay: int) -> Batch | None:
        """The batch of a replay of the graph with a serial, if it is one of the latest."""
        for serial, number, sizes, lengths, ids in reversed(self._noted.copy()):  # at once: others append
            if serial == graph and number == replay:
                size, padded_to, tokens, padded_tokens = sizes
                counts, names = tuple(map(int, lengths)), tuple(map(str, ids))
                return Batch(size, padded_to, counts, names, tokens, padded_tokens)
        return None


def lengths_of(given: Any, size: int) -> Lengths:
    """A copy of the lengths of a batch of a size, from a tensor on the host; empty for others."""
    found = host_tensors.numbers(given, FEW) if size <= FEW else None
    if found is not None:
        return found
    if not isinstance(given, _Tensor) or not given.is_cpu:
        return []
    if given.dtype in _INTEGERS and given.dim() == 1 and given.is_contiguous() and not given.is_neg():
        return np.frombuffer(ctypes.string_at(given.data_ptr(), given.nbytes), _INTEGERS[given.dtype])
    lengths = _values(given)  # whose types tell as much as dtype and shape do
    return lengths if type(lengths) is list and lengths and type(lengths[0]) is int else []


def total(lengths: Lengths) -> int:
    """The sum of lengths."""
    return sum(lengths) if isinstance(lengths, list) else int(lengths.sum(dtype=np.int64))


def longest_of(lengths: Lengths) -> int:
    """The longest of some lengths, which are not empty."""
    return max(lengths) if isinstance(lengths, list) else int(_largest(lengths))


def _of_many(lengths: Lengths) -> tuple[int, list[int]]:
    """The longest, and the first that the launch log shows."""
    first = lengths[:_LOGGED]
    return longest_of(lengths), first if isinstance(first, list) else first.tolist()
