"""Numbers, sizes and shapes as words, for texts, pages, plots and errors."""

from __future__ import annotations

from collections.abc import Sequence

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def plural(count: int, noun: str) -> str:
    """``1 byte``, ``4,448 bytes``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def entries(count: int) -> str:
    """``1 entry``, ``1,208 entries``."""
    return f"{count:,} {'entry' if count == 1 else 'entries'}"


def listed(parts: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last


def counted(count: int) -> str:
    """A number with its article: ``a 64``, ``an 80``, ``an 11,264``."""
    text = f"{count:,}"
    return f"an {text}" if text.startswith("8") or text.split(",")[0] in ("11", "18") else f"a {text}"


def form(dtype: str, shape: tuple[int, ...]) -> str:
    """``int32[3, 128]``."""
    return f"{dtype}[{', '.join(map(str, shape))}]"


def size(nbytes: int) -> str:
    """``864 B``, ``3.1 MiB``: exact below 1 KiB, else with two to four digits."""
    amount, unit = float(nbytes), 0
    while amount >= 1023.95 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    text = f"{amount:.1f}".removesuffix(".0") if unit and amount < 999.95 else f"{amount:.0f}"
    return f"{text} {_UNITS[unit]}"
