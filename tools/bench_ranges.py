"""Measure `RangeIndex` against its requirement, and against the package intervaltree.

Three layouts of buffers: *disjoint* (an allocator's live blocks), *random* (views that overlap by chance, about four
to an address) and *nested* (slabs in slabs, eight to each, under one range that covers all). For each: the time to
build the index in bulk, to answer overlap queries, and to make as many rounds of add, query and remove as a tenth of
the queries. Both sides get ready-made range objects, and their answers are compared before any time is reported.

Exit code 0 if build and queries meet the requirement in every layout, 1 if not, 2 for wrong arguments.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from time import perf_counter

from intervaltree import Interval, IntervalTree

from shadowgraph.model.ranges import ByteRange, RangeIndex

BUILD_LIMIT = 1.0  # seconds for REQUIRED_BUFFERS; both limits scale with the sizes asked for
QUERY_LIMIT = 0.1  # seconds for REQUIRED_QUERIES
REQUIRED_BUFFERS, REQUIRED_QUERIES = 100_000, 10_000
GRAIN = 512  # bytes: the alignment of torch's allocator
FAN_OUT = 8  # nested layout: ranges directly inside a range

STEPS = ("build", "query", "change")

Spans = Sequence[ByteRange]


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds for the three steps, and how many ranges the queries found."""

    build: float
    query: float
    change: float
    found: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """One layout: our medians, the reference's, and reference time over our time for each step."""

    layout: str
    ours: Times
    reference: Times
    ratios: dict[str, float]


def disjoint(count: int) -> list[ByteRange]:
    """Blocks of 512 B to 8 KiB with gaps between them, ascending as an allocator reports them."""
    rng, spans, at = random.Random(1), [], 0
    for _ in range(count):
        size = GRAIN * rng.randint(1, 16)
        spans.append(ByteRange(at, at + size))
        at += size + GRAIN * rng.randint(1, 4)
    return spans


