"""Trails: where a name leads later, without running the program's code and without keeping anything alive."""

from __future__ import annotations

import gc
import sys
import weakref
from collections import namedtuple
from typing import Any

import pytest
import torch

from shadowgraph.tracking.trails import SHARE, Trail, TrailSearch

Pair = namedtuple("Pair", "first second")


class Holder:
    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


class Slotted:
    __slots__ = ("__weakref__", "tensor")


class Alarmed:
    """Code of the program that must not run."""

    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        raise AssertionError

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError


def trails(root: object, name: str = "root") -> dict[str, Trail]:
    return {trail.path: trail for trail in TrailSearch(lambda view: True).search([(name, root)], None)}


@pytest.mark.parametrize("inner", [False, True])
def test_an_object_in_place_of_the_old_one_is_not_asked_what_it_is(inner: bool) -> None:
    root = Holder(held={"x": torch.zeros(1)})
    (trail,) = trails(root).values()
    if inner:
        root.held["x"] = Alarmed()
    else:
        root.held = Alarmed()
    assert trail.now() is None


def test_each_way_to_hold_a_tensor_is_followed_again() -> None:
    module = torch.nn.Module()
    module.register_buffer("scale", torch.zeros(1))
    slotted = Slotted()
    slotted.tensor = torch.zeros(2)
    root = Holder(
        plain=torch.zeros(3),
        inner=Holder(x=torch.zeros(4)),
        table={"ids": torch.zeros(5), 7: torch.zeros(6)},
        listed=[torch.zeros(7)],
        pair=Pair(torch.zeros(8), None),
        slotted=slotted,
        module=module,
        alarmed=Alarmed(),
    )
    found = trails(root)
    names = {path: trail.name for path, trail in found.items()}
    assert names == {
        "root.plain": ("root", ".plain"),
        "root.inner.x": ("root", ".inner", ".x"),
        'root.table["ids"]': ("root", ".table", '["ids"]'),
        "root.table[7]": ("root", ".table", "[]"),
        "root.listed[0]": ("root", ".listed", "[]"),
        "root.pair.first": ("root", ".pair", ".first"),
        "root.slotted.tensor": ("root", ".slotted", ".tensor"),
        "root.module.scale": ("root", ".module", ".scale"),
    }
    assert all(trail.now().shape == trail.view.shape for trail in found.values())  # type: ignore[union-attr]
    fresh = torch.ones(9)
    root.plain = root.inner.x = root.table["ids"] = root.table[7] = root.listed[0] = slotted.tensor = fresh
    root.pair, module.scale = Pair(fresh, None), fresh
    assert all(trail.now() is fresh for trail in found.values())
    root.inner, root.table, root.listed, root.pair, root.slotted = None, {}, [], None, 3
    del root.plain, module.scale
    assert [trail.path for trail in found.values() if trail.now() is not None] == []


def test_nothing_is_kept_alive() -> None:
    root = Holder(inner=Holder(x=torch.zeros(4)))
    held = weakref.ref(root), weakref.ref(root.inner), weakref.ref(root.inner.x)
    found = trails(root)
    del root
    gc.collect()
    assert [reference() for reference in held] == [None, None, None]
    assert [trail.now() for trail in found.values()] == [None]


def test_parameters_are_left_out() -> None:
    assert trails(torch.nn.Linear(2, 2)) == {}


def test_variables_of_running_functions() -> None:
    def inner() -> list[Trail]:
        mine = torch.zeros(5)
        found = TrailSearch(lambda view: True).search([], sys._getframe())
        assert mine is not None
        return found

    x, table = torch.zeros(3), {"ids": torch.zeros(4)}
    found = {trail.path: trail for trail in inner() if trail.path in ("x", "mine", 'table["ids"]')}
    assert set(found) == {"x", "mine", 'table["ids"]'}
    assert found["mine"].now() is None, "its function has ended"
    assert found["x"].now() is x
    x = torch.ones(3)
    assert found["x"].now() is x
    table["ids"] = x
    assert found['table["ids"]'].now() is x


def test_the_result_of_locals_stays_as_the_program_knows_it() -> None:
    x = torch.zeros(3)
    known = locals()
    TrailSearch(lambda view: True).search([], sys._getframe())
    assert known["x"] is x


def test_between_two_walks_the_latest_trails_are_followed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(
        "shadowgraph.tracking.trails.time.monotonic", lambda: clock.append(clock[-1] + 0.01) or clock[-1]
    )
    root = Holder(x=torch.zeros(3))
    search = TrailSearch(lambda view: True, seconds=(10, 10))
    (before,) = search.search([("root", root)], None)
    root.x = torch.zeros(4)
    root.y = torch.zeros(5)
    (again,) = search.search([("root", root)], None)
    assert (again.path, again.view.shape, before.view.shape) == ("root.x", (4,), (3,))
    clock.append(clock[-1] + 0.01 / SHARE)
    assert [trail.path for trail in search.search([("root", root)], None)] == ["root.x", "root.y"]


def test_another_object_is_walked_at_once() -> None:
    search = TrailSearch(lambda view: True)
    for _ in range(3):  # the next one may have the id of the one that is gone
        root = Holder(x=torch.zeros(3))
        (found,) = search.search([("root", root)], None)
        assert found.now() is root.x
        del root, found


def test_after_the_time_for_all_first_walks_no_other_object_is_walked() -> None:
    first, second = Holder(x=torch.zeros(3)), Holder(x=torch.zeros(3))
    search = TrailSearch(lambda view: True, seconds=(10, 1e-9))
    assert len(search.search([("first", first)], None)) == 1
    found = search.search([("first", first), ("second", second)], None)
    assert [trail.path for trail in found] == ["first.x"]


def test_streams_among_the_variables_are_not_referenced() -> None:
    """torch 2.11 leaves weak references to CUDA streams dangling."""
    side, table = torch.Stream(stream_id=0, device_index=0, device_type=0), torch.zeros(4)
    search = TrailSearch(lambda view: True)
    found = search.search((), sys._getframe())
    assert [trail.path for trail in found if trail.now() is table] == ["table"]
    assert weakref.getweakrefcount(side) == 0
    del search


def test_all_further_walks_together_take_a_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, walked = 100.0, list[str]()
    walk = TrailSearch._walk

    def timed(search: TrailSearch, start: Any) -> list[Trail]:
        nonlocal clock
        clock += 0.01
        walked.append(start.name)
        return walk(search, start)

    monkeypatch.setattr("shadowgraph.tracking.trails.time.monotonic", lambda: clock)
    monkeypatch.setattr(TrailSearch, "_walk", timed)
    search = TrailSearch(lambda view: True, seconds=(10, 10))
    roots = {f"root{i}": Holder(x=torch.zeros(3)) for i in range(20)}
    names = [f"{name}.x" for name in roots]
    began = clock
    assert [trail.path for trail in search.search(roots.items(), None)] == names
    assert walked == [*roots]
    walked.clear()
    for _ in range(20):
        clock += 0.11  # each start alone is due again
        before = len(walked)
        assert [trail.path for trail in search.search(roots.items(), None)] == names
        assert before < len(walked) <= SHARE * (clock - began) / 0.01
    assert set(walked) == set(roots), "each has its turn"
