"""Chromium for tests of pages: without it these tests are skipped; in CI, which installs it, they fail."""

from __future__ import annotations

import os
import shutil

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)

needs_browser = pytest.mark.skipif(CHROMIUM is None and not os.environ.get("CI"), reason="needs Chromium")


def browser() -> str:
    """The path of Chromium."""
    assert CHROMIUM is not None, "no Chromium was found"
    return CHROMIUM
