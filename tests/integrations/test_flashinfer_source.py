"""What the adapter takes for granted, held against the source of the flashinfer that is found, which is not imported.

Importing it takes a GPU. Its classes are pure Python: two of them are made here from their source alone, over planners
and kernels of torch operators.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial, partialmethod
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import planning_wrappers as wrappers
import pytest
import torch

import shadowgraph as sg
from shadowgraph.integrations.flashinfer.adapter import Attachment
from shadowgraph.integrations.flashinfer.hooks import Hooks
from shadowgraph.integrations.flashinfer.planner import MODULE, RUNS
from shadowgraph.integrations.flashinfer.versions import Wrapper, installed, known

pytestmark = pytest.mark.skipif(find_spec("flashinfer") is None, reason="needs flashinfer's source on the path")
KNOWN = known(installed())


def source() -> Path:
    spec = find_spec("flashinfer")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(next(iter(spec.submodule_search_locations)))


def class_of(name: str) -> tuple[ast.Module, ast.ClassDef]:
    """A class's source, wherever in the package it stands."""
    for file in sorted(source().rglob("*.py")):
        text = file.read_text("utf-8")
        if f"class {name}" in text:
            module = ast.parse(text)
            found = [node for node in module.body if isinstance(node, ast.ClassDef) and node.name == name]
            if found:
                return module, found[0]
    raise AssertionError(f"no class {name} below {source()}")


def calls(node: ast.AST) -> set[str]:
    """Methods that are called on the module behind a wrapper's attribute."""
    return {
        each.attr
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Attribute) and each.value.attr == MODULE
    }


def stored(node: ast.AST) -> set[str]:
    """Attributes that a class gives its instances."""
    return {
        each.attr
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store) and isinstance(each.value, ast.Name)
    }


def test_the_version_is_known() -> None:
    assert KNOWN, installed()


@pytest.mark.parametrize("wrapper", KNOWN, ids=lambda wrapper: wrapper.name)
def test_attributes_are_those_of_the_class(wrapper: Wrapper) -> None:
    _, node = class_of(wrapper.name)
    named = {wrapper.kv_indptr, wrapper.qo_indptr, wrapper.indices, wrapper.kv_lens, *wrapper.others} - {""}
    assert named <= stored(node) | {"_int_workspace_buffer"}
    assert "_use_cuda_graph" in stored(node)
    if not wrapper.by_attribute:
        assert "plan" in calls(node)
        assert calls(node) & RUNS


def test_the_fast_plan_plans_through_the_module() -> None:
    module, _ = class_of("BatchDecodeWithPagedKVCacheWrapper")
    (fast,) = (node for node in module.body if isinstance(node, ast.FunctionDef) and node.name == "fast_decode_plan")
    assert calls(fast) == {"plan"}


# -- real classes ------------------------------------------------------------------------------------------------------


class HostTorch:
    """torch where nothing can be pinned and no device is a CUDA device."""

    cuda = SimpleNamespace(device=lambda device: nullcontext())

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    @staticmethod
    def empty(*args: Any, pin_memory: bool = False, **kwargs: Any) -> torch.Tensor:
        return torch.empty(*args, **kwargs)


def made(name: str, *functions: str, **given: Any) -> dict[str, Any]:
    """A class, and functions beside it, executed from their source; what they refer to beyond that does nothing."""
    module, node = class_of(name)
    wanted = [node, *(each for each in module.body if isinstance(each, ast.FunctionDef) and each.name in functions)]
    used = {each.id for part in wanted for each in ast.walk(part) if isinstance(each, ast.Name)}
    space: dict[str, Any] = {each: MagicMock(name=each) for each in used if not hasattr(builtins, each)}

    def flashinfer_api(function: Any = None, **_: Any) -> Any:
        return function if function is not None else flashinfer_api

    space.update(
        __name__="flashinfer_source",
        torch=HostTorch(),
        flashinfer_api=flashinfer_api,
        overload=lambda function: function,
        functools=SimpleNamespace(partialmethod=partialmethod),
        canonicalize_torch_dtype=lambda dtype: dtype,
        _get_range_buf=lambda size, device: torch.arange(size, dtype=torch.int32),
        **given,
    )
    future = ast.ImportFrom("__future__", [ast.alias("annotations")], 0)
    code = ast.fix_missing_locations(ast.Module([future, *wanted], []))
    exec(compile(code, f"{name}.py", "exec"), space)
    return space


@pytest.fixture
def attached() -> Iterator[Attachment]:
    attachment = Attachment(Hooks())
    yield attachment
    attachment.take_down()


def decode_kernel(*args: Any) -> None:
    """Of a decode kernel's arguments the index pointers and the output."""
    torch.sub(args[6][1:], args[6][:-1], out=args[9].view(-1)[: len(args[6]) - 1])


@pytest.mark.skipif(not KNOWN or KNOWN[-1].first > (0, 6), reason="of 0.7 the classes need more than their source")
def test_the_real_decode_wrapper(attached: Attachment) -> None:
    module = SimpleNamespace(plan=wrappers.planner, run=decode_kernel)
    space = made(
        "BatchDecodeWithPagedKVCacheWrapper",
        "fast_decode_plan",
        get_batch_decode_module=lambda *args: module,
        _unpack_paged_kv_cache=lambda cache, layout: (cache[:, 0], cache[:, 1]),
    )
    real = space["BatchDecodeWithPagedKVCacheWrapper"]
    attached.hang([(real, KNOWN[0])])
    with sg.debug() as debugger:
        with debugger.guard():
            indptr, other = torch.arange(4, dtype=torch.int32), torch.arange(4, dtype=torch.int32)
            indices, last = torch.arange(64, dtype=torch.int32), torch.ones(3, dtype=torch.int32)
            query, cache, out = torch.zeros(3, 1, 1), torch.zeros(8, 2, 1, 1, 1), torch.zeros(3, 1, 1)
        out = out.to(torch.int32)
        query = query.to(torch.int32)
        wrapper = real(
            torch.zeros(64, dtype=torch.uint8),
            use_cuda_graph=True,
            paged_kv_indptr_buffer=indptr,
            paged_kv_indices_buffer=indices,
            paged_kv_last_page_len_buffer=last,
        )
        debugger.name("attn", wrapper)
        sizes = (1, 1, 1, 1)
        wrapper.plan(indptr, indices, last, *sizes, q_data_type=torch.int32, kv_data_type=torch.int32)
        graph = sg.HostGraph()
        with sg.host_graph(graph):
            wrapper.run(query, cache, out=out)
        wrapper.begin_forward = partial(space["fast_decode_plan"], wrapper)
        for step, source_of in ((3, indptr), (2, other), (5, other)):
            if step == 2:
                wrapper._paged_kv_indptr_buf = other
            source_of[1:] = torch.arange(1, 4, dtype=torch.int32) * step
            wrapper.begin_forward(source_of, indices, last, *sizes, q_data_type=torch.int32, kv_data_type=torch.int32)
            graph.replay()
        (found,) = debugger.findings
        plan = debugger.monitor.flight_recorder.host_plans.last
    assert out.view(-1).tolist() == [3, 3, 3], "what the graph reads"
    assert (found.code, found.replay, found.occurrences) == ("SG108", 2, 2)
    assert found.detail is not None
    assert found.detail.attribute == "attn._paged_kv_indptr_buf"
    assert plan is not None
    assert torch.frombuffer(bytearray(plan.indptr), dtype=torch.int32).tolist() == [0, 5, 10, 15]
