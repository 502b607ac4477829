"""An owner of memory: an attribute path and the tensor that it leads to, as pure data."""

from __future__ import annotations

import msgspec

from shadowgraph.model.views import TensorView


class Owner(msgspec.Struct, frozen=True, gc=False):
    """A path to a tensor, and the facts of that tensor.

    Attributes
    ----------
    path : str
        Such as `attn.metadata["kv_indptr"]` or `draft.attn_backends[1].cuda_graph_kv_indices`.
    view : TensorView
        The bytes that the tensor covered during the walk. Does not keep it alive.
    """

    path: str
    view: TensorView
