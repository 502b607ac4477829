"""Supported versions of flashinfer, and the wrapper attributes that hold the arguments of kernels."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from shadowgraph.integrations import releases
from shadowgraph.integrations.releases import written

PACKAGE = "flashinfer"
Version = tuple[int, int]
FIRST, LAST = (0, 4), (0, 7)  # patch releases included
FLOAT_WORKSPACE, INT_WORKSPACE = "_float_workspace_buffer", "_int_workspace_buffer"


@dataclass(frozen=True, slots=True)
class Wrapper:
    """A wrapper class, and the attributes of its instances.

    Attributes
    ----------
    module, name
        The module and name of the class.
    kind
        What the wrapper plans, for reports.
    kv_indptr, qo_indptr, indices, kv_lens
        Attributes with index pointers, indices and lengths; empty when there is none, or when a plan does not determine
        their values.
    others
        Other attributes that are refreshed for each plan.
    first, last
        First and last version with this layout, both included.
    by_attribute
        Attributes that another object passes to the kernels that it launches, as they are at run time; MLA's kernels
        receive the plan instead of index pointers and lengths.
    """

    module: str
    name: str
    kind: str
    kv_indptr: str = "_paged_kv_indptr_buf"
    qo_indptr: str = ""
    indices: str = "_paged_kv_indices_buf"
    kv_lens: str = ""
    others: tuple[str, ...] = ("_paged_kv_last_page_len_buf",)
    first: Version = FIRST
    last: Version = LAST
    by_attribute: tuple[str, ...] = ()

    @property
    def attributes(self) -> tuple[str, ...]:
        """Attributes that a capture binds to the graph; the float workspace is scratch, and shared on purpose."""
        if self.by_attribute:
            return self.by_attribute
        named = (self.kv_indptr, self.qo_indptr, self.indices, self.kv_lens)
        return (*filter(None, named), *self.others, INT_WORKSPACE)


_MLA = Wrapper(
    "flashinfer.mla",
    "BatchMLAPagedAttentionWrapper",
    "MLA",
    kv_indptr="_kv_indptr_buf",
    qo_indptr="_qo_indptr_buf",
    indices="_kv_indices_buf",
    kv_lens="_kv_len_arr_buf",
    others=(),
    last=(0, 6),
)
WRAPPERS = (
    Wrapper("flashinfer.decode", "BatchDecodeWithPagedKVCacheWrapper", "decode", qo_indptr="_qo_indptr_buf"),
    Wrapper("flashinfer.decode", "BatchDecodeMlaWithPagedKVCacheWrapper", "MLA decode", last=(0, 6)),
    Wrapper(
        "flashinfer.prefill",
        "BatchPrefillWithPagedKVCacheWrapper",
        "paged prefill",
        qo_indptr="_qo_indptr_buf",
        others=("_paged_kv_last_page_len_buf", "_mask_indptr_buf"),
    ),
    Wrapper(
        "flashinfer.prefill",
        "BatchPrefillWithRaggedKVCacheWrapper",
        "ragged prefill",
        kv_indptr="_kv_indptr_buf",
        qo_indptr="_qo_indptr_buf",
        indices="",
        others=("_mask_indptr_buf",),
    ),
    _MLA,
    replace(_MLA, first=(0, 7), last=LAST, by_attribute=("_kv_indices_buf", INT_WORKSPACE)),
)


def installed() -> str | None:
    """Version of the installed flashinfer, or None when it is not installed. Imports nothing."""
    return releases.installed("flashinfer-python", "flashinfer")


def parsed(text: str | None) -> Version | None:
    """The first two numbers of a version; None for other texts."""
    found = re.match(r"(\d+)\.(\d+)(\.|$)", text or "")
    return (int(found[1]), int(found[2])) if found else None


def known(text: str | None) -> tuple[Wrapper, ...]:
    """The wrappers of a version; empty for an unknown version."""
    release = parsed(text)
    if release is None:
        return ()
    return tuple(wrapper for wrapper in WRAPPERS if wrapper.first <= release <= wrapper.last)


def why_off(text: str | None) -> str | None:
    """Why the adapter does not attach to a version, as one line, or None when it does."""
    if known(text):
        return None
    return (
        f"the flashinfer adapter is off: it knows versions {written(FIRST)} to {written(LAST)}, and this is "
        f"{text or 'of no version'}; generic tracking goes on"
    )
