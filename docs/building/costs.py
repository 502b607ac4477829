"""What watching costs: tables of what `tools/gpu_evidence.py` kept, each with the card and the source that it is of."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from building.markdown import table
from building.repository import ROOT

EVIDENCE = ROOT / "tools" / "evidence"
TURNS = {
    "sglang, tiny": "live_small",
    "sglang, tiny, EAGLE": "live_speculative",
    "sglang, about 1.5 billion parameters": "live_large",
    "vLLM, tiny, full graphs": "live_vllm_full",
}
Body = dict[str, Any]


def costs(name: str) -> str:
    """The tables of one subject."""
    return _SUBJECTS[name]()


@cache
def evidence(name: str) -> Body:
    """One file of evidence."""
    body: Body = json.loads((EVIDENCE / f"{name}.json").read_text("utf-8"))
    return body


def provenance(name: str) -> str:
    """On what, when and of which source it was measured, and the command that makes it again."""
    body = evidence(name)
    versions = ", ".join(
        f"{package} {body['packages'][package]}" for package in ("torch", "triton") if package in body["packages"]
    )
    return (
        f"*{body['card']}, CUDA {body['cuda']}, {versions}, {body['date']}; {_source(body)}; "
        f"[{name}.json](../tools/evidence/{name}.json), made by `{body['command']}`.*"
    )


def _source(body: Body) -> str:
    return f"source `{body['source']}`" if "source" in body else "of no noted source"


def _number(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, (int, float)) else "" if value is None else str(value)


def _figures(head: tuple[str, ...], rows: list[list[object]]) -> str:
    return table(head, [[_number(value) for value in row] for row in rows], figures=True)


_REPLAYS = (
    ("many small kernels", "small_nodes"),
    ("many small kernels, steady state", "small_nodes_steady"),
    ("many small kernels, steady state, many guards", "small_nodes_steady_20000_guards"),
    ("many small kernels, checked by launches", "small_nodes_launches"),
    ("a graph that keeps the card busy", "gpu_bound"),
    ("a graph that keeps the card busy, steady state", "gpu_bound_steady"),
)


def _replay() -> str:
    body = evidence("bench_cuda")
    head = ("a replay, µs", "unwatched", "guarded, unchecked", "watched", "added", "ratio", "guards", "findings")
    rows: list[list[object]] = []
    for said, key in _REPLAYS:
        if key not in body:
            continue
        one = body[key]
        for what, clock in (("wall time", "wall"), ("on the device", "device"), ("on the host", "host")):
            plain, watched, added = (one[f"{clock}_{kind}_us"] for kind in ("plain", "watched", "added"))
            placed = one.get(f"{clock}_placed_us")
            counts = (one["guards"], one["findings"]) if clock == "wall" else (None, None)
            rows.append([f"{said}: {what}", plain, placed, watched, added, round(watched / plain, 3), *counts])
    return f"{_figures(head, rows)}\n\n{provenance('bench_cuda')}"


def _checks() -> str:
    body = evidence("bench_cuda")
    guards = [
        [g["guards"], g["near_bytes"], g["stride"], g["device_us"], g["bound_us"], g["met"]] for g in body["guards"]
    ]
    diffs = [[d["nbytes"], d["diff_us"], d["copy_us"], d["of_copy"], d["met"]] for d in body["diffs"]]
    compared = ("bytes compared", "compare, µs", "device copy, µs", "share of the copy's speed", "met")
    checked = ("guards", "bytes of each that are read", "bytes apart", "device, µs", "bound, µs", "met")
    return "\n\n".join((_figures(checked, guards), _figures(compared, diffs), provenance("bench_cuda")))


def _capture() -> str:
    body = evidence("bench_cuda")["capture"]
    rows: list[list[object]] = [["unwatched", body["plain_ms"], 1.0, None, None]]
    for mode, one in ((mode, one) for mode, one in body.items() if isinstance(one, dict)):
        rows.append([f"`{mode}`", one["ms"], one["ratio"], one.get("first_replay_ms"), one["met"]])
    head = ("capture", "ms", "ratio", "first replay, ms", "bound met")
    return f"{body['launches']:,} launches.\n\n{_figures(head, rows)}\n\n{provenance('bench_cuda')}"


def _memory() -> str:
    rows = [[row["nbytes"], row["guard_bytes"]] for row in evidence("bench_cuda")["memory_by_size"]]
    return f"{_figures(('buffer, bytes', 'guards, bytes'), rows)}\n\n{provenance('bench_cuda')}"


def _locate() -> str:
    body = evidence("bench_locate")
    keys = ("nodes", "guards", "plain_us", "probed_us", "ratio", "host_before_ms", "host_after_ms", "met")
    head = (
        "nodes",
        "guards",
        "plain, µs",
        "node by node, µs",
        "ratio",
        "host before, ms",
        "host after, ms",
        "bound met",
    )
    sets, reading, kept, told = (body[key] for key in ("write_sets", "reading", "kept_memory", "attribution_1000_add"))
    single: list[list[object]] = [
        [f"write sets of {sets['nodes']:,} nodes over {sets['nbytes']:,} bytes, s", sets["seconds"]],
        *([f"reading a graph of {r['nodes']:,} nodes, ms", r["ms"]] for r in reading),
        [f"host memory that a kept graph of {kept['nodes']:,} nodes takes, bytes a node", kept["bytes_a_node"]],
        ["a capture of 1,000 additions unwatched, ms", told["plain_ms"]],
        ["the same with every launch told its line, ms", told["watched_ms"]],
    ]
    return "\n\n".join(
        (
            _figures(head, [[row[key] for key in keys] for row in body["locate"]]),
            _figures(("once", "figure"), single),
            provenance("bench_locate"),
        )
    )


def _kinds() -> str:
    body = evidence("bench_kinds")
    rows: list[list[object]] = [["the step, unwatched", body["plain_us"], None]]
    rows.append(["the step, observed", body["observed_us"], 1.0])
    for code, took in sorted(body["kinds_us"].items(), key=lambda pair: -pair[1]):
        rows.append([code, took, round(took / body["observed_us"], 3)])
    return f"{_figures(('observed step', 'µs', 'share'), rows)}\n\n{provenance('bench_kinds')}"


def _serving() -> str:
    head = (
        "engine",
        "plain, tokens/s",
        "wrapped, tokens/s",
        "ratio of all rounds",
        "of a block: quartiles",
        "plain beside plain: quartiles",
        "start, plain, s",
        "start, wrapped, s",
        "same tokens",
    )
    rows: list[list[object]] = []
    for said, name in TURNS.items():
        body = evidence(name)
        body = body.get("turns", body)  # beside other steps of the same plan
        speed, up = body["throughput"], [step["said"]["up_s"] for step in body["steps"]]
        medians = [speed[f"{which}_tokens_per_s"][1] for which in ("plain", "wrapped")]
        spreads = [" ".join(map(_number, speed[which])) for which in ("ratio_of_blocks", "plain_beside_plain")]
        rows.append([said, *medians, speed["ratio"], *spreads, *up, speed["same_tokens"]])
    served = []
    for step in evidence("live_many")["steps"]:
        told = f", {len(step['findings']):,} findings" if "findings" in step else ""
        served.append([step["step"], step["said"]["requests"], step["said"]["tokens"], step["said"]["outputs"] + told])
    return "\n\n".join((
        _figures(head, rows),
        *map(provenance, TURNS.values()),
        _figures(("run", "requests", "tokens", "hash of the tokens"), served),
        provenance("live_many"),
        _figures(("on two GPUs", "exit code", "requests served", "findings"), _on_two_gpus()),
        provenance("live_two"),
    ))  # fmt: skip


def _on_two_gpus() -> list[list[object]]:
    rows: list[list[object]] = []
    for step in evidence("live_two")["steps"]:
        codes = " ".join(each["code"] for each in step.get("findings", ()))
        rows.append([step["step"], step["code"], step["said"]["requests"] if step["said"] else "none", codes])
    return rows


def _sanitizer() -> str:
    head = ("run", "a replay, µs", "errors", "writes named")
    rows = [
        [r["run"], r["replay_us"], r["errors"], r["invalid_writes_named"]]
        for r in evidence("compute_sanitizer")["runs"]
    ]
    return f"{_figures(head, rows)}\n\n{provenance('compute_sanitizer')}"


def _tests() -> str:
    body = evidence("gpu_tests")
    counts = ", ".join(f"{body[key]:,} {said}" for key, said in (
        ("passed", "passed"), ("failure", "failed"), ("error", "ended in an error"), ("skipped", "skipped")
    ))  # fmt: skip
    runs = body.get("runs", [])
    often = f", in {len(runs)} runs" if len(runs) > 1 else ""
    return f"Tests on a GPU: {counts}{often}.\n\n{provenance('gpu_tests')}"


def _programs() -> str:
    """Clean programs, plain and watched, and the same with a write past a buffer; other projects' own tests."""
    return "\n\n".join([*_clean_programs(), *_suites()])


