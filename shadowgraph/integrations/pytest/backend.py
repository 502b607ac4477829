"""Selection of the backend for tests, before any module that depends on it is imported."""

from __future__ import annotations

import os
import sys

from shadowgraph.common.options import option


def interpret_triton() -> bool:
    """Make Triton run kernels on the CPU; False when it was already imported for a GPU."""
    if "triton" in sys.modules:
        return os.environ.get("TRITON_INTERPRET") == "1"
    os.environ.setdefault("TRITON_INTERPRET", "1")
    return os.environ["TRITON_INTERPRET"] == "1"


def is_host() -> bool:
    """Whether no GPU is available; imports torch, so call it only for a run that uses shadowgraph."""
    named = os.environ.get(option("backend").variable)
    if named:
        return named == "host"
    try:
        return resolved_auto() == "host"
    except ImportError:  # no torch: no test is watched, and the usage error says so
        return False


def resolved_auto() -> str:
    """The backend that ``auto`` stands for."""
    import torch  # noqa: F401  # first: under `shadowgraph wrap`, importing torch imports the module below

    from shadowgraph.common.compat import resolved

    return resolved("auto")
