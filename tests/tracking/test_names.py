from __future__ import annotations

import enum
import functools
import logging
import threading
import types
import weakref
from collections import OrderedDict, defaultdict, deque, namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from shadowgraph.model.views import TensorView
from shadowgraph.tracking.names import walk


def paths(root: object, **bounds: int) -> list[str]:
    result = walk(root, "root", **bounds)
    assert result.errors == 0
    return [owner.path for owner in result.owners]


def buffer() -> torch.Tensor:
    return torch.zeros(4, dtype=torch.int32)


class Plain:
    def __init__(self, **attributes: object) -> None:
        self.__dict__.update(attributes)


class Runner:
    def __init__(self, ids: torch.Tensor) -> None:
        self.ids = ids

    def run(self) -> None: ...


Pair = namedtuple("Pair", ["indptr", "indices"])


@dataclass
class Metadata:
    kv_indptr: torch.Tensor
    pages: int = 4


@dataclass(frozen=True, slots=True)
class Slotted:
    kv_indptr: torch.Tensor
    pages: int = 4


class Mode(enum.Enum):
    DECODE = 1


def partial_of() -> Any:
    return functools.partial(torch.add, buffer(), 3, out=buffer())


def closure_of() -> Any:
    workspace, scale = buffer(), 2

    def plan(n: int, fallback: torch.Tensor = buffer(), *, extra: object = (buffer(),)) -> object:  # noqa: B008
        return workspace, scale, n, fallback, extra

    return plan


@pytest.mark.parametrize(
    ("root", "expected"),
    [
        (buffer(), ["root"]),
        ({"kv": buffer(), 3: buffer(), (1, "a"): buffer()}, ['root["kv"]', "root[3]", 'root[(1, "a")]']),
        ({Mode.DECODE: buffer(), torch.int8: buffer()}, ["root[Mode.DECODE]", "root[torch.int8]"]),
        ({'say "x"\n': buffer()}, ['root["say \\"x\\"\\n"]']),
        ({10**5000: buffer(), "k" * 500: buffer()}, ["root[<int #0>]", f'root["{"k" * 80}..."]']),
        (OrderedDict(a=buffer()), ['root["a"]']),
        (defaultdict(list, a=[buffer()]), ['root["a"][0]']),
        ([buffer(), 1, [buffer()]], ["root[0]", "root[2][0]"]),
        ((buffer(), None, buffer()), ["root[0]", "root[2]"]),
        (Pair(buffer(), [buffer()]), ["root.indptr", "root.indices[0]"]),
        (torch.ones(3, 2).max(dim=0), ["root[0]", "root[1]"]),
        ({buffer()}, ["root{0}"]),
        (frozenset([buffer()]), ["root{0}"]),
        (deque([buffer(), buffer()]), ["root[0]", "root[1]"]),
        (Metadata(buffer()), ["root.kv_indptr"]),
        (Slotted(buffer()), ["root.kv_indptr"]),
        (types.SimpleNamespace(a=buffer()), ["root.a"]),
        (Plain(**{"odd name": buffer()}), ['root.__dict__["odd name"]']),
        (partial_of(), ["root.args[0]", 'root.keywords["out"]']),
        (closure_of(), ["root.<locals>.workspace", "root.__defaults__[0]", 'root.__kwdefaults__["extra"][0]']),
        (buffer().add_, ["root.__self__"]),
        (Runner(buffer()).run, ["root.__self__.ids"]),
    ],
    ids=lambda value: value[0][:24] if isinstance(value, list) else type(value).__name__,
)
def test_each_kind_of_container(root: object, expected: list[str]) -> None:
    assert paths(root) == expected


def test_an_empty_cell_is_no_error() -> None:
    def outer(store: bool) -> Any:
        if store:
            later = buffer()
        return lambda: later

    assert paths(outer(False)) == []
    assert paths(outer(True)) == ["root.<locals>.later"]


def test_wrapper_like_flashinfer() -> None:
    wrapper = Plain(_paged_kv_indptr_buf=buffer(), _plan_info=[1, 2, 3], _jit_module=types.ModuleType("jit"))
    backend = Plain(decode_cuda_graph_metadata={4: [wrapper]})
    assert paths(backend) == ["root.decode_cuda_graph_metadata[4][0]._paged_kv_indptr_buf"]


def test_slots_of_every_base_and_an_unset_slot() -> None:
    class Base:
        __slots__ = ("a", "unset")

    class Derived(Base):
        __slots__ = ("__private", "b")

        def __init__(self) -> None:
            self.a, self.b, self.__private = buffer(), buffer(), buffer()

    class Open(Derived):
        pass

    root = Open()
    root.c = buffer()  # type: ignore[attr-defined]
    assert sorted(paths(root)) == ["root._Derived__private", "root.a", "root.b", "root.c"]


