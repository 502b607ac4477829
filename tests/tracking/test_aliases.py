from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
import torch

from shadowgraph.model.buffers import Buffer, Ledger, Role
from shadowgraph.model.ranges import ByteRange
from shadowgraph.model.stacks import Frame
from shadowgraph.model.views import TensorView
from shadowgraph.tracking.aliases import NameBook, allocation_name, buffer_view
from shadowgraph.tracking.foreign import track_foreign


class Plain:
    """An object of the program."""

    def __init__(self, **attributes: object) -> None:
        self.__dict__.update(attributes)


class Book:
    """A name book with its ledger, over real tensors."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.names = NameBook(self.ledger)

    def tensor(self, *shape: int) -> torch.Tensor:
        made = torch.zeros(shape, dtype=torch.int32)
        track_foreign(self.ledger, made)
        return made

    def buffer(self, tensor: torch.Tensor) -> Buffer:
        return track_foreign(self.ledger, tensor)

    def name(self, tensor: torch.Tensor) -> str:
        return self.names.name_of(self.buffer(tensor))[0]

    def relations(self, tensor: torch.Tensor, part: torch.Tensor | None = None) -> dict[str, str]:
        where = None if part is None else span(part)
        return {r.owner.path: r.expression for r in self.names.relations(self.buffer(tensor), where)}


@pytest.fixture
def book() -> Book:
    return Book()


def span(tensor: torch.Tensor) -> ByteRange:
    view = TensorView.of(tensor)
    return ByteRange(view.start, view.stop)


# -- names -----------------------------------------------------------------------------------------------------------


def test_without_an_owner_the_line_that_allocated_it(book: Book) -> None:
    tensor = torch.zeros(2, 3)
    bare = book.buffer(tensor)
    assert book.names.name_of(bare) == (f"float32[2, 3] at {bare.start:#x}", ())
    stack = (Frame("/srv/plan.py", 7, "plan"), Frame("/srv/main.py", 1, "main"))
    known = Buffer(1, 4096, 36, Role.STATIC, dtype="int32", shape=(9,), stack=stack)
    assert allocation_name(known) == "int32[9] from plan.py:7"


def test_the_best_name_is_the_view_that_fits_best(book: Book) -> None:
    indptr = book.tensor(17)
    book.names.add("w", Plain(b=indptr[0:9]))
    book.names.add("attn", Plain(metadata={"kv_indptr": indptr}))
    whole = book.buffer(indptr)
    assert book.names.name_of(whole) == ('attn.metadata["kv_indptr"]', ('attn.metadata["kv_indptr"]', "w.b"))
    assert book.names.name_of(whole, span(indptr[0:9]))[0] == "w.b"
    assert book.names.name_of(whole, span(indptr[10:12]))[1] == ('attn.metadata["kv_indptr"]',)


def test_among_equal_views_the_shortest_path_then_the_alphabet(book: Book) -> None:
    tensor = book.tensor(8)
    for name in ("later", "zb", "za"):
        book.names.add(name, Plain(x=tensor))
    assert book.names.name_of(book.buffer(tensor)) == ("za.x", ("za.x", "zb.x", "later.x"))


def test_add_tells_how_many_tensors_it_found(book: Book) -> None:
    tensor = book.tensor(8)
    assert book.names.add("none", Plain(n=3)) == 0
    assert book.names.add("two", Plain(a=tensor, b=[tensor[1:]])) == 2
    assert book.names.add("t", tensor) == 1
    assert book.name(tensor) == "t"


def test_a_name_given_again_replaces_what_it_was(book: Book) -> None:
    old, new = book.tensor(8), book.tensor(8)
    book.names.add("x", old)
    book.names.add("x", {"y": new})
    assert book.names.name_of(book.buffer(old))[1] == ()
    assert book.name(new) == 'x["y"]'
    book.tensor(1)
    book.names.refresh()
    assert book.names.name_of(book.buffer(old))[1] == (), "the first object is not walked under this name any more"


@pytest.mark.parametrize("holder", [lambda t: Plain(x=t), lambda t: {"x": t}], ids=["object", "dict"])
def test_memory_entered_after_it_was_named_has_its_name(book: Book, holder: Any) -> None:
    tensor = torch.zeros(9, dtype=torch.int32)
    root = holder(tensor)
    book.names.add("meta", root)
    assert len(book.ledger) == 0
    buffer = track_foreign(book.ledger, tensor)
    assert book.names.name_of(buffer)[0] in ("meta.x", 'meta["x"]')


def test_a_name_does_not_pass_to_the_next_tenant_of_its_address(book: Book) -> None:
    memory = np.zeros(16, dtype=np.int32)
    first = torch.from_numpy(memory)
    old = track_foreign(book.ledger, first)
    book.names.add("cache", {"slot": first})
    del first
    second = torch.from_numpy(memory)
    new = track_foreign(book.ledger, second)
    assert new is not old
    assert book.names.name_of(new)[1] == ()
    assert book.names.name_of(old)[0] == 'cache["slot"]'


# -- relations -------------------------------------------------------------------------------------------------------


def test_a_wrappers_slice_of_the_backends_buffer(book: Book) -> None:
    indptr = book.tensor(17)
    book.names.add("attn", Plain(metadata={"kv_indptr": indptr}))
    book.names.add("wrapper", Plain(_paged_kv_indptr_buf=indptr[0:9]))
    book.names.add("second_backend", Plain(kv_indptr_of_all=indptr))
    assert book.name(indptr) == 'attn.metadata["kv_indptr"]'
    assert book.relations(indptr) == {"wrapper._paged_kv_indptr_buf": "[0:9]", "second_backend.kv_indptr_of_all": ""}


def test_partial_overlaps_are_told_by_their_bytes(book: Book) -> None:
    base = book.tensor(32)
    book.names.add("a", base[0:16])
    book.names.add("b", base[8:24])
    book.names.add("c", base[20:32])
    assert book.name(base) == "a"
    assert book.relations(base) == {"b": "bytes [32, 64)"}, "c shares no byte with a"
    assert book.relations(base, base[8:24]) == {"a": "bytes [0, 32)", "c": "bytes [48, 64)"}


def test_other_forms_of_the_same_bytes(book: Book) -> None:
    table = book.tensor(4, 8)
    book.names.add("t", table)
    book.names.add("t.flat", table.view(-1))
    book.names.add("t.bits", table.view(torch.float32))
    book.names.add("t.row", table[2])
    book.names.add("t.columns", table[:, 2:4])
    assert book.relations(table) == {
        "t.flat": ".view(32)",
        "t.bits": ".view(float32)",
        "t.row": "[2]",
        "t.columns": "[:, 2:4]",
    }


def test_a_buffer_without_owners_has_no_relations(book: Book) -> None:
    assert book.relations(book.tensor(4)) == {}


# -- groups ----------------------------------------------------------------------------------------------------------


def groups(book: Book) -> list[list[str]]:
    return [[owner.path for owner in group] for group in book.names.groups()]


def test_groups_join_what_shares_bytes_and_nothing_else(book: Book) -> None:
    first, second, alone = book.tensor(32), book.tensor(32), book.tensor(32)
    book.names.add("a", Plain(x=first, y=first[30:32], alone=alone))
    book.names.add("b", Plain(x=second[0:10], y=second[9:20], z=second[19:30], beside=second[30:32]))
    assert sorted(sorted(group) for group in groups(book)) == [["a.x", "a.y"], ["b.x", "b.y", "b.z"]]


def test_adjacent_views_are_no_aliases(book: Book) -> None:
    base = book.tensor(32)
    book.names.add("halves", [base[0:16], base[16:32]])
    assert groups(book) == []


def test_columns_of_one_table_are_no_aliases(book: Book) -> None:
    table = book.tensor(4, 8)
    book.names.add("k", table[:, 0:4])
    book.names.add("v", table[:, 4:8])
    assert groups(book) == []
    book.names.add("k_again", table[1:, 0:4])
    book.names.add("v_again", table[:2, 6:8])
    assert sorted(sorted(group) for group in groups(book)) == [["k", "k_again"], ["v", "v_again"]]
    book.names.add("between", table[:, 3:5])
    assert [sorted(group) for group in groups(book)] == [["between", "k", "k_again", "v", "v_again"]]


def test_owners_of_freed_memory_are_in_no_group(book: Book) -> None:
    memory = np.zeros(16, dtype=np.int32)
    first = torch.from_numpy(memory)
    track_foreign(book.ledger, first)
    book.names.add("old", {"x": first})
    del first
    second = torch.from_numpy(memory)
    track_foreign(book.ledger, second)
    book.names.add("new", {"x": second})
    assert groups(book) == []


# -- walking again and lifetimes -------------------------------------------------------------------------------------


def test_objects_are_walked_again_when_memory_came_or_went(book: Book) -> None:
    runner = Plain()
    book.names.add("runner", runner)
    later = book.tensor(8)
    runner.later = later  # type: ignore[attr-defined]
    assert book.names.name_of(book.buffer(later))[1] == ()
    book.names.refresh()
    assert book.name(later) == "runner.later"
    del runner.later  # type: ignore[attr-defined]
    book.names.refresh()
    assert book.name(later) == "runner.later", "nothing was allocated or freed: not looked at again"
    other = book.tensor(8)
    book.names.refresh()
    assert book.names.name_of(book.buffer(later))[1] == ()
    assert other is not None


def test_plain_containers_are_walked_once(book: Book) -> None:
    meta: dict[str, torch.Tensor] = {}
    book.names.add("meta", meta)
    meta["later"] = book.tensor(8)
    book.names.refresh()
    assert book.names.name_of(book.buffer(meta["later"]))[1] == ()


def test_names_outlive_the_object_that_gave_them(book: Book) -> None:
    tensor = book.tensor(8)
    runner = Plain(x=tensor)
    book.names.add("runner", runner)
    del runner
    book.tensor(1)
    book.names.refresh()
    assert book.name(tensor) == "runner.x"


@pytest.mark.parametrize("again", [1, 3])
def test_a_freed_buffer_keeps_the_names_that_it_had(book: Book, again: int) -> None:
    runner = Plain(x=book.tensor(8), other=book.tensor(4))
    book.names.add("runner", runner)
    old = book.buffer(runner.x)
    runner.x = book.tensor(16)
    for _ in range(again):
        book.tensor(1)
        book.names.refresh()
    assert not old.alive
    assert book.names.name_of(old) == ("runner.x", ("runner.x",))
    assert book.name(runner.x) == "runner.x"
    assert book.names.owners_of(old.range, old.serial + 1000) == []


def test_a_buffer_that_lives_has_only_the_names_that_it_has_now(book: Book) -> None:
    held = book.tensor(8)
    runner = Plain(x=held)
    book.names.add("runner", runner)
    runner.x = book.tensor(16)
    book.names.refresh()
    assert book.names.name_of(book.buffer(held))[1] == ()


def test_a_name_given_before_the_ledger_knew_the_memory_outlives_it(book: Book) -> None:
    parts = {"x": torch.zeros(8)}
    book.names.add("parts", parts)
    buffer = book.buffer(parts["x"])
    book.names.refresh()
    del parts["x"]
    book.tensor(1)
    book.names.refresh()
    assert not buffer.alive
    assert book.names.name_of(buffer)[0] == 'parts["x"]'


def test_memory_of_the_same_place_and_size_gives_a_freed_buffer_no_name(book: Book) -> None:
    tensor = torch.zeros(8)
    buffer = book.buffer(tensor)
    book.ledger.free(buffer)
    book.names.add("successor", Plain(x=tensor))  # untracked, as one that torch allocated there would be
    book.names.refresh()
    assert book.names.name_of(buffer)[1] == ()


def test_owners_that_the_last_refresh_found(book: Book) -> None:
    runner, parts = Plain(x=book.tensor(8)), {"y": torch.zeros(8)}
    book.names.add("runner", runner)
    book.names.add("parts", parts)
    assert {owner.path for owner in book.names.living()} == {"runner.x", 'parts["y"]'}
    assert {owner.path for owner in book.names.living(fresh=True)} == {"runner.x"}
    del runner
    assert book.names.living(fresh=True) == []


def test_no_object_and_no_tensor_is_kept_alive(book: Book) -> None:
    tensor = book.tensor(8)
    runner, inner = Plain(x=tensor), Plain(y=tensor[2:])
    gone = [weakref.ref(o) for o in (runner, inner, tensor, tensor.untyped_storage())]
    book.names.add("runner", runner)
    book.names.add("parts", {"inner": inner, "tensor": tensor})
    buffer = book.buffer(tensor)
    book.names.refresh()
    assert book.names.relations(buffer)
    assert book.names.groups()
    del runner, inner, tensor
    gc.collect()
    assert [reference() for reference in gone] == [None] * 4
    assert not buffer.alive


def test_owners_of_a_range(book: Book) -> None:
    base = book.tensor(32)
    book.names.add("n", Plain(low=base[0:8], high=base[16:32], row=base[8:16]))
    assert [owner.path for owner in book.names.owners_of(span(base[4:9]))] == ["n.low", "n.row"]
    serial = book.buffer(base).serial
    assert [owner.path for owner in book.names.owners_of(span(base[20:21]), serial)] == ["n.high"]
    assert book.names.owners_of(span(base), serial + 1) == []
    untracked = torch.zeros(4)
    book.names.add("u", untracked)
    assert [owner.path for owner in book.names.owners_of(span(untracked))] == ["u"]
    assert book.names.owners_of(span(untracked), serial + 1) == []


def test_a_buffer_as_a_flat_view() -> None:
    view = buffer_view(Buffer(1, 4096, 38, Role.STATIC, dtype="int32", shape=(3, 3), itemsize=4))
    assert (view.start, view.stop, view.shape, view.dtype, view.contiguous) == (4096, 4132, (9,), "int32", True)


def test_former_owners_are_remembered_of_so_many_buffers(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shadowgraph.tracking.aliases._REMEMBERED", 3)
    owner = Plain()
    gone = []
    for length in range(8, 16):
        owner.buf = book.tensor(length)  # type: ignore[attr-defined]
        gone.append(book.buffer(owner.buf))  # type: ignore[attr-defined]
        book.names.add("owner", owner) if length == 8 else book.names.refresh()
    del owner.buf  # type: ignore[attr-defined]
    gc.collect()
    book.names.refresh()
    named = [bool(book.names.name_of(buffer)[1]) for buffer in gone]
    assert named == [False] * 5 + [True] * 3
