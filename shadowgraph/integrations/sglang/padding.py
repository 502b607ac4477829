"""Declarations for sglang's padding: the treatment of padded rows in its graph runners' static inputs.

Versions up to 0.5.12 do not expose it; from 0.5.13 on each input is a slot of a registry, with a ``PaddingPolicy``. The
names are the same in both. Of inputs that are kept on purpose it is declared that padded rows keep old values, whatever
the others hold. Inputs that are reset (``ZERO``, ``FILL_SENTINEL``) are declared ``"judged"``, so that SG103 is an
error for them under ``wrap`` too; with a debugger that is not lenient, that is the default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

import torch

from shadowgraph.common.errors import UnknownBufferError

# No code reads the results of padded rows' embeddings; encoder lengths are filled once.
KEPT = ("input_ids", "input_embeds", "encoder_lens", "ngram_embedding_info", "pp_proxy_tensors")
# Drafts keep hidden states, too: a padded token's go into its own results alone, which are cut off behind the replay,
# and into slot 0 of the cache. A draft's extension refreshes as many tokens as were accepted, and has room for more.
KEPT_BY_DRAFTS = (*KEPT, "hidden_states")
# Padded rows must not keep old values here: they index attention and the KV cache. Other inputs stay undeclared.
RESET = (
    *("req_pool_indices", "seq_lens", "out_cache_loc", "out_cache_loc_swa", "positions"),
    *("mamba_track_indices", "mamba_track_mask"),
)
_RESETTING = {"ZERO", "FILL_SENTINEL"}


class Declares(Protocol):
    """`AdapterInterface`, as far as it is called here."""

    def padding(self, tensor: torch.Tensor, policy: str) -> None:
        """Declare how padded rows of a static input are treated."""

    def keeps_rows(self, tensor: torch.Tensor) -> None:
        """Declare that padded rows of a static input keep old values on purpose."""


def declare_padding(adapter: Declares, buffers: object) -> tuple[str, ...]:
    """Declare the inputs of a graph runner whose padded rows keep old values by design.

    Parameters
    ----------
    adapter : AdapterInterface
        Receives the declarations, by `AdapterInterface.keeps_rows`: the inputs are given whole, and what they hold of
        requests counts.
    buffers : DecodeInputBuffers
        Any object with sglang's names as attributes; missing attributes and empty tensors are left out.

    Returns
    -------
    tuple of str
        The declared names.
    """
    return _declare(adapter.keeps_rows, buffers, KEPT)


def declare_draft_padding(adapter: Declares, buffers: object) -> tuple[str, ...]:
    """Declare the inputs of a draft's graph runner whose padded rows keep old values by design.

    Parameters and result are as those of `declare_padding`.
    """
    return _declare(adapter.keeps_rows, buffers, KEPT_BY_DRAFTS)


def judge_padding(adapter: Declares, buffers: object) -> tuple[str, ...]:
    """Declare the inputs of a graph runner whose padded rows must not keep old values, as ``"judged"``.

    Parameters and result are as those of `declare_padding`.
    """
    return _declare(partial(adapter.padding, policy="judged"), buffers, RESET)


def declare_registry(adapter: Declares, registry: Any) -> tuple[str, ...]:
    """Declare the slots of a ``CudaGraphBufferRegistry`` (0.5.13 and later); result as of `declare_padding`.

    Slots whose buffer is not on the debugger's device are left out.
    """
    declared = []
    for name in registry.slot_names():
        slot = registry.get_slot(name)
        resets = slot.padding_policy.name in _RESETTING
        if isinstance(slot.buffer, torch.Tensor) and slot.buffer.numel():
            with suppress(UnknownBufferError):
                if resets:
                    adapter.padding(slot.buffer, "judged")
                else:
                    adapter.keeps_rows(slot.buffer)
                declared.append(name)
    return tuple(declared)


def _declare(say: Callable[[torch.Tensor], None], buffers: object, names: Iterable[str]) -> tuple[str, ...]:
    declared = []
    for name in names:
        for path, tensor in _tensors(name, getattr(buffers, name, None)):
            if tensor.numel():
                say(tensor)
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
