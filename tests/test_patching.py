from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from shadowgraph.common.patching import PatchSet, holders


class Base:
    def say(self, word: str = "") -> str:
        return f"base {word}"

    def other(self) -> str:
        return "other"

    @staticmethod
    def fixed(word: str) -> str:
        return f"fixed {word}"

    @classmethod
    def of(cls, word: str) -> str:
        return f"{cls.__name__} {word}"


class Child(Base):
    pass


def louder(original: Callable[..., Any]) -> Callable[..., Any]:
    def loud(*args: Any, **kwargs: Any) -> str:
        return f"{original(*args, **kwargs)}!"

    return loud


@pytest.fixture
def patches() -> PatchSet:
    return PatchSet()


def test_a_patch_holds_until_it_is_undone(patches: PatchSet) -> None:
    one = Base()
    before = dict(vars(Base))
    patches.install([(Base, "say", louder), (Base, "other", louder)])
    assert patches.installed
    assert (one.say("x"), one.say(word="y"), Child().say("z"), one.other()) == (
        "base x!",
        "base y!",
        "base z!",
        "other!",
    )
    patches.uninstall()
    assert not patches.installed
    assert one.say("x") == "base x"
    assert dict(vars(Base)) == before


def test_an_inherited_attribute_is_inherited_again(patches: PatchSet) -> None:
    patches.install([(Child, "say", louder)])
    assert (Child().say(), Base().say()) == ("base !", "base ")
    patches.uninstall()
    assert "say" not in vars(Child)
    assert Child().say() == "base "


def test_installs_nest(patches: PatchSet) -> None:
    patches.install([(Base, "say", louder)])
    patches.install([(Base, "say", louder)])
    assert Base().say() == "base !", "installed once, not twice"
    patches.uninstall()
    assert patches.installed
    assert Base().say() == "base !"
    patches.uninstall()
    assert Base().say() == "base "


def test_undoing_too_often_does_nothing(patches: PatchSet) -> None:
    patches.uninstall()
    patches.install([(Base, "say", louder)])
    assert Base().say() == "base !"
    patches.uninstall()
    patches.uninstall()
    patches.install([(Base, "say", louder)])
    assert Base().say() == "base !"
    patches.uninstall()
    assert Base().say() == "base "


def test_the_original_is_known_while_patched(patches: PatchSet) -> None:
    say = Base.say
    assert patches.original(Base, "say") is None
    patches.install([(Base, "say", louder), (Base, "say", louder)])
    assert patches.original(Base, "say") is say
    assert patches.original(Base, "other") is None
    assert Base().say() == "base !!"
    patches.uninstall()
    assert patches.original(Base, "say") is None
    assert Base.say is say


def refuse(original: Callable[..., Any]) -> Callable[..., Any]:
    raise RuntimeError("no")


@pytest.mark.parametrize(
    ("target", "error"),
    [
        ((Base, "missing", louder), AttributeError),
        ((Base, "other", refuse), RuntimeError),
        ((int, "bit_count", louder), TypeError),
    ],
    ids=["no such attribute", "the wrapper fails", "a class that cannot be changed"],
)
def test_all_or_nothing(patches: PatchSet, target: Any, error: type[Exception]) -> None:
    before = dict(vars(Base))
    with pytest.raises(error):
        patches.install([(Base, "say", louder), target])
    assert not patches.installed
    assert dict(vars(Base)) == before
    assert patches.original(Base, "say") is None
    patches.install([(Base, "say", louder)])
    assert Base().say() == "base !"
    patches.uninstall()


def test_static_and_class_methods_stay_what_they_are(patches: PatchSet) -> None:
    before = dict(vars(Base))
    patches.install([(Base, "fixed", louder), (Base, "of", louder)])
    assert (Base.fixed("x"), Base().fixed("x")) == ("fixed x!", "fixed x!")
    assert (Base.of("x"), Child().of("x")) == ("Base x!", "Child x!")
    patches.uninstall()
    assert dict(vars(Base)) == before


def test_two_sets_over_one_attribute_undone_in_reverse(patches: PatchSet) -> None:
    second = PatchSet()
    patches.install([(Base, "say", louder)])
    second.install([(Base, "say", louder)])
    assert Base().say() == "base !!"
    second.uninstall()
    assert Base().say() == "base !"
    patches.uninstall()
    assert Base().say() == "base "


def test_a_method_patched_for_instances_alone() -> None:
    patches, before, shown = PatchSet(instances_only=True), dict(vars(Base)), Base.say
    patches.install([(Base, "say", louder)])
    assert Base.say is shown
    assert Child.say is shown
    assert (Base().say("x"), Child().say("y"), Base.say(Base(), "z")) == ("base x!", "base y!", "base z")
    assert super(Child, Child()).say("w") == "base w!"
    patches.uninstall()
    assert dict(vars(Base)) == before


