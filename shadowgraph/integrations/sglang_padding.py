"""What sglang means to do with padded rows of its graph runners' static inputs.

Versions up to 0.5.12 say so in no place that can be read; from 0.5.13 on each input has a ``PaddingPolicy``. The names
are the same in both. Inputs that are reset (``ZERO``, ``FILL_SENTINEL``) need no declaration: that is what SG103 judges
by itself. The others are kept on purpose.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

# Whatever an embedding of a padded row is, nobody reads what becomes of it; lengths of encoders are filled once.
KEPT = ("input_ids", "input_embeds", "encoder_lens", "ngram_embedding_info", "pp_proxy_tensors")


def declare_padding(debugger: Any, buffers: object) -> tuple[str, ...]:
    """Declare the inputs of a graph runner whose padded rows keep old values by design.

    Parameters
    ----------
    debugger : Debugger
        Takes the declarations, as ``padding(tensor, "dont_care")``.
    buffers : DecodeInputBuffers
        Any object with sglang's names as attributes; those that it lacks, or that hold no elements, are left out.

    Returns
    -------
    tuple of str
        Names that were declared.
    """
    declared = []
    for name in KEPT:
        for path, tensor in _tensors(name, getattr(buffers, name, None)):
            if tensor.numel():
                debugger.padding(tensor, "dont_care")
                declared.append(path)
    return tuple(declared)


def _tensors(path: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of an attribute: itself, those of a dictionary, or of an object's own attributes."""
    if isinstance(value, torch.Tensor):
        yield path, value
    elif value is not None:
        for name, part in (value if isinstance(value, dict) else vars(value)).items():
            if isinstance(part, torch.Tensor):
                yield f"{path}.{name}", part
