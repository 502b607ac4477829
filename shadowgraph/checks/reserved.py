"""Codes that are reserved for kinds of finding which this version does not look for: none."""

from __future__ import annotations

RESERVED: dict[str, str] = {}