def _clean_programs() -> Iterator[str]:
    head = ("programs", "ran", "clean", "accused, broken or other", "notes per 500", "writes planted", "of them found")
    for path in sorted(EVIDENCE.glob("clean_*.json")):
        body = evidence(path.stem)
        clean, planted = body["clean"], body.get("planted", {}).get("variants", {})
        of_all, failing = clean["sources"]["all"], len(clean["failing"])
        counts = [of_all.get(key, 0) for key in ("programs", "ran", "clean")]
        made = sum(row["ran"] - row.get("not planted", 0) for row in planted.values())
        found = sum(row.get("found", 0) for row in planted.values())
        versions = ", ".join(f"{name} {version}" for name, version in body["packages"].items())
        of = f"{body['card']}, {versions}, {body['date']}; {_source(body)}"
        told = f"*{of}; [{path.name}](../tools/evidence/{path.name})*"
        yield f"{_figures(head, [[*counts, failing, clean['notes_per_500'], made, found]])}\n\n{told}"


def _suites() -> Iterator[str]:
    if not (EVIDENCE / "third_party.json").exists():
        return
    rows = [
        [name, suite["versions"][name], suite["tests"], suite["plain"].get("passed", 0), len(suite["differing"])]
        for name, suite in evidence("third_party")["suites"].items()
    ]
    head = ("tests of", "version", "tests", "pass plainly", "other outcome under --shadowgraph")
    yield f"{_figures(head, rows)}\n\n[third_party.json](../tools/evidence/third_party.json)"


