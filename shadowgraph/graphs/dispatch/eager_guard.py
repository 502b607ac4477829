"""Selection of the eager allocations that become guarded static buffers without a `guard()` block:
`Settings.guard_eager`.

`wants` runs in the allocating thread, inside the dispatch mode; no lock.
"""

from __future__ import annotations

import os
import sys
from types import FrameType

from shadowgraph.graphs.dispatch.places import Places
from shadowgraph.graphs.dispatch.schemas import Schema

LARGEST = 64 << 20  # bytes of results that are moved to guarded memory; larger ones get a guard where they are made
_REPLAYS = 8  # replays without a capture after which no more static buffers are expected, as for a draft model
MAKERS = frozenset(
    f"aten.{name}"
    for name in (
        *("arange", "bartlett_window", "cat", "clone", "empty", "empty_like", "empty_permuted", "empty_strided", "eye"),
        *("full", "full_like", "hamming_window", "hann_window", "kaiser_window", "lift_fresh", "linspace"),
        *("logspace", "new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros", "normal", "ones"),
        *("ones_like", "rand", "rand_like", "randint", "randint_like", "randn", "randn_like", "randperm", "range"),
        *("repeat", "repeat_interleave", "scalar_tensor", "stack", "tril_indices", "triu_indices", "zeros"),
        *("zeros_like", "_to_copy", "_efficientzerotensor"),
    )
)
_NN = f"{os.sep}torch{os.sep}nn{os.sep}"
_SHORT_LIVED = (_NN, f"{os.sep}torch{os.sep}distributed{os.sep}")
_FRAMES = 40
_CALLER = 5  # frames from a test of the caller up to the one that called `EagerMode.dispatch`


class EagerGuard:
    """The selector for the setting `guard_eager`.

    Parameters
    ----------
    rule
        ``"auto"``, ``"all"`` or ``"in:module:qualname"`` (several separated by commas).

    Attributes
    ----------
    active
        Whether any allocation may be guarded now.
    every
        Whether results of all operators are guarded, not only those of allocating operators.
    """

    def __init__(self, rule: str) -> None:
        self.active = True
        self.every = rule == "all"
        self._within = Places(rule) if rule.startswith("in:") else None
        self._bounded = rule == "auto"
        self._replays = 0

    def capture_began(self) -> None:
        """Static buffers of further graphs may be allocated from here on."""
        if self._bounded:
            self._replays, self.active = 0, True

    def replay_began(self) -> None:
        """After some replays without a capture the program has finished allocating."""
        if self._bounded and self.active:
            self._replays += 1
            self.active = self._replays < _REPLAYS

    def stop(self) -> None:
        """Stop guarding permanently."""
        self._bounded, self.active = False, False

    def wants(self, schema: Schema) -> bool:
        """Whether the results of an operator, called from here, are to be guarded."""
        if self.every:
            return True
        if not allocates(schema):
            return False
        return self._within.on_stack() if self._within is not None else not _called_by_nn()

    def wants_large(self) -> bool:
        """Whether a large result that `wants` selected is to get a guard: no memory of an operator inside a module's
        ``forward``, or of torch's own, that is soon freed."""
        return self._within is not None or not _is_short_lived()

    def limit(self) -> int | None:
        """Bytes of the largest result that is moved to guarded memory; None for no limit."""
        return None if self.every else LARGEST


def allocates(schema: Schema) -> bool:
    """Whether an operator allocates memory for its result and does nothing else of note."""
    return schema.name.rsplit(".", 1)[0] in MAKERS


def _called_by_nn() -> bool:
    """Whether a module of `torch.nn` allocates: its parameters, or results of its functions."""
    frame: FrameType | None = sys._getframe(_CALLER)
    for _ in range(8):
        if frame is None:
            return False
        if _NN in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False


def _is_short_lived() -> bool:
    """Whether the caller runs inside of a module's ``forward``, however deep, or torch's own code allocates."""
    frame: FrameType | None = sys._getframe(_CALLER)
    for _ in range(_FRAMES):
        if frame is None:
            return False
        if any(name in frame.f_code.co_filename for name in _SHORT_LIVED):
            return True
        frame = frame.f_back
    return False
