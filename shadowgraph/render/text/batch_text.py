"""Batch of a server's replay, in one row of a report."""

from __future__ import annotations

from collections.abc import Sequence

from shadowgraph.common.words import plural
from shadowgraph.model.findings import Batch

_SHOWN = 8


def batch_said(batch: Batch) -> str:
    """``2 requests, padded to 4; 16, 13 tokens; ids a, b``; new tokens where a request has more than one."""
    said = plural(batch.size, "request")
    if batch.padded_to != batch.size:
        said += f", padded to {batch.padded_to:,}"
    if batch.tokens and (batch.tokens, batch.padded_tokens) != (batch.size, batch.padded_to):
        said += f"; {plural(batch.tokens, 'new token')}"
        if batch.padded_tokens != batch.tokens:
            said += f", padded to {batch.padded_tokens:,}"
    if batch.lengths:
        said += f"; {_listed([f'{length:,}' for length in batch.lengths])} tokens"
    return said + (f"; ids {_listed(batch.requests)}" if batch.requests else "")


def _listed(words: Sequence[str]) -> str:
    more = f" and {len(words) - _SHOWN:,} more" if len(words) > _SHOWN else ""
    return ", ".join(words[:_SHOWN]) + more