def scattered(count: int) -> list[ByteRange]:
    """Starts at random, sizes such that about four ranges cover an address."""
    rng, mean = random.Random(2), 8 * GRAIN
    starts = [rng.randrange(count * mean // 4) for _ in range(count)]
    return [ByteRange(start, start + rng.randint(1, 2 * mean)) for start in starts]


def nested(count: int) -> list[ByteRange]:
    """One range over everything, eight in it, eight in each of those, until `count` are made."""
    depth = 1
    while FAN_OUT**depth < count:
        depth += 1
    spans = [ByteRange(0, GRAIN * FAN_OUT**depth)]
    for i in range(1, count):
        parent, place = spans[(i - 1) // FAN_OUT], (i - 1) % FAN_OUT
        size = parent.nbytes // FAN_OUT
        start = parent.start + place * size
        spans.append(ByteRange(start, start + size))
    return spans


LAYOUTS: dict[str, Callable[[int], list[ByteRange]]] = {"disjoint": disjoint, "random": scattered, "nested": nested}


def measure_ours(spans: Spans, queries: Spans, changes: Spans) -> Times:
    """One run of `RangeIndex`."""
    items = [(span, i) for i, span in enumerate(spans)]
    gc.collect()
    begin = perf_counter()
    index = RangeIndex(items)
    built = perf_counter()
    found = sum(len(index.overlapping(query.start, query.stop)) for query in queries)
    queried = perf_counter()
    for span in changes:
        handle = index.add(span, -1)
        index.overlapping(span.start, span.stop)
        index.remove(handle)
    return Times(built - begin, queried - built, perf_counter() - queried, found)


def measure_reference(spans: Spans, queries: Spans, changes: Spans) -> Times:
    """One run of intervaltree, over the same ranges."""
    items = [Interval(span.start, span.stop, i) for i, span in enumerate(spans)]
    extras = [Interval(span.start, span.stop, -1) for span in changes]
    gc.collect()
    begin = perf_counter()
    tree = IntervalTree(items)
    built = perf_counter()
    found = sum(len(tree.overlap(query.start, query.stop)) for query in queries)
    queried = perf_counter()
    for extra in extras:
        tree.add(extra)
        tree.overlap(extra.begin, extra.end)
        tree.remove(extra)
    return Times(built - begin, queried - built, perf_counter() - queried, found)


def median(runs: Sequence[Times]) -> Times:
    """The median of each step on its own."""
    build, query, change = (statistics.median(getattr(run, step) for run in runs) for step in STEPS)
    return Times(build, query, change, runs[0].found)


def check_answers(spans: Spans, queries: Spans) -> None:
    """Stop if the two sides find different ranges in a sample of the queries."""
    index = RangeIndex((span, i) for i, span in enumerate(spans))
    tree = IntervalTree(Interval(span.start, span.stop, i) for i, span in enumerate(spans))
    for query in queries:
        ours = {value for _, value in index.overlapping(query.start, query.stop)}
        if ours != {hit.data for hit in tree.overlap(query.start, query.stop)}:
            raise AssertionError(f"RangeIndex and intervaltree disagree about {query}")


def compare(layout: str, buffers: int, queries: int, runs: int, reference_runs: int) -> Comparison:
    """Check the answers of one layout, then measure both sides."""
    spans, rng = LAYOUTS[layout](buffers), random.Random(3)
    last = max(span.stop for span in spans)
    asked = [ByteRange(at, at + GRAIN) for at in (rng.randrange(last) for _ in range(queries))]
    changes = asked[: max(1, queries // 10)]
    check_answers(spans, asked[:1000])
    ours = median([measure_ours(spans, asked, changes) for _ in range(runs)])
    reference = median([measure_reference(spans, asked, changes) for _ in range(reference_runs)])
    ratios = {step: getattr(reference, step) / getattr(ours, step) for step in STEPS}
    return Comparison(layout, ours, reference, ratios)


def meets(times: Sequence[Times], limits: dict[str, float]) -> bool:
    """Whether every layout is within every limit."""
    return all(getattr(layout, step) < limit for layout in times for step, limit in limits.items())


def render(results: Sequence[Comparison], limits: dict[str, float]) -> str:
    """The table, the ratio to intervaltree, and the verdict on both."""
    lines = [f"{'layout':<10}{'step':<8}{'RangeIndex':>12}{'intervaltree':>14}{'ratio':>9}   limit"]
    for result in results:
        for step in STEPS:
            ours, reference = getattr(result.ours, step), getattr(result.reference, step)
            limit = limits.get(step)
            verdict = "-" if limit is None else f"{limit:.3f} s {'met' if ours < limit else 'MISSED'}"
            cells = f"{ours:>10.4f} s{reference:>12.4f} s{result.ratios[step]:>8.1f}x   {verdict}"
            lines.append(f"{result.layout:<10}{step:<8}{cells}")
    lines.append("")
    for step in STEPS:
        ratios = [result.ratios[step] for result in results]
        span = f"{min(ratios):.1f} to {max(ratios):.1f}"
        lines.append(f"{step}: intervaltree takes {span} times as long as RangeIndex")
    asked = f"build < {limits['build']:.3f} s and queries < {limits['query']:.3f} s in every layout"
    lines.append(f"requirement: {asked}")
    for name, times in (("RangeIndex", [r.ours for r in results]), ("intervaltree", [r.reference for r in results])):
        lines.append(f"{name}: {'met' if meets(times, limits) else 'NOT MET'}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; the exit code says whether the requirement is met."""
    parser = argparse.ArgumentParser(description="Measure RangeIndex against its requirement and intervaltree.")
    parser.add_argument("--buffers", type=int, default=REQUIRED_BUFFERS, help="ranges in the index (%(default)s)")
    parser.add_argument("--queries", type=int, default=REQUIRED_QUERIES, help="overlap queries (%(default)s)")
    parser.add_argument("--runs", type=int, default=5, help="runs of RangeIndex to take medians of (%(default)s)")
    parser.add_argument("--reference-runs", type=int, default=3, help="runs of intervaltree (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object in place of the table")
    options = parser.parse_args(arguments)
    if min(options.buffers, options.queries, options.runs, options.reference_runs) < 1:
        parser.error("every number must be at least 1")
    limits = {
        "build": BUILD_LIMIT * options.buffers / REQUIRED_BUFFERS,
        "query": QUERY_LIMIT * options.queries / REQUIRED_QUERIES,
    }
    sizes = (options.buffers, options.queries, options.runs, options.reference_runs)
    results = [compare(layout, *sizes) for layout in LAYOUTS]
    met = meets([result.ours for result in results], limits)
    if options.json:
        report = {"buffers": options.buffers, "queries": options.queries, "limits": limits, "met": met}
        print(json.dumps(report | {"results": [asdict(result) for result in results]}, indent=2))
    else:
        print(f"{options.buffers} buffers, {options.queries} queries, {max(1, options.queries // 10)} changes")
        print(render(results, limits))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
