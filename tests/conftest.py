"""Settings that must stand before the first import of Triton, and what a test needs to run here."""

from __future__ import annotations

import os

import pytest
import torch

pytest_plugins = ["pytester"]  # allowed in no other conftest

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """GPU tests run where there is a GPU; the others where kernels are interpreted."""
    here = torch.cuda.is_available()
    for item in items:
        if item.get_closest_marker("gpu") and not here:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
