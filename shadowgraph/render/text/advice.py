"""Advice for each kind of finding: its meaning and the remedy, as shown under findings in reports."""

from __future__ import annotations

from shadowgraph.model.findings import Finding
from shadowgraph.model.guards import Side

REMEDIES: dict[str, str] = {
    "SG101": (
        "Compare the size the launch needs in this step with the buffer's: the allocation may lack a factor (topk, "
        "steps, page size), or the kernel a bound. Assert the needed length on the host before the launch."
    ),
    "SG102": (
        "A graph replays its writes every time. Keep a copy that no graph is given and restore from it before each "
        "plan, let the graph write a buffer of its own, or plan from the values that the graph will write. If it "
        "is meant to write what the host plans from, suppress the fingerprint."
    ),
    "SG103": (
        "Give the padded rows a value before each padded replay, as other inputs get one (zero_ or fill_ all, then "
        "copy the real rows). Where it does not matter what they lead to, say so: padding(tensor, 'dont_care')."
    ),
    "SG104": (
        "A graph keeps addresses, not tensors. Hold a reference to what it was captured with for as long as it is "
        "replayed, and refresh it in place (copy_) instead of binding its name to a new tensor; or capture again then."
    ),
    "SG106": (
        "The node's index or stride leads far out of its own buffer, past every guard. Compare the sizes that it was "
        "given with its argument nearest to the damage, or with what its largest index can reach."
    ),
    "SG108": (
        "A graph keeps addresses, not names. Refresh in place (copy_) the memory that it was captured with, or capture "
        "again with the new one: keep the tensor that the wrapper was captured with, and write no clone of it."
    ),
    "SG109": (
        "Look at who wrote the buffer last and at the batches before: a prefix that batch sizes share keeps "
        "what another batch left behind. Rewrite all that the coming graph reads."
    ),
    "SG112": (
        "Let one branch of the capture wait for the other before it writes (an event recorded in one stream and waited "
        "for in the other), or give each branch a buffer of its own."
    ),
}
_SIDES: dict[Side, str] = {
    Side.ROW: (
        "The kernel lacks a bound on the column, or the rows are too short for what it packs into them. Inside one "
        "allocation nothing faults: these entries or the next row's own are lost, by the order of the programs."
    ),
    Side.SLACK: (
        "The graph was captured with a view of fewer rows than it writes. If that is meant, capture it with the whole "
        "buffer; if not, bound the kernel by the captured batch size."
    ),
}


_VIEW = (
    "Compare what the launch writes with the view that it was given: it lacks a bound, or was given too little. A "
    "kernel that walks on by strides is better given the whole buffer, so that the graph says what it uses."
)
_INDEX = (
    "Compare what the indices are made from (lengths, steps, page sizes) with the size of what they index: the buffer "
    "may lack rows or columns for this step. Assert their extremes on the host before the launch."
)


def advice(finding: Finding) -> str:
    """The advice for a finding, in two sentences."""
    if finding.continues is not None:
        return f"The fault lies with {finding.continues.buffer}: see finding {finding.continues.fingerprint}."
    if finding.bytes is not None and finding.bytes.side in _SIDES:
        return _SIDES[finding.bytes.side]
    if finding.code == "SG101" and finding.bytes is not None and finding.bytes.side is None:
        return _VIEW
    if finding.code == "SG109" and (finding.rule or "").startswith("index in range"):
        return _INDEX
    return REMEDIES.get(finding.code, "")
