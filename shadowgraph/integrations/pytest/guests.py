"""Detection of `shadowgraph wrap` around the pytest process."""

from __future__ import annotations

import os
import sys

import torch

from shadowgraph import session
from shadowgraph.debugger import Debugger

_RUN, _HOOK = "SHADOWGRAPH_WRAP", "_shadowgraph_hook"


def is_wrapped() -> bool:
    """Whether `shadowgraph wrap` watches this process, or will from the first operator on."""
    return bool(os.environ.get(_RUN)) and _HOOK in sys.modules


def wraps_debugger() -> Debugger | None:
    """The debugger of `shadowgraph wrap`, started if it waits for the first operator. None if it failed to start, or
    waits for the program to initialise CUDA."""
    if session.current() is None:
        torch.empty(0)
    return session.current()
