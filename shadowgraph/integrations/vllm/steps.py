"""The step of a runner that is being prepared: its sizes, its batch, and the block that marks its launches.

Used in the thread that prepares the step, of every step, observed or not. Nothing is read from a device: lengths are
those of the host's own arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from shadowgraph.adapter_interface import AdapterInterface, PrepareBlock
from shadowgraph.common.internal_errors import error_barrier_all
from shadowgraph.integrations.batches import FEW, Lengths, longest_of, total

DECODE, MIXED = "requests, longest and tokens of a decode step", "requests, longest and tokens of a mixed step"


@dataclass(slots=True, eq=False)
class Step:
    """A step between its preparation and its first replay.

    Attributes
    ----------
    adapter
        Of the debugger that watched as it began.
    block
        Open while its launches are marked; None while replays pass unobserved.
    requests, tokens
        How many it has, without padding.
    lengths
        Tokens of each request at the end of the step, as the scheduler has it.
    ids
        The program's list of request ids.
    full, manager
        Of the V2 runner: whether one graph is the whole step, and id of the object that replays it.
    """

    adapter: AdapterInterface
    block: PrepareBlock | None
    requests: int
    tokens: int
    lengths: Lengths
    ids: Any
    full: bool = True
    manager: int = 0

    def end(self) -> None:
        """No launch from here on prepares it."""
        block, self.block = self.block, None
        if block is not None:
            with error_barrier_all("vllm adapter"):
                block.end()


def lengths_after(computed: npt.NDArray[Any], counts: npt.NDArray[Any]) -> Lengths:
    """What each request has when a step of so many new tokens is over."""
    lengths: Any = computed + counts
    made: Lengths = lengths.tolist() if lengths.size <= FEW else lengths
    return made


def see(adapter: AdapterInterface, runner: Any, requests: int, tokens: int, lengths: Lengths) -> None:
    """Report the sizes of a step: one larger than all before it is observed in full."""
    kind = DECODE if tokens == requests * runner.uniform_decode_query_len else MIXED
    adapter.novelty.see(kind, id(runner), requests, longest_of(lengths), total(lengths))
