"""Whether a summary is as good as one of an older shadowgraph, made by the same script of the same programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

LEAST_FOUND = 0.99  # of the planted writes that the baseline finds
Summary = dict[str, Any]


def compared(made: Summary, base: Summary) -> tuple[Summary, list[str]]:
    """The comparison, and in what `made` is worse than `base`."""
    found = dict(_planted(made, base))
    checked = dict(_checked(made, base))
    told = {"source": base["source"], "packages": base["packages"], "planted": found, "clean": checked}
    return told, [*_others(made, base), *_less_found(found), *_less_checked(checked)]


def _others(made: Summary, base: Summary) -> Iterator[str]:
    """What makes the comparison none."""
    for kind in ("clean", "planted"):
        if (kind in made) != (kind in base):
            yield f"{kind} programs were run on one side only"
        elif kind in made and made[kind]["ids"] != base[kind]["ids"]:
            yield f"other {kind} programs were asked for"
        elif kind in made and made[kind]["not_run"]:
            yield f"{made[kind]['not_run']} {kind} programs were not run"


def _planted(made: Summary, base: Summary) -> Iterator[tuple[str, Summary]]:
    for variant, before in base.get("planted", {}).get("variants", {}).items():
        now = made.get("planted", {}).get("variants", {}).get(variant)
        if now is None:
            continue
        missed, missed_before = (_not_found(row) for row in (now, before))
        lost = sorted(missed - missed_before)
        gone = max(0, before["ran"] - now["ran"])
        of = before.get("found", 0)
        kept = (of - len(lost) - gone) / of if of else 1.0
        yield variant, {"found_before": of, "found": now.get("found", 0), "share_kept": round(kept, 4), "lost": lost}


def _not_found(row: Summary) -> set[str]:
    return {pid for ids in row["not_found"].values() for pid in ids}


def _less_found(found: Summary) -> Iterator[str]:
    for variant, row in found.items():
        if row["share_kept"] < LEAST_FOUND:
            yield f"{variant}: finds {row['share_kept']:.1%} of the planted writes that the baseline finds"


def _checked(made: Summary, base: Summary) -> Iterator[tuple[str, Summary]]:
    """By variant, as pairs: before, now."""
    for variant, before in base.get("clean", {}).get("variants", {}).items():
        now = made.get("clean", {}).get("variants", {}).get(variant)
        if now is None:
            continue
        sizes = {}
        for role, size in before["bytes"].items():
            here = now["bytes"].get(role, {"share_exact": 0.0})
            share, nbytes = [size["share_exact"], here["share_exact"]], [size.get("exact", 0), here.get("exact", 0)]
            sizes[role] = {"share": share, "bytes": nbytes}
        checked = [before["replays"]["share_checked"], now["replays"]["share_checked"]]
        yield variant, {"replays checked": checked, "guarded": sizes}


def _less_checked(checked: Summary) -> Iterator[str]:
    """Fewer bytes may be all that there are, and a lower share may come of more: it is worse where both are lower."""
    for variant, told in checked.items():
        before, now = told["replays checked"]
        if now < before:
            yield f"{variant}: share of replays checked {now}, {before} before"
        for role, pairs in told["guarded"].items():
            if all(now < before for before, now in pairs.values()):
                (_, share), (before, now) = pairs["share"], pairs["bytes"]
                yield f"{variant}: {now} {role} bytes guarded ({share:.2%}), {before} before"
