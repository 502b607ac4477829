"""A graph rewrites the kv_indptr of a real flashinfer decode wrapper, from which the host plans the next step.

The shape of the public report: wrappers for two batch sizes share the prefix of one index pointer buffer, and each
graph writes the running sum of the real lengths into it. Every length stays below flashinfer's smallest chunk of 128
tokens, so that a plan made from wrong lengths is wrong and harmless.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest
import torch

import shadowgraph as sg
from shadowgraph.common.internal_errors import internal_errors
from shadowgraph.debugger import model_of
from shadowgraph.demos.device import CudaDevice, Unwatched

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(find_spec("flashinfer") is None, reason="needs flashinfer"),
]

HEADS, HEAD_DIM, PAGE = 8, 128, 1
DTYPE = torch.bfloat16
ROWS = 12  # requests that the metadata has room for
ROOM = 64  # tokens of a request that the pool has room for
TOKENS = 16  # tokens a request that the first plans expect
BATCHES = (8, 4)
STEPS = ((8, TOKENS), (8, 5), (4, TOKENS))  # batch size and real length of each step

METADATA = 'attn.metadata["flashinfer_kv_indptr"]'
ALIASES = {bs: f"attn.wrappers[{bs}]._paged_kv_indptr_buf" for bs in BATCHES}


def flashinfer() -> Any:
    return import_module("flashinfer")


class Backend:
    """An attention backend after sglang's: one metadata buffer, and a real wrapper and a graph for each batch size.

    Attributes
    ----------
    planned : list of torch.Tensor
        Copies of what each step's plan was made from.
    """

    def __init__(self, device: Any) -> None:
        self.device = device
        self.workspace = torch.empty(128 << 20, dtype=torch.uint8, device=device.device)
        self.query = torch.randn(ROWS, HEADS, HEAD_DIM, dtype=DTYPE, device=device.device)
        self.kv = torch.randn(ROWS * ROOM, 2, PAGE, HEADS, HEAD_DIM, dtype=DTYPE, device=device.device)
        self.outputs: dict[int, torch.Tensor] = {}
        self.planned: list[torch.Tensor] = []

    def init_cuda_graph_state(self, tensor_cores: bool = False) -> None:
        """Allocate every static buffer, those that flashinfer makes for itself included."""
        place: dict[str, Any] = {"dtype": torch.int32, "device": self.device.device}
        self.metadata = {"flashinfer_kv_indptr": torch.arange(ROWS + 1, **place) * TOKENS}
        self.kv_indices = torch.arange(ROWS * ROOM, **place)
        self.last_page_len = torch.ones(ROWS, **place)
        self.lens = torch.full((ROWS,), TOKENS, **place)
        self.wrappers = {bs: self._wrapper(bs, tensor_cores) for bs in BATCHES}
        self.graphs = {bs: self.device.graph() for bs in BATCHES}

    def _wrapper(self, bs: int, tensor_cores: bool) -> Any:
        return flashinfer().BatchDecodeWithPagedKVCacheWrapper(
            self.workspace,
            "NHD",
            use_cuda_graph=True,
            use_tensor_cores=tensor_cores,
            paged_kv_indptr_buffer=self.metadata["flashinfer_kv_indptr"][: bs + 1],
            paged_kv_indices_buffer=self.kv_indices,
            paged_kv_last_page_len_buffer=self.last_page_len[:bs],
        )

    def capture(self, own_plan: bool = False) -> None:
        """Plan, run once (which compiles) and capture; from then on plan as sglang does, without copies on the device.

        With `own_plan` flashinfer's own way stays: it first copies the index pointers onto its buffer, here themselves.
        """
        for bs, graph in self.graphs.items():
            wrapper = self.wrappers[bs]
            self.plan(bs)
            self.device.warm_up(partial(self.forward, bs))
            with self.device.capture(graph):
                self.outputs[bs] = self.forward(bs)
            if not own_plan:
                wrapper.begin_forward = partial(flashinfer().fast_decode_plan, wrapper)

    def forward(self, bs: int) -> torch.Tensor:
        wrapper = self.wrappers[bs]
        wrapper._paged_kv_indptr_buf[1:].copy_(self.lens[:bs].cumsum(0))
        output: torch.Tensor = wrapper.run(self.query[:bs], self.kv)
        return output

    def plan(self, bs: int) -> None:
        indptr = self.wrappers[bs]._paged_kv_indptr_buf
        shape = (HEADS, HEADS, HEAD_DIM, PAGE)
        arguments = (indptr, self.kv_indices, self.last_page_len[:bs], *shape)
        self.wrappers[bs].begin_forward(*arguments, q_data_type=DTYPE, kv_data_type=DTYPE)

    def step(self, debugger: Any, bs: int, length: int, real: bool) -> None:
        """One decode step. With `real` the host plans from the real lengths, and the graph writes what is there."""
        indptr = self.wrappers[bs]._paged_kv_indptr_buf
        with debugger.prepare(self.graphs[bs]):
            self.lens[:bs].fill_(length)
            if real:
                indptr[1:].copy_(self.lens[:bs].cumsum(0))
            self.planned.append(indptr.clone())
            self.plan(bs)
        self.graphs[bs].replay()


def run(device: Any, debugger: Any, *, declared: bool = False, real: bool = False, own_plan: bool = False) -> Backend:
    backend = Backend(device)
    with debugger.guard():
        backend.init_cuda_graph_state()
    debugger.name("attn", backend)
    if declared:
        debugger.protect(backend.metadata["flashinfer_kv_indptr"])
    backend.capture(own_plan)
    for bs, length in STEPS:
        backend.step(debugger, bs, length, real)
    return backend


@pytest.fixture(scope="module")
def device() -> CudaDevice:
    return CudaDevice()


def name_of(graph: torch.cuda.CUDAGraph) -> str:
    model = model_of(graph)
    assert model is not None
    return model.name


def sums(length: int, bs: int) -> list[int]:
    return [i * length for i in range(bs + 1)]


def test_without_a_debugger_the_next_plan_is_made_from_what_a_graph_left(device: CudaDevice) -> None:
    """The preconditions: the wrappers' buffers are the owner's memory, and replays change what the host plans from."""
    backend = run(device, Unwatched())
    indptr = backend.metadata["flashinfer_kv_indptr"]
    for bs, wrapper in backend.wrappers.items():
        assert wrapper._paged_kv_indptr_buf.data_ptr() == indptr.data_ptr()
        assert wrapper._paged_kv_indptr_buf.shape == (bs + 1,)
    planned = [values.tolist() for values in backend.planned]
    assert planned == [sums(TOKENS, 8), sums(TOKENS, 8), sums(5, 4)], "the third is for requests of 16 tokens each"
    assert indptr.tolist() == sums(TOKENS, 4) + sums(5, 8)[5:] + sums(TOKENS, ROWS)[9:]
    assert all(output.isfinite().all() for output in backend.outputs.values())


def test_protected_is_reported_at_the_first_replay_that_changes_a_value(device: CudaDevice) -> None:
    before = internal_errors.total
    with sg.debug(backend=device.name, infer=False) as debugger:
        backend = run(device, debugger, declared=True)
        findings: Any = debugger.check()
        names = [name_of(backend.graphs[bs]) for bs in BATCHES]
    assert [(f.code, f.phase, f.graph, f.replay) for f in findings] == [
        ("SG102", "replay", names[0], 2),
        ("SG102", "replay", names[1], 1),
    ]
    first = findings[0]
    assert first.buffer.name == METADATA
    assert set(ALIASES.values()) < set(first.buffer.names)
    assert {(ALIASES[8], "[0:9]"), (ALIASES[4], "[0:5]")} <= {(a.name, a.relation) for a in first.aliases}
    assert (first.bytes.first, first.bytes.last, first.bytes.count) == (4, 32, 8), "one byte of each of eight sums"
    assert (first.culprit.name, first.culprit.status) == ("aten.copy_.default", "candidate")
    assert first.culprit.file == __file__
    assert first.culprit.stack[0].function == "forward"
    assert internal_errors.total == before


def test_the_kernel_that_writes_a_wrappers_indptr(device: CudaDevice) -> None:
    """The next replay of the graph names it, and the argument that led there."""
    with sg.debug(backend=device.name, infer=False) as debugger:
        backend = run(device, debugger, declared=True)
        backend.step(debugger, 8, 7, real=False)
        found: Any = debugger.check()[0]
        name = name_of(backend.graphs[8])
    assert (found.code, found.graph, found.replay, found.buffer.name) == ("SG102", name, 2, METADATA)
    culprit = found.culprit
    assert (culprit.name, culprit.status, culprit.seen_in) == ("aten.copy_.default", "confirmed", 3)
    assert culprit.stack[0].function == "forward"
    assert "copy" in culprit.kernel, culprit.kernel
    assert culprit.led_by is not None
    assert (culprit.led_by.buffer, culprit.led_by.at) == (METADATA, 4)
    assert found.candidates == ()


@pytest.mark.parametrize(("own_plan", "reader"), [(False, "cpu"), (True, "to")], ids=["fast", "own"])
def test_inferred_where_the_next_plan_reads_it(device: CudaDevice, own_plan: bool, reader: str) -> None:
    with sg.debug(backend=device.name) as debugger:
        backend = run(device, debugger, own_plan=own_plan)
        findings: Any = debugger.check()
        name = name_of(backend.graphs[8])
    assert [f.code for f in findings] == ["SG102"], [f.message for f in findings]
    (found,) = findings
    assert (found.phase, found.graph, found.replay, found.confidence) == ("replay", name, 2, "medium")
    assert found.buffer.name == METADATA
    assert set(ALIASES.values()) < set(found.buffer.names)
    assert (found.detected_at, found.reader.kind, found.reader.name) == ("host_read", "host", reader)
    assert found.reader.file.replace("\\", "/").endswith("flashinfer/decode.py"), "read by flashinfer's own plan"


@pytest.mark.parametrize("declared", [True, False], ids=["declared", "inferred"])
def test_planning_from_the_real_lengths_is_silent(device: CudaDevice, declared: bool) -> None:
    """The fix of the report: the graph goes on writing the buffer, and what it writes is there already."""
    before = internal_errors.total
    with sg.debug(backend=device.name) as debugger:
        backend = run(device, debugger, declared=declared, real=True)
        assert debugger.check() == ()
    assert debugger.findings == ()
    assert [values.tolist() for values in backend.planned] == [sums(n, bs) for bs, n in STEPS]
    assert internal_errors.total == before


@pytest.mark.slow
def test_the_crash_of_the_report_in_flashinfers_planner(device: CudaDevice) -> None:
    """With tensor cores flashinfer's planner looks at the differences, and refuses the mixture of two batch sizes."""
    backend = Backend(device)
    backend.init_cuda_graph_state(tensor_cores=True)
    backend.capture()
    for bs, length in ((8, 5), (4, TOKENS)):
        backend.step(Unwatched(), bs, length, real=False)
    with pytest.raises(RuntimeError, match=r"kv_indptr\[5\]25 - kv_indptr\[4\]64 should be non-negative"):
        backend.step(Unwatched(), 8, 5, real=False)
