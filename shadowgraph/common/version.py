"""The version of the package, where modules of every layer can read it."""

from __future__ import annotations

VERSION = "0.2.0"
