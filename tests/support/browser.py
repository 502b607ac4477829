"""The browser that looks at pages: without one its tests are skipped, and fail in CI, which installs it."""

from __future__ import annotations

import os
import shutil

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)

needs_browser = pytest.mark.skipif(CHROMIUM is None and not os.environ.get("CI"), reason="needs Chromium")


def browser() -> str:
    """Its path."""
    assert CHROMIUM is not None, "no Chromium was found"
    return CHROMIUM
