"""Synthetic memory maps, and what was drawn of them."""

from __future__ import annotations

import random
from typing import Any

from shadowgraph.views.memory_map import MapBuffer, MapDamage, MemoryMap

BASE = 0x7F6A_A000_0000


def buffer(start: int = BASE, nbytes: int = 4000, name: str = "", **facts: Any) -> MapBuffer:
    facts = {"role": "static", "head_guard": 512, "tail_guard": 4096, **facts}
    names = (name,) if name else ()
    return MapBuffer(name or f"uint8[{nbytes}] from model.py:1", names, start, nbytes, shape=(nbytes,), **facts)


def damage(number: int, index: int, first: int, last: int, **facts: Any) -> MapDamage:
    facts = {"count": last + 1 - first, "culprit": "fill", "when": "in replay 3 of graph#1", **facts}
    return MapDamage(number, "SG101", first, last, index, **facts)


def past_end(number: int, index: int, of: MapBuffer, nbytes: int) -> MapDamage:
    return damage(number, index, of.stop, of.stop + nbytes - 1)


def many(count: int, damaged: int = 3, named: int = 12, seed: int = 1) -> MemoryMap:
    """Buffers of 64 B to 4 MiB, some foreign ones far away, `damaged` of them overrun."""
    rng = random.Random(seed)
    buffers, place = [], BASE
    for index in range(count):
        role = rng.choices(["static", "pool", "foreign"], [5, 4, 1])[0]
        guards = {"head_guard": 0, "tail_guard": 0} if role == "foreign" else {}
        if role == "foreign" and rng.random() < 0.05:
            place += rng.randrange(1 << 30, 1 << 36)
        name = f"runner.backends[{index}].kv_indices" if index % max(1, count // named) == 0 else ""
        buffers.append(buffer(place + 512, int(2 ** rng.uniform(6, 22)), name, role=role, **guards))
        place = -(-buffers[-1].stop // 512) * 512 + 4608
    guarded = [index for index, made in enumerate(buffers) if made.tail_guard]
    hit = sorted(rng.sample(guarded, damaged))
    return MemoryMap(
        tuple(buffers),
        tuple(past_end(n, i, buffers[i], rng.choice([4, 24, 864])) for n, i in enumerate(hit, 1)),
    )


def spans(figure: Any, gid: str) -> list[tuple[float, float]]:
    """Left and right ends, in inches, of the bars of the one artist with a gid."""
    [artist] = figure.findobj(lambda one: one.get_gid() == gid)
    return [(path.get_extents().x0, path.get_extents().x1) for path in artist.get_paths()]


def gids(figure: Any, prefix: str) -> list[str]:
    return [one.get_gid() for one in figure.findobj(lambda one: (one.get_gid() or "").startswith(prefix))]


def texts(figure: Any) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


def boxes(figure: Any, gid: str) -> list[tuple[float, float, float, float]]:
    """Left, top, right and bottom, in inches, of the rectangles of the one artist with a gid."""
    [artist] = figure.findobj(lambda one: one.get_gid() == gid)
    found = [path.get_extents() for path in artist.get_paths()]
    return [(box.x0, box.y0, box.x1, box.y1) for box in found]


def require_readable(figure: Any) -> None:
    """Every text lies on the page and none over another."""
    renderer = figure.canvas.get_renderer()
    width, height = figure.get_size_inches() * figure.dpi
    found = [(text.get_window_extent(renderer), text.get_text()) for text in figure.axes[0].texts]
    assert found
    for box, text in found:
        assert box.x0 >= 0, text
        assert box.y0 >= 0, text
        assert box.x1 <= width, text
        assert box.y1 <= height, text
    found.sort(key=lambda pair: -pair[0].y1)
    for index, (one, text) in enumerate(found):
        for other, other_text in found[index + 1 :]:
            if other.y1 <= one.y0:
                break
            across = min(one.x1, other.x1) - max(one.x0, other.x0)
            down = min(one.y1, other.y1) - max(one.y0, other.y0)
            # Boxes hold room for the tallest letters: lines one above the other may share a few pixels of it.
            assert across <= 0 or down <= 3, (text, other_text)
