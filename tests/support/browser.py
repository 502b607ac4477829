"""Chromium for tests of pages: without it these tests are skipped; in CI, which installs it, they fail."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)

needs_browser = pytest.mark.skipif(CHROMIUM is None and not os.environ.get("CI"), reason="needs Chromium")


def browser() -> str:
    """The path of Chromium."""
    assert CHROMIUM is not None, "no Chromium was found"
    return CHROMIUM


def loaded(url: str, folder: Path, dark: bool = False, options: Sequence[str] = ("--dump-dom",)) -> str:
    """What headless Chromium prints of a page: its document once its scripts have run."""
    theme = [f"--blink-settings=preferredColorScheme={0 if dark else 1}"]
    done = subprocess.run(
        [browser(), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}",
         "--virtual-time-budget=20000", *theme, *options, url],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    return done.stdout


def pictured(url: str, folder: Path, dark: bool = False, size: tuple[int, int] = (1300, 1000)) -> Path:
    """A screenshot of a page, as PNG."""
    path = folder / "shot.png"
    path.unlink(missing_ok=True)
    width, height = size
    loaded(url, folder, dark, ["--hide-scrollbars", f"--window-size={width},{height}", f"--screenshot={path}"])
    return path
