"""Redaction of dumps: drops all values of the program's memory, and texts that may quote them.

A float buffer or a freed buffer may still hold prompt ids of an earlier tenant, so no contents are kept at all.
Addresses, shapes, offsets, dtypes, kernels and source lines stay.
"""

from __future__ import annotations

import re
from dataclasses import replace

import msgspec

from shadowgraph.checks.verdicts import verdict
from shadowgraph.dumps.collecting import Collected, GraphNow
from shadowgraph.dumps.schema import LeftOut
from shadowgraph.model.device_nodes import DeviceNode, NodeKind
from shadowgraph.model.failures import Failure
from shadowgraph.model.findings import (
    Alias,
    Argument,
    Culprit,
    DanglingDetail,
    Finding,
    Rebinding,
    Staleness,
    Successor,
)
from shadowgraph.model.overrun_extents import Origin, Reached
from shadowgraph.model.run_facts import RunFacts
from shadowgraph.tracking.names import Owner

_REASON = "redacted"
_MEMSET = "memset"
_KEY = re.compile(r"""\[((?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\]"'])*)\]""")
# Kept are identifiers, and numbers of one or two digits, which are positions in short lists.
_PLAIN = re.compile(r"""\d\d?|"[A-Za-z_]\w{0,39}"|[A-Za-z_][\w.]*|<\w+ \#\d+>""")
_ALLOCATION = re.compile(r"\w+\[[\d, ]*\] (?:from|at) ")  # an unowned buffer: dtype, shape and line


def redacted(collected: Collected) -> Collected:
    """The same contents without values. The bytes were not collected in the first place."""
    facts = collected.facts
    shown = [finding for finding in (*facts.findings, *facts.notes) if finding.window is not None]
    dropped = [LeftOut("contents of memory", len(collected.live), sum(b.nbytes for b in collected.live), _REASON)]
    if shown:
        dropped.append(LeftOut("expected and found bytes of findings", len(shown), 0, _REASON))
    if facts.last_values:
        sizes = [len(data) for _, _, data in facts.last_values]
        dropped.append(LeftOut("mirrored values", len(sizes), sum(sizes), _REASON))
    return replace(
        collected,
        facts=redacted_facts(facts),
        owners=tuple(Owner(hidden(owner.path), owner.view) for owner in collected.owners),
        graphs=tuple(map(_graph, collected.graphs)),
        unread=tuple(replace(each, name=hidden(each.name)) for each in collected.unread),
        left_out=(*collected.left_out, *dropped),
    )


def _graph(graph: GraphNow) -> GraphNow:
    return graph if graph.device is None else replace(graph, device=tuple(map(_node, graph.device)))


def _node(node: DeviceNode) -> DeviceNode:
    """A node without the value of its memset, which its name may contain."""
    name = _MEMSET if node.kind is NodeKind.MEMSET else node.name
    return replace(node, name=name, inner=tuple(map(_node, node.inner)))


def hidden(path: str) -> str:
    """An owner path without keys that may be tokens or text: ``cache[...].value``."""
    if _ALLOCATION.match(path):
        return path
    return _KEY.sub(lambda key: key[0] if _PLAIN.fullmatch(key[1]) else "[...]", path)


def redacted_facts(facts: RunFacts) -> RunFacts:
    """Facts of a report without values of memory and without texts that may quote them."""
    return msgspec.structs.replace(
        facts,
        findings=tuple(map(redacted_finding, facts.findings)),
        notes=tuple(map(redacted_finding, facts.notes)),
        faults=_faults(facts.faults),
        watches=tuple((hidden(name), changes, dropped) for name, changes, dropped in facts.watches),
        failures=tuple(map(redacted_failure, facts.failures)),
        last_values=(),
        last_launches=tuple(
            msgspec.structs.replace(launch, values=(), asserted=None) for launch in facts.last_launches
        ),
    )


