"""Founding cases: bugs in real, unmodified sglang code, shown on a GPU or on a machine without one.

sglang 0.5.12.post1 has these bugs. The numbers are the writes of its own kernels for these sizes; each is proved first
with the buffer carved from a larger tensor and no debugger.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from shadowgraph.demos.case import Case, Expected, Program, require
from shadowgraph.demos.sglang.host import AiterKvIndices, DecodeRow, EagleDraft, PaddedDecode
from shadowgraph.integrations.sglang.padding import declare_padding

_CANARY = -123456789
_EAGLE_KERNEL = "generate_draft_decode_kv_indices"
_AITER_KERNEL = "create_flashinfer_kv_indices_triton"


@dataclass(frozen=True, slots=True)
class EagleSizes:
    """Sizes and lengths of one EAGLE case, and the entries of each draft step's row that read back wrong."""

    max_bs: int
    topk: int
    ctx: int
    steps: int
    lens: tuple[int, ...]
    past_end: int
    lost: tuple[int, ...]

    def draft(self, device: torch.device) -> EagleDraft:
        return EagleDraft(self.max_bs, self.topk, self.ctx, self.steps, device=device)


EAGLE = (
    EagleSizes(2, 4, 64, 3, (10, 10), 0, ()),
    EagleSizes(2, 4, 64, 3, (16, 13), 48, (4, 0)),
    EagleSizes(2, 4, 64, 3, (40, 40), 864, (200, 208, 0)),
    EagleSizes(4, 8, 128, 5, (33, 40, 50, 60), 4448, (984, 1016, 1048, 1080, 0)),
)


@dataclass(frozen=True, slots=True)
class AiterSizes:
    """Sizes and lengths of one aiter case."""

    max_bs: int
    ctx: int
    page: int
    lens: tuple[int, ...]
    past_end: int

    def driver(self, device: torch.device) -> AiterKvIndices:
        return AiterKvIndices(self.max_bs, self.ctx, self.page, device)


AITER = (
    AiterSizes(1, 32, 4, (9,), 4),
    AiterSizes(2, 64, 16, (20, 20), 128),
    AiterSizes(4, 128, 64, (10, 12, 14, 16), 176),
)


def eagle_program(sizes: EagleSizes) -> Program:
    """sglang's draft backend: its own allocation, its own prepare, a graph that reads every step's indices."""

    def program(device: Any, debugger: Any, fixed: bool, carve: int) -> EagleDraft:
        draft = sizes.draft(device.device)
        with debugger.guard():
            draft.init_cuda_graph_state(fixed=fixed and bool(sizes.past_end))
        debugger.name("draft", draft.backend)
        graph = device.graph()
        with device.capture(graph):
            read = [backend.cuda_graph_kv_indices[0].sum() for backend in draft.backend.attn_backends]
        for _ in range(2):
            with debugger.prepare(graph):
                draft.prepare(sizes.lens)
            graph.replay()
        del read
        return draft

    return program


def eagle_damage(sizes: EagleSizes) -> Any:
    """The real prepare over a buffer with known bytes behind it."""

    def damage(device: Any) -> bool:
        draft = sizes.draft(device.device)
        draft.init_cuda_graph_state()
        buffer = draft.backend.cuda_graph_kv_indices
        memory = torch.full((buffer.numel() + 4096,), _CANARY, dtype=torch.int32, device=device.device)
        memory[: buffer.numel()] = 0
        draft.use_buffer(memory[: buffer.numel()].view(buffer.shape))
        draft.prepare(sizes.lens)
        past = int((memory[buffer.numel() :] != _CANARY).sum()) * 4
        wrong = draft.wrong_entries(memory, sizes.lens)
        require(past == sizes.past_end, f"sglang writes {past} bytes past the end, not {sizes.past_end}")
        lost = tuple(wrong[-len(sizes.lost) :])
        # Interpreted programs run in order. On a device it is undefined which row keeps a shared entry.
        right = lost == sizes.lost if device.device.type == "cpu" else sum(wrong) == sum(sizes.lost)
        require(right, f"rows read back wrong in {wrong} entries")
        return past > 0

    return damage


def aiter_program(sizes: AiterSizes) -> Program:
    """sglang's aiter backend: allocated by pages, filled by tokens."""

    def program(device: Any, debugger: Any, fixed: bool, carve: int) -> AiterKvIndices:
        driver = sizes.driver(device.device)
        with debugger.guard():
            driver.allocate(fixed=fixed)
        debugger.name("aiter", driver.backend)
        graph = device.graph()
        with device.capture(graph):
            read = driver.backend.cuda_graph_kv_indices.sum()
        for _ in range(2):
            with debugger.prepare(graph):
                driver.fill(sizes.lens)
            graph.replay()
        del read
        return driver

    return program