def _rest() -> str:
    """Every figure of files that no table above is of."""
    told = {"bench_cuda", "bench_kinds", "bench_locate", "compute_sanitizer", "gpu_tests", "live_many", *TURNS.values()}
    told |= {"third_party", *(path.stem for path in EVIDENCE.glob("clean_*.json"))}
    parts = []
    for path in sorted(EVIDENCE.glob("*.json")):
        if path.stem not in told:
            rows = [[f"`{key}`", _number(value)] for key, value in leaves(evidence(path.stem))]
            parts.append(
                f"### {path.stem}\n\n{table(('figure', ''), rows)}\n\n[{path.name}](../tools/evidence/{path.name})"
            )
    return "\n\n".join(parts)


def leaves(body: object, at: str = "") -> Iterator[tuple[str, object]]:
    """Every value that is neither a list nor an object, with the path that leads to it; no circumstances' packages."""
    pairs = body.items() if isinstance(body, dict) else enumerate(body) if isinstance(body, list) else None
    if pairs is None:
        yield at, body
        return
    for key, value in pairs:
        if at or key != "packages":
            yield from leaves(value, f"{at}.{key}" if at else str(key))


_SUBJECTS: dict[str, Callable[[], str]] = {
    "replay": _replay,
    "kinds": _kinds,
    "checks": _checks,
    "capture": _capture,
    "memory": _memory,
    "locate": _locate,
    "serving": _serving,
    "sanitizer": _sanitizer,
    "tests": _tests,
    "programs": _programs,
    "rest": _rest,
}
