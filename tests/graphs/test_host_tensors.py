"""Integers of host tensors are read alike in Python and in C++; of other tensors neither reads any."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from shadowgraph.graphs import host_tensors, launch_rows
from shadowgraph.graphs.launch_rows import note_in_python, written_in_cpp
from shadowgraph.graphs.observer.library import Library


class Reader(NamedTuple):
    facts: Callable[[Any, Any], Any]
    taken: Callable[[Any, Any, Any, int], tuple[bytes, int, int] | None]
    numbers: Callable[[Any, int], list[int] | None]


class Subclass(torch.Tensor):
    pass


IN_PYTHON = Reader(host_tensors._reader.facts, host_tensors._reader.taken, host_tensors._reader.numbers)
INT = torch.int32
INTO = torch.zeros(8, dtype=INT)
SIZES = 0, 3, 5, 6, 8, 24, 48, 1000


@pytest.fixture
def in_cpp(library: Library) -> Reader:
    note = written_in_cpp(library)
    assert note is not None
    return Reader(*library.host_tensors(note))


def tensors() -> dict[str, torch.Tensor]:
    """Tensors whose integers are read, of one dimension."""
    six = torch.arange(6)
    return {
        "int64": six,
        "int32": six.int(),
        "negative": torch.tensor([3, -5, -(1 << 62)]),
        "negative int32": torch.tensor([3, -5, -(1 << 31)], dtype=INT),
        "the largest": torch.tensor([(1 << 63) - 1]),
        "a part": torch.arange(20)[7:13],
        "a parameter": torch.nn.Parameter(torch.arange(6), requires_grad=False),
        "one, with a stride": torch.arange(6)[::3][:1],
        "a copy that is made later": torch._lazy_clone(six),
        "one element expanded": torch.tensor([7]).expand(1),
    }


def empty() -> dict[str, torch.Tensor]:
    return {
        "empty": torch.empty(0, dtype=torch.int64),
        "empty int32": torch.empty(0, dtype=INT),
        "an empty part": torch.arange(6)[6:],
    }


def several() -> dict[str, torch.Tensor]:
    """Readable as a whole, but of no or several dimensions."""
    return {
        "two dimensions": torch.arange(6).view(2, 3),
        "none": torch.tensor(5),
        "four": torch.arange(6, dtype=INT).view(1, 2, 3, 1),
    }


def others() -> dict[str, Any]:
    """What is not read."""
    six = torch.arange(6)
    return {
        "steps": torch.arange(12)[::2],
        "transposed": torch.arange(6).view(2, 3).t(),
        "expanded": torch.tensor([7]).expand(4),
        "a subclass": six.as_subclass(Subclass),
        "a parameter that trains": torch.nn.Parameter(torch.zeros(4)),
        "no device": torch.arange(6, device="meta"),
        "a part on no device": torch.arange(6, device="meta")[2:],
        "negated": torch._neg_view(six),
        "conjugate": torch.zeros(2, dtype=torch.complex64).conj(),
        "imaginary": torch.zeros(2, dtype=torch.complex64).conj().imag,
        "sparse": six.to_sparse(),
        **{
            str(dtype): torch.ones(4).to(dtype)
            for dtype in (
                torch.int16,
                torch.uint8,
                torch.int8,
                torch.bool,
                torch.float32,
                torch.float64,
                torch.bfloat16,
            )
        },
        **{str(dtype): torch.ones(4).to(dtype) for dtype in (torch.uint32, torch.uint64, torch.complex64)},
        "nothing": None,
        "a list": [1, 2],
        "a number": 3,
        "an array": six.numpy(),
        "a text": "text",
        "a type": torch.Tensor,
    }


def read(reader: Reader, given: Any, most: int, into: Any = INTO) -> Any:
    return reader.taken(reader.facts(given, into), given, into, most)


def little(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().numpy().tobytes()


READABLE = {**tensors(), **several()}


@pytest.mark.parametrize("name", READABLE)
def test_integers_are_taken_alike(in_cpp: Reader, name: str) -> None:
    given = READABLE[name]
    whole = little(given)
    for most in SIZES:
        expected = whole[:most], given.numel(), int(given.reshape(-1)[-1])
        assert read(in_cpp, given, most) == read(IN_PYTHON, given, most) == expected


@pytest.mark.parametrize("name", empty())
def test_nothing_is_taken_of_an_empty_one(in_cpp: Reader, name: str) -> None:
    given = empty()[name]
    assert read(in_cpp, given, 8) == read(IN_PYTHON, given, 8) == (b"", 0, 0)


@pytest.mark.parametrize("name", tensors())
def test_numbers_are_those_of_the_tensor(in_cpp: Reader, name: str) -> None:
    given = tensors()[name]
    assert in_cpp.numbers(given, given.numel()) == IN_PYTHON.numbers(given, 64) == given.tolist()


@pytest.mark.parametrize("name", tensors())
def test_more_than_was_asked_for_is_not_read(in_cpp: Reader, name: str) -> None:
    given = tensors()[name]
    assert in_cpp.numbers(given, given.numel() - 1) is IN_PYTHON.numbers(given, given.numel() - 1) is None


@pytest.mark.parametrize("name", several())
def test_numbers_of_other_dimensions_are_not_read(in_cpp: Reader, name: str) -> None:
    given = several()[name]
    assert in_cpp.numbers(given, 64) is IN_PYTHON.numbers(given, 64) is None


@pytest.mark.parametrize("name", others())
def test_other_tensors_and_objects_are_not_read(in_cpp: Reader, name: str) -> None:
    given = others()[name]
    for reader in (IN_PYTHON, in_cpp):
        assert reader.numbers(given, 64) is None
        assert read(reader, given, 64) is None
        assert reader.taken(None, given, INTO, 64) is None
    if name != "sparse":
        assert (in_cpp.facts(given, INTO) is None) is (IN_PYTHON.facts(given, INTO) is None)
        assert (in_cpp.facts(INTO, given) is None) is (IN_PYTHON.facts(INTO, given) is None)


def test_no_facts_are_known_of_what_is_no_plain_tensor(in_cpp: Reader) -> None:
    for reader in (IN_PYTHON, in_cpp):
        for wrong in (None, [1], INTO.as_subclass(Subclass)):
            assert reader.facts(wrong, INTO) is None
            assert reader.facts(INTO, wrong) is None
            known = reader.facts(INTO, INTO)
            assert reader.taken(known, wrong, INTO, 8) is None
            assert reader.taken(known, INTO, wrong, 8) is None


CHANGES: dict[str, Callable[[], tuple[Any, Any]]] = {
    "another address": lambda: (torch.arange(6), torch.zeros(8, dtype=INT)),
    "fewer elements": lambda: (torch.arange(6), INTO[:7]),
    "another dtype": lambda: (torch.arange(6), INTO.view(torch.float32)),
    "another part": lambda: (torch.arange(6), torch.cat([INTO, INTO])[1:9]),
    "another dtype given": lambda: (torch.arange(6).int(), INTO),
    "floats given": lambda: (torch.zeros(6), INTO),
    "no tensor": lambda: (torch.arange(6), None),
    "a subclass": lambda: (torch.arange(6), INTO.as_subclass(Subclass)),
    "another device": lambda: (torch.arange(6), torch.zeros(8, dtype=INT, device="meta")),
}


@pytest.mark.parametrize("name", CHANGES)
def test_facts_that_hold_no_longer(in_cpp: Reader, name: str) -> None:
    for reader in (IN_PYTHON, in_cpp):
        facts = reader.facts(torch.arange(6), INTO)
        given, into = CHANGES[name]()
        assert reader.taken(facts, given, into, 64) is None
        assert reader.taken(facts, torch.arange(9), INTO, 64) is not None, "another tensor of that type may be given"


def test_a_buffer_that_is_exchanged_in_place(in_cpp: Reader) -> None:
    given, into = torch.arange(6), torch.zeros(8, dtype=INT)
    for reader in (IN_PYTHON, in_cpp):
        facts = reader.facts(given, into)
        assert reader.taken(facts, given, into, 64) is not None
        into.set_(torch.zeros(8, dtype=INT))  # type: ignore[call-overload]
        assert reader.taken(facts, given, into, 64) is None
        facts = reader.facts(given, into)
        into.resize_(9)
        assert reader.taken(facts, given, into, 64) is None
        into.resize_(8)


def test_facts_of_one_are_none_of_the_other(in_cpp: Reader) -> None:
    given = torch.arange(6)
    for mine, theirs in ((IN_PYTHON, in_cpp), (in_cpp, IN_PYTHON)):
        assert theirs.taken(mine.facts(given, INTO), given, INTO, 64) is None
        assert theirs.taken(theirs.facts(given, INTO), given, INTO, 64) is not None


@pytest.mark.parametrize("facts", [b"", b"\0" * 32, b"\0" * 31, "text", 3, (1, 2), None])
def test_wrong_facts(in_cpp: Reader, facts: object) -> None:
    for reader in (IN_PYTHON, in_cpp):
        assert reader.taken(facts, torch.arange(6), INTO, 64) is None


def test_a_wrong_number_of_arguments_gives_none(in_cpp: Reader) -> None:
    given: Any = torch.arange(6)
    for function in in_cpp:
        assert all(function(*[given] * count) is None for count in (0, 1, 3, 5))
    assert in_cpp.numbers(given, None) is None  # type: ignore[arg-type]
    assert in_cpp.numbers(given, 1 << 70) is None


def test_modes_of_the_program_see_no_operator(in_cpp: Reader) -> None:
    seen: list[Any] = []

    class Dispatched(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    class Called(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    given = torch.arange(6)
    with Dispatched():  # type: ignore[no-untyped-call]
        for reader in (IN_PYTHON, in_cpp):
            assert reader.numbers(given, 6) == [*range(6)]
            assert read(reader, given, 8) is not None
    with Called():
        assert in_cpp.numbers(given, 6) == [*range(6)]
        assert read(in_cpp, given, 8) is not None
    assert seen == []


def test_a_copy_that_is_made_later_stays_shared(in_cpp: Reader) -> None:
    first = torch.arange(6)
    late = torch._lazy_clone(first)
    assert in_cpp.numbers(late, 6) == [*range(6)]
    assert read(in_cpp, late, 8) is not None
    assert torch._C._is_cow_tensor(late)  # type: ignore[attr-defined]


def test_no_reference_is_lost_or_kept(in_cpp: Reader) -> None:
    given, other = torch.arange(1 << 10, (1 << 10) + 6), torch.zeros(4)
    facts = in_cpp.facts(given, INTO)

    def work() -> None:
        for _ in range(1000):
            in_cpp.facts(given, INTO), in_cpp.facts(given, None), in_cpp.facts(None, INTO)
            in_cpp.taken(facts, given, INTO, 8), in_cpp.taken(facts, other, INTO, 8), in_cpp.taken(None, given, INTO, 8)
            in_cpp.numbers(given, 6), in_cpp.numbers(given, 2), in_cpp.numbers(other, 9), in_cpp.numbers(None, 9)

    watched = (given, other, INTO, facts, None, in_cpp.facts.__self__)  # type: ignore[attr-defined]
    work()
    before = [sys.getrefcount(each) for each in watched]
    work()
    after = [sys.getrefcount(each) for each in watched]
    assert all(abs(now - then) < 50 for now, then in zip(after, before, strict=True)), (before, after)


def test_functions_in_cpp_take_the_place_of_those_in_python(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("facts", "taken", "numbers"):
        monkeypatch.setattr(host_tensors, name, getattr(IN_PYTHON, name))
    monkeypatch.setattr(launch_rows, "note", note_in_python)
    host_tensors._use(library)
    assert host_tensors.facts == IN_PYTHON.facts, "rows are written in Python: objects are laid out in another way"
    monkeypatch.setattr(launch_rows, "note", written_in_cpp(library))
    host_tensors._use(library)
    assert host_tensors.numbers(torch.arange(3), 3) == [0, 1, 2]
    for function in (host_tensors.facts, host_tensors.taken, host_tensors.numbers):
        assert type(function).__name__ == "builtin_function_or_method"


# -- differences between the two, found in review ------------------------------------------------------------------


@pytest.mark.parametrize("name", empty())
def test_an_empty_one_has_no_numbers(in_cpp: Reader, name: str) -> None:
    given = empty()[name]
    assert in_cpp.numbers(given, 4) == IN_PYTHON.numbers(given, 4) == []


@pytest.mark.parametrize("given", [torch.empty(0), torch.empty(0, dtype=INT, device="meta")], ids=["float", "meta"])
def test_an_empty_one_of_another_kind_is_not_read(in_cpp: Reader, given: torch.Tensor) -> None:
    assert read(IN_PYTHON, given, 8) is None
    assert read(in_cpp, given, 8) is None


def test_a_freed_tensor_has_no_numbers(in_cpp: Reader) -> None:
    freed = torch.arange(6)
    freed.untyped_storage().resize_(0)
    assert in_cpp.numbers(freed, 64) is None
    assert read(in_cpp, freed, 8) is None
    assert IN_PYTHON.numbers(freed, 64) is None


def test_there_are_no_facts_of_a_sparse_buffer(in_cpp: Reader) -> None:
    sparse = INTO.to_sparse()
    assert in_cpp.facts(INTO, sparse) is None
    assert IN_PYTHON.facts(INTO, sparse) is None
