"""Which arguments an operator is known to read."""

from __future__ import annotations

import pytest
import torch

from shadowgraph.checks.contents_lost.reads import sure_reads
from shadowgraph.graphs.dataflow import surely_reads
from shadowgraph.graphs.dispatch.pool_reads import _access
from shadowgraph.graphs.dispatch.schemas import schema_of
from shadowgraph.model.graphs import Access, Graph, Launch, LaunchKind, Node, Pointer
from shadowgraph.model.views import TensorView


@pytest.mark.parametrize(
    ("name", "access", "known"),
    [
        ("aten.add_.Tensor", Access.READ_WRITE, True),
        ("aten.index_put_.default", Access.READ_WRITE, False),
        ("aten.add.Tensor", Access.READ, True),
        ("aten.add.Tensor", Access.WRITE, False),
        ("_C.rms_norm.default", Access.READ_WRITE, False),  # it fills the output that it is given
        ("_C.fused_add_rms_norm.default", Access.READ_WRITE, False),  # it reads it, which its schema does not say
        ("vllm.unified_attention_with_output.default", Access.READ, True),
        ("fill", Access.UNKNOWN, False),
    ],
)
def test_of_a_librarys_operator_the_schema_does_not_say_that_it_reads_what_it_writes(
    name: str, access: Access, known: bool
) -> None:
    tensor = torch.zeros(4)
    kind = LaunchKind.TRITON if name == "fill" else LaunchKind.ATEN
    pointer = Pointer("x", TensorView.of(tensor), access)
    launch = Launch(kind, name, (pointer,))
    assert surely_reads(launch, pointer) is known
    graph = Graph(1, "graph#1")
    graph.nodes.append(Node(0, launch))
    assert bool(sure_reads(graph)) is known


def test_eager_code_that_fills_an_output_reads_none_of_it() -> None:
    with torch.library._scoped_library("shadowgraph_reads", "FRAGMENT") as library:
        library.define("norm(Tensor(a!) out, Tensor x) -> ()")
        schema = schema_of(torch.ops.shadowgraph_reads.norm.default)
    assert [_access(schema, name) for name in ("out", "x")] == [Access.WRITE, Access.READ]
    assert _access(schema_of(torch.ops.aten.add_.Tensor), "self") is Access.READ_WRITE
