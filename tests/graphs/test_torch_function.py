"""What watches host reads and resizes is invisible to `__torch_function__`, and to the class torch.Tensor itself."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
import torch
from torch.overrides import TorchFunctionMode, get_overridable_functions, get_testing_overrides

import shadowgraph as sg
from shadowgraph.graphs.events import events

NAMES = (
    "tolist",
    "numpy",
    "__array__",
    "cpu",
    "to",
    "__dlpack__",
    "__repr__",
    "__reduce_ex__",
    "resize_",
    "resize_as_",
)
BEFORE = {name: getattr(torch.Tensor, name) for name in NAMES}
TABLE = {
    torch.Tensor.cpu: lambda tensor: "cpu",
    torch.Tensor.tolist: lambda tensor: "tolist",
    torch.Tensor.to: lambda tensor, *args, **kwargs: "to",
    torch.Tensor.numpy: lambda tensor: "numpy",
    torch.Tensor.__repr__: lambda tensor, **kwargs: "repr",
    torch.Tensor.resize_: lambda tensor, *size: "resize_",
}


class Logged(torch.Tensor):
    """Looks functions up in a table, and notes those that it is handed."""

    handed: ClassVar[list[Any]] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.handed.append(func)
        if func in TABLE:
            return TABLE[func](*args, **(kwargs or {}))
        return super().__torch_function__(func, types, args, kwargs or {})


class Listening(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.heard: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.heard.append(func)
        return func(*args, **(kwargs or {}))


@pytest.fixture(params=[{}, {"guard_eager": "auto", "layout": "faithful"}], ids=["guard", "wrap"])
def watching(request: pytest.FixtureRequest) -> Iterator[sg.Debugger]:
    with sg.debug(backend="host", **request.param) as debugger:
        yield debugger
    assert debugger.facts().faults == {}


def all_of(tensor: torch.Tensor) -> list[Any]:
    return [tensor.cpu(), tensor.tolist(), tensor.to("cpu"), tensor.numpy(), repr(tensor), tensor.resize_(2)]


def test_a_table_made_before_finds_its_functions(watching: sg.Debugger) -> None:
    Logged.handed.clear()
    assert all_of(torch.zeros(2).as_subclass(Logged)) == ["cpu", "tolist", "to", "numpy", "repr", "resize_"]
    assert Logged.handed == list(TABLE), "and nothing that the program has not called"


@pytest.mark.parametrize("name", NAMES)
def test_the_class_shows_what_it_did(name: str, watching: sg.Debugger) -> None:
    assert getattr(torch.Tensor, name) is BEFORE[name]
    assert getattr(Logged, name) is BEFORE[name]


def test_a_torch_function_mode_hears_what_the_program_calls(watching: sg.Debugger) -> None:
    tensor = torch.ones(2)
    with Listening() as mode:
        tensor.cpu(), tensor.tolist(), tensor.to("cpu"), tensor.numpy(), tensor.resize_(2)
    assert mode.heard == [BEFORE[name] for name in ("cpu", "tolist", "to", "numpy", "resize_")]


def test_a_method_that_calls_the_one_it_overrides(watching: sg.Debugger) -> None:
    class Own(torch.Tensor):
        def tolist(self) -> Any:
            return ["own", *super().tolist()]

    assert torch.zeros(1).as_subclass(Own).tolist() == ["own", 0.0]


@pytest.mark.parametrize("target", ["cpu", torch.float64, {"dtype": torch.float32}])
def test_lazy_modules_move(target: Any, watching: sg.Debugger) -> None:
    module = torch.nn.LazyConv2d(4, 3)
    moved = module.to(**target) if isinstance(target, dict) else module.to(target)
    dtype = target if isinstance(target, torch.dtype) else torch.float32
    assert moved(torch.zeros(1, 2, 8, 8, dtype=dtype)).shape == (1, 4, 6, 6)


def test_torchs_own_tables(watching: sg.Debugger) -> None:
    for table in (get_overridable_functions, get_testing_overrides):
        getattr(table, "cache_clear", lambda: None)()
    known = {id(function) for function in get_overridable_functions()[torch.Tensor]}
    assert {id(BEFORE[name]) for name in ("tolist", "cpu", "to", "resize_")} <= known
    assert BEFORE["cpu"] in get_testing_overrides()


def test_copies_and_pickles(watching: sg.Debugger) -> None:
    tensor = torch.arange(3.0)
    file = io.BytesIO()
    torch.save(tensor, file)
    file.seek(0)
    for each in (copy.copy(tensor), copy.deepcopy(tensor), pickle.loads(pickle.dumps(tensor)), torch.load(file)):
        assert each.tolist() == [0, 1, 2]


def test_compiled_in_one_piece(watching: sg.Debugger) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return (x.to(torch.float64).cpu() * 2).to("cpu") + x.new_zeros(3)

    torch._dynamo.reset()
    assert torch.compile(program, backend="eager", fullgraph=True)(torch.ones(3)).tolist() == [2, 2, 2]


def test_reads_are_still_told(monkeypatch: pytest.MonkeyPatch, watching: sg.Debugger) -> None:
    told: list[str] = []
    monkeypatch.setattr(events, "host_read", lambda view, how, waits: told.append(how))
    tensor = torch.ones(2)
    tensor.cpu(), tensor.tolist(), tensor.to("cpu"), tensor.numpy(), repr(tensor)
    torch.zeros(2).as_subclass(torch.nn.Parameter).tolist()
    assert told == ["cpu", "tolist", "to", "numpy", "__repr__", "tolist"]