def aiter_damage(sizes: AiterSizes) -> Any:
    """The real fill over a buffer with known bytes behind it."""

    def damage(device: Any) -> bool:
        driver = sizes.driver(device.device)
        driver.allocate()
        count = driver.backend.cuda_graph_kv_indices.numel()
        memory = torch.full((count + 4096,), _CANARY, dtype=torch.int32, device=device.device)
        driver.backend.cuda_graph_kv_indices = memory[:count]
        driver.fill(sizes.lens)
        past = int((memory[count:] != _CANARY).sum()) * 4
        require(past == sizes.past_end, f"sglang writes {past} bytes past the end, not {sizes.past_end}")
        return True

    return damage


FULL_BATCH = (DecodeRow(1, 1, 10), DecodeRow(2, 3, 11), DecodeRow(7, 4, 12), DecodeRow(8, 7, 13))
HALF_BATCH = (DecodeRow(5, 2, 20), DecodeRow(6, 5, 21))


def padded_program(device: Any, debugger: Any, fixed: bool, carve: int) -> PaddedDecode:
    """sglang's static inputs, refreshed by its own code for four requests and then for two that are padded to four."""
    with debugger.guard():
        decode = PaddedDecode(len(FULL_BATCH), fixed=fixed, device=device.device)
    buffers = decode.buffers
    debugger.name("decode", buffers)
    declare_padding(debugger.adapter, buffers)
    table = torch.arange(8 * 4, device=device.device).view(8, 4)
    graph = device.graph()
    with device.capture(graph):
        read = [table[buffers.req_pool_indices[:4]], buffers.seq_lens[:4] + buffers.out_cache_loc[:4]]
        read += [buffers.positions[:4] * 1, buffers.input_ids[:4] * 1]
    for rows in (FULL_BATCH, HALF_BATCH):
        with debugger.prepare(graph):
            decode.prepare(rows, padded_to=4)
        graph.replay()
    del read
    return decode


def padded_damage(device: Any) -> bool:
    """The real prepare of two requests leaves the slots and positions of two other requests in the padded rows."""
    decode = PaddedDecode(len(FULL_BATCH), device=device.device)
    for rows in (FULL_BATCH, HALF_BATCH):
        decode.prepare(rows, padded_to=4)
    buffers = decode.buffers
    require(buffers.seq_lens.tolist() == [20, 21, 1, 1], "lengths are padded")
    require(buffers.out_cache_loc.tolist() == [1, 2, 0, 0], "cache slots are padded")
    require(buffers.input_ids.tolist() == [5, 6, 7, 8], "input ids are kept by design")
    return bool(buffers.req_pool_indices.tolist() == [2, 5, 4, 7] and buffers.positions.tolist() == [19, 20, 11, 12])


PADDED = tuple(
    Expected(
        "SG103",
        name,
        phase="prepare",
        culprit="aten._foreach_copy_.default",
        replay=2,
        launched_in="foreach_copy",
        stale=((2, 3, 1),),
    )
    for name in ("decode.req_pool_indices", "decode.positions")
)
PADDED_CASE = Case(
    id="S-padded",
    title="padded rows of DecodeInputBuffers, 4 requests and then 2 of 4",
    report="sglang 26292",
    program=padded_program,
    expected=PADDED,
    damage=padded_damage,
)


def _eagle_case(sizes: EagleSizes) -> Case:
    expected = Expected(
        "SG101",
        "draft.cuda_graph_kv_indices",
        phase="prepare",
        culprit=_EAGLE_KERNEL,
        replay=1,
        past_end=sizes.past_end,
        side="after",
        launched_in="common_template",
        lost=sizes.lost,
    )
    return Case(
        id=f"S-eagle-{sizes.past_end}",
        title=f"EAGLE draft kv_indices, {_said(sizes.max_bs, sizes.topk, sizes.ctx, sizes.steps, lens=sizes.lens)}",
        report="sglang 27338",
        program=eagle_program(sizes),
        expected=(expected,) if sizes.past_end else (),
        damage=eagle_damage(sizes) if sizes.past_end else None,
    )


def _aiter_case(sizes: AiterSizes) -> Case:
    expected = Expected(
        "SG101",
        "aiter.cuda_graph_kv_indices",
        phase="prepare",
        culprit=_AITER_KERNEL,
        replay=1,
        past_end=sizes.past_end,
        side="after",
        launched_in="init_forward_metadata_replay_cuda_graph",
    )
    return Case(
        id=f"S-aiter-{sizes.past_end}",
        title=f"aiter kv_indices, {_said(sizes.max_bs, sizes.ctx, sizes.page, lens=sizes.lens)}",
        report="sglang 24587",
        program=aiter_program(sizes),
        expected=(expected,),
        damage=aiter_damage(sizes),
    )


def _said(*sizes: int, lens: Sequence[int]) -> str:
    return f"{'/'.join(map(str, sizes))}, lengths {list(lens)}"


CASES = (*map(_eagle_case, EAGLE), *map(_aiter_case, AITER), PADDED_CASE)
