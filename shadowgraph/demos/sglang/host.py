"""Drivers for real, unmodified sglang 0.5.12.post1, on a machine without a GPU or on one.

The drivers run sglang's own allocation and prepare code. On the CPU its Triton kernels go through Triton's interpreter;
`EagleDraft` and `AiterKvIndices` also take a CUDA device, where the kernels are compiled. Arguments that sglang would
pass to a GPU library go to objects that record them. Importing this module imports neither sglang nor Triton;
constructing a driver does.

The kernels really write where sglang's arithmetic sends them, also past the end of a buffer. Either run them over
memory with room behind it, or use only lengths for which ``bytes_past_end`` is 0.
"""

from shadowgraph.demos.sglang.decode import AiterKvIndices, DecodeRow, PaddedDecode
from shadowgraph.demos.sglang.eagle import DraftPlan, EagleDraft, PlanRecorder
from shadowgraph.demos.sglang.load import (
    SGLANG_VERSION,
    enable_interpreter,
    load,
    require_sglang,
    sglang_version,
)

__all__ = [
    "SGLANG_VERSION",
    "AiterKvIndices",
    "DecodeRow",
    "DraftPlan",
    "EagleDraft",
    "PaddedDecode",
    "PlanRecorder",
    "enable_interpreter",
    "load",
    "require_sglang",
    "sglang_version",
]