def test_a_slot_method_patched_for_instances_alone() -> None:
    class HtmlRepr(Base):
        def __repr__(self) -> str:
            return "shown"

    patches, before = PatchSet(instances_only=True), HtmlRepr.__repr__
    patches.install([(HtmlRepr, "__repr__", louder)])
    assert repr(HtmlRepr()) == "shown!"
    assert HtmlRepr.__repr__ is before
    patches.uninstall()
    assert repr(HtmlRepr()) == "shown"


def test_a_function_is_found_in_every_module_that_imported_it(monkeypatch: pytest.MonkeyPatch) -> None:
    home, importer, other = ModuleType("home"), ModuleType("importer"), ModuleType("other")
    home.work = importer.work = lambda: "done"  # type: ignore[attr-defined]
    other.work = lambda: "other"  # type: ignore[attr-defined]
    for module in (home, importer, other):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    assert holders(home, "work", "missing") == [(home, "work"), (importer, "work")]
    assert holders(home, "missing") == []
    patches = PatchSet()
    patches.install([(module, name, louder) for module, name in holders(home, "work")])
    assert [module.work() for module in (home, importer, other)] == ["done!", "done!", "other"]  # type: ignore[attr-defined]
    patches.uninstall()
    assert importer.work() == "done"  # type: ignore[attr-defined]


@pytest.mark.parametrize("instances_only", [False, True])
def test_lifted_patches_are_the_originals_until_they_are_laid_again(instances_only: bool) -> None:
    patches, one, before = PatchSet(instances_only=instances_only), Child(), (dict(vars(Base)), dict(vars(Child)))
    patches.install([(Base, "say", louder), (Child, "other", louder)])
    patches.lift()
    patches.lift()
    assert (dict(vars(Base)), dict(vars(Child))) == before
    patches.lay()
    patches.lay()
    assert (one.say("x"), one.other()) == ("base x!", "other!")
    patches.lift()
    patches.uninstall()
    assert (dict(vars(Base)), dict(vars(Child))) == before
    patches.lay()
    assert one.say("x") == "base x"


def test_what_the_program_patches_meanwhile_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    patches, one = PatchSet(), Base()
    patches.install([(Base, "say", louder), (Base, "other", louder)])
    with monkeypatch.context() as program:
        program.setattr(Base, "say", lambda self, word="": "mine")
        patches.lift()
        assert (one.say("x"), one.other()) == ("mine", "other")
        patches.lay()
        assert (one.say("x"), one.other()) == ("mine", "other!")
    assert one.say("x") == "base x!"
    patches.lift()
    with monkeypatch.context() as program:
        program.setattr(Base, "say", lambda self, word="": "mine")
        patches.lay()
        assert (one.say("x"), one.other()) == ("mine", "other!")
    patches.uninstall()
    assert (one.say("x"), one.other()) == ("base x", "other")


@pytest.mark.parametrize("instances_only", [False, True])
def test_a_later_patch_is_kept_and_what_lies_below_passes_through(instances_only: bool) -> None:
    patches, one = PatchSet(instances_only=instances_only, keeps_later=True), Child()
    before = Base.say
    patches.install([(Base, "say", louder), (Child, "other", louder)])
    ours = vars(Base)["say"]
    below = one.say

    def say(self: Base, word: str = "") -> str:
        return f"mine {below(word)}"

    try:
        Base.say = say  # type: ignore[method-assign]
        assert (one.say("x"), one.other()) == ("mine base x!", "other!")
        patches.uninstall()
        assert vars(Base)["say"] is say
        assert (one.say("x"), one.other()) == ("mine base x", "other")
        assert "other" not in vars(Child)
        patches.install([(Base, "say", louder)])
        assert one.say("x") == "mine base x!"  # once, not by the layer below too
        patches.uninstall()
        Base.say = ours  # type: ignore[method-assign]  # the program ends its patch after ours
        assert one.say("x") == "base x"
    finally:
        Base.say = before  # type: ignore[method-assign]


def test_a_later_patch_over_a_static_method_is_kept() -> None:
    patches, before = PatchSet(keeps_later=True), vars(Base)["fixed"]
    patches.install([(Base, "fixed", louder)])
    below = Base.fixed
    later = staticmethod(lambda word: f"mine {below(word)}")
    try:
        Base.fixed = later  # type: ignore[method-assign, assignment]
        assert Base().fixed("x") == "mine fixed x!"
        patches.uninstall()
        assert (vars(Base)["fixed"], Base().fixed("x")) == (later, "mine fixed x")
    finally:
        Base.fixed = before  # type: ignore[method-assign]