def redacted_failure(failure: Failure) -> Failure:
    """A failure without its text, the values of its plan and the facts of its requests."""
    plan, batch = failure.plan, failure.batch
    if plan is not None:
        writers = tuple(msgspec.structs.replace(one, culprit=_culprit(one.culprit)) for one in plan.writers)
        plan = msgspec.structs.replace(plan, indptr=(), buffer=hidden(plan.buffer), writers=writers, found="")
    if batch is not None:
        batch = msgspec.structs.replace(batch, lengths=(), requests=())
    return msgspec.structs.replace(failure, said="", plan=plan, batch=batch)


def redacted_finding(finding: Finding) -> Finding:
    """A finding without values and quotes; its geometry stays."""
    buffer = finding.buffer
    named = msgspec.structs.replace(buffer, name=hidden(buffer.name), names=tuple(map(hidden, buffer.names)))
    neighbour = finding.neighbour
    if neighbour is not None:
        neighbour = msgspec.structs.replace(neighbour, name=hidden(neighbour.name))
    changed = msgspec.structs.replace(
        finding,
        buffer=named,
        culprit=_culprit(finding.culprit),
        candidates=tuple(map(_culprit, finding.candidates)),
        aliases=tuple(Alias(hidden(alias.name), alias.relation) for alias in finding.aliases),
        neighbour=neighbour,
        ending=None if finding.ending is None else _ending(finding.ending),
        stale=None if finding.stale is None else _staleness(finding.stale),
        rebound=None if finding.rebound is None else _rebinding(finding.rebound),
        continues=None if finding.continues is None else _origin(finding.continues),
        reaches=tuple(map(_reached, finding.reaches)),
        batch=None if finding.batch is None else msgspec.structs.replace(finding.batch, lengths=(), requests=()),
        window=None,
        rule=None if finding.rule is None else finding.rule.split(": ", 1)[0],
    )
    return msgspec.structs.replace(changed, message=verdict(changed))


def _ending(ending: DanglingDetail) -> DanglingDetail:
    now = ending.replaced_by
    return msgspec.structs.replace(
        ending, victims=tuple(map(_successor, ending.victims)), replaced_by=None if now is None else _successor(now)
    )


def _staleness(stale: Staleness) -> Staleness:
    return msgspec.structs.replace(stale, padded=tuple(map(hidden, stale.padded)))


def _rebinding(rebound: Rebinding) -> Rebinding:
    now = None if rebound.now is None else _successor(rebound.now)
    return msgspec.structs.replace(rebound, attribute=hidden(rebound.attribute), now=now)


def _origin(origin: Origin) -> Origin:
    return msgspec.structs.replace(origin, buffer=hidden(origin.buffer))


def _reached(reached: Reached) -> Reached:
    return msgspec.structs.replace(reached, name=hidden(reached.name))


def _successor(buffer: Successor) -> Successor:
    return msgspec.structs.replace(buffer, name=hidden(buffer.name))


def _culprit(culprit: Culprit) -> Culprit:
    return msgspec.structs.replace(
        culprit,
        name=_MEMSET if culprit.name and culprit.name.startswith(f"{_MEMSET} ") else culprit.name,
        kernel=_MEMSET if culprit.kernel and culprit.kernel.startswith(f"{_MEMSET} ") else culprit.kernel,
        arguments=tuple(map(_argument, culprit.arguments)),
        led_by=None if culprit.led_by is None else _argument(culprit.led_by),
    )


def _argument(argument: Argument) -> Argument:
    return msgspec.structs.replace(argument, buffer=hidden(argument.buffer))


def redacted_fault(fault: str) -> str:
    """An internal error's location and class, without the exception's message."""
    return ": ".join(fault.split(": ", 2)[:2])


def _faults(counts: dict[str, int]) -> dict[str, int]:
    """Internal errors without messages: a user's own rule may have put a value into one."""
    found: dict[str, int] = {}
    for fault, count in counts.items():
        brief = redacted_fault(fault)
        found[brief] = found.get(brief, 0) + count
    return found
