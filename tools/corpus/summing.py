"""Sums up runs: counts by source and variant, each distinct failure, and the circumstances, as text and as one JSON."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import platform
import re
import shlex
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TextIO

import gpu_evidence

from corpus.counting import FOUND, without_numbers
from corpus.driver import Result
from corpus.sources import source_of

PACKAGES = ("torch", "triton", "transformers", "torchvision", "numpy", "cupy-cuda13x", "cupy-cuda12x", "cuda-bindings")
_SKIPPED = (
    ("cannot be made", "skipped: cannot be made"),
    ("not capturable", "skipped: not capturable"),
    ("", "skipped: fails without shadowgraph"),
)


def circumstances(backend: str, command: Iterable[str]) -> dict[str, Any]:
    """The card and the versions that a run depends on, and the hash of the shadowgraph that was watched with."""
    packages = {}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            packages[name] = version(name)
    words = list(command)
    if "--out" in words:  # wherever that was
        words[words.index("--out") + 1] = "DIR"
    return {
        "command": shlex.join(["tools/clean_programs.py", *words[1:]]),
        "backend": backend,
        "card": _card() if backend == "cuda" else "host",
        "python": platform.python_version(),
        "packages": packages,
        "source": watched_source(),
        "date": time.strftime("%Y-%m-%d"),
    }


def watched_source() -> str:
    """The hash of the source of the shadowgraph that is imported here."""
    spec = importlib.util.find_spec("shadowgraph")
    assert spec is not None
    assert spec.origin is not None
    return gpu_evidence.source(Path(spec.origin).resolve().parent.parent)


def _card() -> str:
    import torch

    return torch.cuda.get_device_name()


class Runs:
    """What one folder holds of clean and of planted runs."""

    def __init__(self, folder: Path) -> None:
        self._abouts = {name: _abouts(folder, name) for name in ("clean", "planted")}
        self.clean, self.planted = (_results(folder, name, self._abouts[name]) for name in ("clean", "planted"))
        if not (self.clean or self.planted):
            raise SystemExit(f"{folder} holds no runs")

    def summary(self) -> dict[str, Any]:
        """All counts, and the failing programs, as plain JSON types."""
        of_clean, of_planted = self._abouts["clean"], self._abouts["planted"]
        both = [*of_clean, *of_planted]
        apart = {key for key in ("backend", "card", "packages", "source") if any(a[key] != both[0][key] for a in both)}
        if apart:
            raise SystemExit(f"the runs differ in {', '.join(sorted(apart))}: they are not one result")
        made = {key: value for key, value in both[0].items() if key not in ("command", "variants", "asked")}
        made["commands"] = sorted({about["command"] for about in both})
        if self.clean:
            made["clean"] = {**_asked(of_clean, self.clean), **counts_of_clean(self.clean)}
        if self.planted:
            made["planted"] = {**_asked(of_planted, self.planted), **counts_of_planted(self.planted)}
        return made

    def show(self, out: TextIO, skipped: bool = False) -> None:
        """The counts as text."""
        for told, results in (("clean", self.clean), ("planted", self.planted)):
            if results:
                print(f"{told}:", *_table(by_source(results)), sep="\n", file=out)
            if skipped:
                reasons = Counter(without_numbers(r["reason"])[:110] for r in results if r["status"] == "skipped")
                print(*(f"{count:>6}  {text}" for text, count in reasons.most_common(60)), sep="\n", file=out)
        kinds: dict[str, list[str]] = defaultdict(list)
        for result in self.clean:
            for message in messages(result):
                kinds[without_numbers(message)].append(result["id"])
            for message in notes(result):
                kinds[f"note: {message}"].append(result["id"])
        for message, ids in sorted(kinds.items(), key=lambda kind: -len(kind[1])):
            print(f"{message}\n    {len(ids)}: {', '.join(sorted(ids)[:8])}", file=out)


def _results(folder: Path, name: str, abouts: list[dict[str, Any]]) -> list[Result]:
    """The results of what was asked for last: a folder may hold more."""
    asked = _asked_ids(abouts)
    found: dict[str, Result] = {}
    for file in sorted(folder.glob(f"{name}*.jsonl")):
        for line in file.read_text().splitlines():
            result = json.loads(line)
            found[result["id"]] = result
    return [result for pid, result in found.items() if pid in asked]


def _abouts(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(file.read_text()) for file in sorted(folder.glob(f"{name}*.about.json"))]


def _asked_ids(abouts: list[dict[str, Any]]) -> set[str]:
    return {pid for about in abouts for pid in about["asked"]}


def _asked(abouts: list[dict[str, Any]], results: list[Result]) -> dict[str, Any]:
    asked = sorted(_asked_ids(abouts))
    return {
        "asked": len(asked),
        "ids": hashlib.sha256("\n".join(asked).encode()).hexdigest()[:12],
        "not_run": len(set(asked) - {result["id"] for result in results}),
    }


def counts_of_clean(results: list[Result]) -> dict[str, Any]:
    """By source and by variant, and every program that failed or was noted."""
    variants = {variant: _variant(variant, results) for variant in _variants(results)}
    ran = sum(result["status"] != "skipped" for result in results)
    noted = {result["id"]: notes(result) for result in results if notes(result)}
    return {
        "sources": by_source(results),
        "variants": variants,
        "notes_per_500": round(500 * len(noted) / max(ran, 1), 2),
        "failing": [
            {"id": r["id"], "status": r["status"], "problems": r["problems"], "messages": messages(r)}
            for r in sorted(results, key=lambda r: str(r["id"]))
            if r["problems"]
        ],
        "noted": dict(sorted(noted.items())),
    }


def _variants(results: list[Result]) -> list[str]:
    return list(dict.fromkeys(name for r in results for name in r.get("variants", ()) if name != "eager"))


def by_source(results: list[Result]) -> dict[str, dict[str, int]]:
    """Counts of statuses for each source, and for all."""
    table: dict[str, Counter[str]] = defaultdict(Counter)
    for result in results:
        for row in (table[source_of(result["id"])], table["all"]):
            row.update(_counted_as(result))
    return {source: dict(row) for source, row in sorted(table.items())}


def _counted_as(result: Result) -> Iterable[str]:
    yield "programs"
    if result["status"] == "skipped":
        yield next(name for begin, name in _SKIPPED if result.get("reason", "").startswith(begin))
        return
    yield "ran"
    yield result["status"]
    if result["status"] == "clean":
        yield "clean, compared bit for bit" if result.get("compared") else "clean, results not comparable"
        if not result.get("nodes"):
            yield "clean, of no nodes"
    if "slow" in result["problems"]:
        yield "slow"
    if notes(result):
        yield "with notes"


def _variant(variant: str, results: list[Result]) -> dict[str, Any]:
    """What one variant did over all programs."""
    answers = [r["variants"][variant] for r in results if variant in r.get("variants", ())]
    problems: Counter[str] = Counter()
    replays: Counter[str] = Counter()
    sizes: dict[str, Counter[str]] = defaultdict(Counter)
    aside: Counter[str] = Counter()
    for answer in answers:
        problems.update(answer.get("problems", ()))
        replays.update(made=answer.get("replays", 0), began=answer.get("began", 0), checked=answer.get("checked", 0))
        aside.update(answer.get("aside", {}))
        written = answer.get("coverage", {})
        if written:
            none = written["written"] - written["exact"] - written["inexact"]
            sizes["graph-written"].update(exact=written["exact"], inexact=written["inexact"], none=none)
        for role, of_role in answer.get("buffers", {}).items():
            sizes[role].update(of_role)
    return {
        "ran": len(answers),
        "problems": dict(problems),
        "replays": {**replays, "share_checked": share(replays["checked"], replays["made"])},
        "bytes": {
            role: {**of_role, "share_exact": share(of_role["exact"], of_role.total())}
            for role, of_role in sorted(sizes.items())
        },
        "aside": dict(aside.most_common()),
    }


def share(part: int, whole: int) -> float:
    """To five places; of nothing all."""
    return round(part / whole, 5) if whole else 1.0


def counts_of_planted(results: list[Result]) -> dict[str, Any]:
    """For each variant how many were found, and each program in which the write was not."""
    made: dict[str, Any] = {}
    for variant in _variants(results):
        rows = {r["id"]: r["variants"][variant]["planted"] for r in results if variant in r.get("variants", ())}
        outcomes = Counter(row["outcome"] for row in rows.values())
        found = [row for row in rows.values() if row["outcome"] == FOUND]
        missing: dict[str, list[str]] = defaultdict(list)
        for pid, row in sorted(rows.items()):
            if row["outcome"] != FOUND:
                why = f"{row['outcome']}: {row['why']}" if row.get("why") else row["outcome"]
                missing[without_numbers(why)].append(pid)
        made[variant] = {
            "ran": len(rows),
            **outcomes,
            "kernel_named": sum(row["culprit"] for row in found),
            "bytes_exact": sum(row["exactly"] for row in found),
            "by_place": dict(Counter(f"{row['where']} {row['outcome']}" for row in rows.values())),
            "not_found": dict(missing),
        }
    dead = sorted(r["id"] for r in results if r["status"] in ("crash", "harness"))
    return {"sources": by_source(results), "variants": made, "broken": dead}


def messages(result: Result) -> list[str]:
    """What a failing program is accused of, or how it was broken, each once."""
    told = []
    for variant, answer in result.get("variants", {}).items():
        told += [f"{f['code']} {f['phase']} by {f['culprit']}: {f['message']}" for f in answer["findings"]]
        told += [answer["error"]] if answer["error"] else []
        told += [f"fault: {what}" for what in answer["faults"]]
        told += [f"outputs differ ({variant}): {answer['diff']}"] if answer.get("diff") else []
        told += [f"slow ({variant}): {answer['ratio']} times"] if "slow" in answer.get("problems", ()) else []
    told += [
        f"{key.replace('_', ' ')}: {result[key]}" for key in ("watched_eager_differs", "eager_differs") if key in result
    ]
    told += [result["reason"]] if result["problems"] and result.get("reason") else []
    return list(dict.fromkeys(_without_paths(text)[:400] for text in told))


def _without_paths(text: str) -> str:
    """A message without the folders of one machine."""
    return re.sub(r"(/[\w.+-]+)+/(site-packages|shadowgraph|tools)/", r"\2/", text)


def notes(result: Result) -> list[str]:
    """The kinds of notes of a program, each once."""
    told = (
        f"{note['code']} {note['phase']} {note['side']} {note['confidence']} ({variant})"
        for variant, answer in result.get("variants", {}).items()
        for note in answer["notes"]
    )
    return list(dict.fromkeys(told))


def _table(rows: dict[str, dict[str, int]]) -> Iterable[str]:
    yield f"{'':<36}" + "".join(f"{source:>10}" for source in rows)
    for name in dict.fromkeys(name for row in rows.values() for name in row):
        yield f"{name:<36}" + "".join(f"{row.get(name, 0):>10}" for row in rows.values())
