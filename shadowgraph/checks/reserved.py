"""Codes that are reserved for kinds of finding which this version does not look for."""

from __future__ import annotations

RESERVED = {
    "SG107": "undefined influence",
}
