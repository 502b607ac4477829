"""Which backend tests are watched on, found out before anything that depends on it is imported."""

from __future__ import annotations

import os
import sys


def interpret_triton() -> bool:
    """Let Triton's kernels run on the CPU; False where it was imported for a GPU before."""
    if "triton" in sys.modules:
        return os.environ.get("TRITON_INTERPRET") == "1"
    os.environ.setdefault("TRITON_INTERPRET", "1")
    return os.environ["TRITON_INTERPRET"] == "1"


def is_host() -> bool:
    """Whether there is no GPU to look at; whoever asks has asked for torch too."""
    named = os.environ.get("SHADOWGRAPH_BACKEND")
    if named:
        return named == "host"
    try:
        return resolved_auto() == "host"
    except ImportError:  # no torch: nothing will be watched, and the usage error says so
        return False


def resolved_auto() -> str:
    """The backend ``auto`` by its name."""
    import torch  # noqa: F401  # first: under `shadowgraph wrap` its arrival imports the module below

    from shadowgraph.common.compat import resolved

    return resolved("auto")