def test_a_container_subclass_has_items_and_attributes() -> None:
    class Pool(dict):  # type: ignore[type-arg]
        pass

    class Stack(list):  # type: ignore[type-arg]
        __slots__ = ("top",)

    pool = Pool(a=buffer())
    pool.spare = buffer()  # type: ignore[attr-defined]
    stack = Stack([buffer()])
    stack.top = buffer()  # type: ignore[attr-defined]
    assert paths(pool) == ['root["a"]', "root.spare"]
    assert paths(stack) == ["root[0]", "root.top"]


def test_module_names_read_as_in_a_state_dict() -> None:
    class Attention(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.proj = torch.nn.Linear(2, 2, bias=False)
            self.register_buffer("mask", buffer())
            self.layers = torch.nn.ModuleList([torch.nn.LayerNorm(2)])
            self.workspace = [buffer()]

    module = Attention()
    found = paths(module)
    assert sorted(found) == [
        "root.layers.0.bias",
        "root.layers.0.weight",
        "root.mask",
        "root.proj.weight",
        "root.workspace[0]",
    ]
    assert {f"root.{name}" for name in module.state_dict()} < set(found)


RAN: list[str] = []  # the hooks of hostile classes that were called


def hook(name: str) -> Any:
    def refuse(*args: object) -> Any:
        RAN.append(name)
        raise RuntimeError(f"{name} ran")

    return refuse


class HostileMeta(type):
    __getattribute__, __hash__, __eq__ = hook("meta get"), hook("meta hash"), hook("meta eq")
    __instancecheck__, __subclasscheck__ = hook("meta instance check"), hook("meta subclass check")


def hostile(*bases: type, metaclass: type = type) -> Any:
    """A class with every hook that a walk could trip over."""
    special = ["iter", "len", "bool", "repr", "str", "eq", "hash", "getitem", "contains", "dir", "getattr"]
    hooks: dict[str, Any] = {f"__{name}__": hook(name) for name in [*special, "getattribute"]}
    hooks.update({name: hook(name) for name in ("items", "keys", "values", "copy")})
    hooks.update(lazy=property(hook("property")), __class__=property(hook("__class__")))
    return metaclass("Hostile", bases, hooks)


def made_by(kind: Any, *content: object) -> Any:
    made = kind(*content)
    if not content:
        object.__setattr__(made, "inside", buffer())
    return made


def test_none_of_the_programs_code_runs() -> None:
    plain, meta = hostile(), hostile(metaclass=HostileMeta)
    lookup = type("Key", (), {"__repr__": hook("key repr")})
    root = [made_by(plain), made_by(meta), {lookup(): buffer()}]
    RAN.clear()
    result = walk(root, "root")
    assert RAN == []
    assert result.errors == 0
    assert [owner.path for owner in result.owners] == ["root[0].inside", "root[1].inside", "root[2][<Key #0>]"]


def test_container_subclasses_cannot_answer_for_themselves() -> None:
    kinds = (list, tuple, set, frozenset, deque)
    root = [made_by(hostile(dict), {"a": buffer()}), *(made_by(hostile(kind), [buffer()]) for kind in kinds)]
    RAN.clear()
    assert paths(root) == ['root[0]["a"]', "root[1][0]", "root[2][0]", "root[3]{0}", "root[4]{0}", "root[5][0]"]
    assert RAN == []


def test_the_hooks_of_hostile_classes_do_raise() -> None:
    made = made_by(hostile())
    for call in (repr, len, hash, lambda o: o.lazy, lambda o: o.__class__):
        with pytest.raises(RuntimeError, match="ran"):
            call(made)
    RAN.clear()


def test_a_property_called_dict_is_not_run() -> None:
    class Odd:
        def __init__(self) -> None:
            self.inside = buffer()

    class Odder(Odd):
        __dict__ = property(hook("__dict__"))

    assert paths(Odder()) == ["root.inside"]


def test_a_cycle_ends() -> None:
    parent, child = Plain(ids=buffer()), Plain(ids=buffer())
    parent.__dict__.update(child=child, me=parent)
    child.__dict__["parent"] = parent
    assert paths(parent) == ["root.ids", "root.child.ids"]


def test_two_paths_to_one_tensor_are_two_owners() -> None:
    shared = buffer()
    result = walk({"target": Plain(ids=shared), "draft": Plain(ids=shared, head=shared[:2])}, "root")
    assert [owner.path for owner in result.owners] == [
        'root["target"].ids',
        'root["draft"].ids',
        'root["draft"].head',
    ]
    assert [owner.view for owner in result.owners] == [TensorView.of(t) for t in (shared, shared, shared[:2])]


def test_the_shortest_path_wins() -> None:
    metadata = Plain(indptr=buffer())
    deep = Plain(a=Plain(b=Plain(metadata=metadata)), metadata=metadata)
    assert paths(deep) == ["root.metadata.indptr"]


def test_depth_is_bounded() -> None:
    root = {"a": {"b": {"c": buffer()}}, "n": {"m": {"o": 3}}}
    assert paths(root, max_depth=3) == ['root["a"]["b"]["c"]']
    assert not walk(root, "root", max_depth=3).truncated
    cut = walk(root, "root", max_depth=2)
    assert cut.owners == ()
    assert cut.truncated


def test_scalars_below_the_last_step_cut_nothing() -> None:
    assert not walk([[1, "a", None]], "root", max_depth=1).truncated


def test_objects_and_owners_are_bounded() -> None:
    root = [[buffer()] for _ in range(10)]
    whole = walk(root, "root", max_objects=11)
    assert (len(whole.owners), whole.truncated) == (10, False)
    cut = walk(root, "root", max_objects=6)
    assert ([owner.path for owner in cut.owners], cut.truncated) == ([f"root[{n}][0]" for n in range(5)], True)
    flat = walk([buffer() for _ in range(10)], "root", max_objects=4)
    assert (len(flat.owners), flat.truncated) == (4, True)


def test_looks_are_bounded() -> None:
    assert walk([0] * 10_000, "root", max_objects=10).truncated
    assert not walk([0] * 400, "root", max_objects=10).truncated


def test_empty_objects_do_not_use_up_the_bound() -> None:
    root = [*([] for _ in range(40)), buffer()]
    result = walk(root, "root", max_objects=1)
    assert ([owner.path for owner in result.owners], result.truncated) == (["root[40]"], False)


class Workspace:
    shared = buffer()


GLOBAL = buffer()


def uses_a_global() -> object:
    return GLOBAL


def test_what_is_not_followed() -> None:
    def work() -> None: ...

    thread, logger, module = threading.Thread(target=work), logging.getLogger("shadowgraph.test"), types.ModuleType("m")
    array = np.empty(1, dtype=object)
    array[0] = tagged = buffer()
    tagged.extra = buffer()  # type: ignore[attr-defined]
    for holder in (thread, logger, module):
        holder.held = buffer()  # type: ignore[union-attr]
    target = Plain(ids=buffer())
    kernel = Plain(fn=uses_a_global, module_globals=uses_a_global.__globals__)
    leaves = [thread, logger, module, array, Workspace, uses_a_global, kernel, weakref.ref(target), "text", b"text"]
    assert paths([*leaves, tagged]) == ["root[10]"]


def test_a_module_as_root_shows_its_own_globals() -> None:
    module = types.ModuleType("engine.pools")
    exec(
        "class Pool:\n    def __init__(self, t): self.ids = t\n"
        "def helper(): ...\n"
        "def fill(t, other):\n"
        "    globals().update(buf=t, table={'a': t}, pool=Pool(t), foreign=other)\n",
        module.__dict__,
    )
    module.fill(buffer(), Plain(ids=buffer()))
    assert [owner.path for owner in walk(module, "engine.pools").owners] == [
        "engine.pools.buf",
        'engine.pools.table["a"]',
        "engine.pools.pool.ids",
    ]


def test_globals_as_root_are_followed() -> None:
    space: dict[str, object] = {"__name__": "notebook", "buf": buffer()}
    exec("", space)
    assert "__builtins__" in space
    assert paths(space) == ['root["buf"]']


def test_an_attribute_that_cannot_be_read_is_counted() -> None:
    class Other:
        __slots__ = ("stolen",)

    class Broken:
        stolen = Other.stolen  # type: ignore[attr-defined]

        def __init__(self) -> None:
            self.fine = buffer()

    result = walk(Broken(), "root")
    assert ([owner.path for owner in result.owners], result.errors) == (["root.fine"], 1)


def test_a_container_that_changes_under_the_walk_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = deque([buffer(), buffer()])
    of = TensorView.of

    def change(tensor: torch.Tensor) -> TensorView:
        queue.append(buffer())
        return of(tensor)

    monkeypatch.setattr(TensorView, "of", change)
    result = walk(queue, "root")
    assert ([owner.path for owner in result.owners], result.errors) == (["root[0]"], 1)


def test_tensors_without_memory_are_left_out_quietly() -> None:
    assert paths([torch.zeros(3, device="meta"), torch.eye(2).to_sparse(), buffer()]) == ["root[2]"]
    seen: list[list[str]] = []

    def inside(tensor: torch.Tensor) -> torch.Tensor:
        seen.append(paths([tensor, buffer()]))
        return tensor

    torch.vmap(inside)(torch.zeros(2, 2))
    assert seen == [["root[1]"]]


def test_a_walk_keeps_nothing_alive() -> None:
    root = Plain(ids=buffer(), box=Plain())
    ids, box = weakref.ref(root.__dict__["ids"]), weakref.ref(root.__dict__["box"])
    result = walk(root, "root")
    del root
    assert len(result.owners) == 1
    assert (ids(), box()) == (None, None)
