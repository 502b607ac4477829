"""What every engine promises, whatever it runs on. A further engine joins by a bench of its own in `BENCHES`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

import pytest
from benches import Bench, CudaBench, HostBench

from shadowgraph.engines.base import RANGES, WINDOW, Engine, Evidence, Shadow
from shadowgraph.model.buffers import Buffer, Role
from shadowgraph.model.canary import canary
from shadowgraph.model.guards import Guard, Side, guards_of
from shadowgraph.model.ranges import ByteRange

BENCHES: dict[str, Callable[[], Bench]] = {
    "numpy": HostBench, "numpy that keeps": partial(HostBench, keeps=True), "cupy": CudaBench,
}  # fmt: skip
START, NBYTES = 8192, 100  # of the guarded buffer, from the bench's base
HEAD, TAIL, NEAR = 1024, 2048, 64


@pytest.fixture(params=["numpy", "numpy that keeps", pytest.param("cupy", marks=pytest.mark.gpu)])
def bench(request: pytest.FixtureRequest) -> Bench:
    return BENCHES[request.param]()


@pytest.fixture
def engine(bench: Bench) -> Engine:
    return bench.engine


@pytest.fixture
def armed(bench: Bench, engine: Engine) -> tuple[Guard, Guard]:
    """The guards before and after a buffer, armed."""
    buffer = Buffer(1, bench.base + START, NBYTES, Role.STATIC, head_guard=HEAD, tail_guard=TAIL)
    before, after = guards_of(buffer, NEAR)
    engine.write_canaries((before.whole,))
    engine.write_canaries((after.whole,))
    return before, after


def flip(bench: Bench, addresses: Iterable[int]) -> None:
    """Change single bytes to something else than they are."""
    for address in addresses:
        bench.write(address, bytes([bench.bytes_at(address, 1)[0] ^ 0xFF]))


def checked(engine: Engine, *guards: Guard, in_full: bool = False) -> tuple[Evidence[object], ...]:
    engine.check("tag", guards, in_full=in_full)
    results = engine.poll(wait=True)
    assert len(results) <= 1
    return results[0].evidence if results else ()


def taken(engine: Engine, parts: Sequence[tuple[object, ByteRange]]) -> Shadow:
    """A shadow with copies made now."""
    shadow = engine.shadow(parts)
    engine.check("take", (), take=shadow)
    assert engine.poll(wait=True) == []
    return shadow


def compared(bench: Bench, where: ByteRange, addresses: Iterable[int]) -> Evidence[object]:
    """The evidence of a snapshot whose memory changes at the given addresses."""
    shadow = taken(bench.engine, [("key", where)])
    flip(bench, addresses)
    bench.engine.check("tag", (), compare=shadow)
    (result,) = bench.engine.poll(wait=True)
    (evidence,) = result.evidence
    return evidence


def runs_of(addresses: Iterable[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for address in sorted(addresses):
        if runs and address == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], address)
        else:
            runs.append((address, address))
    return runs


def test_arming_fills_the_guard_and_nothing_else(bench: Bench, armed: tuple[Guard, Guard]) -> None:
    for guard in armed:
        position = guard.whole.start - bench.base
        assert bench.bytes_at(guard.whole.start, guard.whole.nbytes) == canary(position, guard.whole.nbytes)
    assert bench.bytes_at(bench.base + START, NBYTES) == b"\x11" * NBYTES
    assert bench.bytes_at(bench.base + START - HEAD - 1, 1) == b"\x11"
    assert bench.bytes_at(bench.base + START + NBYTES + TAIL, 1) == b"\x11"


def test_intact_guards_give_a_result_without_evidence(engine: Engine, armed: tuple[Guard, Guard]) -> None:
    assert checked(engine, *armed) == ()
    assert checked(engine) == ()


def test_writes_inside_the_buffer_are_no_damage(bench: Bench, engine: Engine, armed: tuple[Guard, Guard]) -> None:
    bench.write(bench.base + START, b"\x55" * NBYTES)
    assert checked(engine, *armed) == ()


@pytest.mark.parametrize("offset", [0, 1, NEAR - 1])
def test_every_byte_of_the_near_guard_is_watched(
    bench: Bench, engine: Engine, armed: tuple[Guard, Guard], offset: int
) -> None:
    before, after = armed
    flip(bench, [after.near.start + offset, before.near.start + offset])
    first, second = checked(engine, before, after)
    assert (first.subject, first.first, first.last) == (before, before.near.start + offset, before.near.start + offset)
    assert (second.subject, second.first, second.last) == (after, after.near.start + offset, after.near.start + offset)
    assert first.count == second.count == 1


def test_a_near_hit_leads_to_the_full_extent(bench: Bench, engine: Engine, armed: tuple[Guard, Guard]) -> None:
    _, after = armed
    far = after.whole.start + 1500
    flip(bench, [after.whole.start + 3, far, far + 1])
    (evidence,) = checked(engine, after)
    assert (evidence.first, evidence.last, evidence.count) == (after.whole.start + 3, far + 1, 3)
    assert evidence.ranges == ((after.whole.start + 3, after.whole.start + 3), (far, far + 1))


def test_the_far_guard_alone_has_its_turn(bench: Bench, engine: Engine) -> None:
    """Of a few guards a near part is read each time; what lies beyond comes up within as many checks as there are."""
    guards = [
        guard
        for at in range(6)
        for guard in guards_of(
            Buffer(at, bench.base + 4096 + at * 9216, 64, Role.STATIC, head_guard=64, tail_guard=8192), NEAR
        )
    ]
    for guard in guards:
        engine.write_canaries((guard.whole,))
    tails = [guard for guard in guards if guard.side is Side.AFTER]
    for guard in (tails[1], tails[4]):
        flip(bench, [guard.near.stop, guard.whole.stop - 1])
    found = [evidence for _ in range(len(guards)) for evidence in checked(engine, *guards)]
    assert {evidence.subject for evidence in found} == {tails[1], tails[4]}
    assert len(found) == 2, "each once"
    for evidence in found:
        assert isinstance(evidence.subject, Guard)
        assert (evidence.first, evidence.last, evidence.count) == (
            evidence.subject.near.stop, evidence.subject.whole.stop - 1, 2,
        )  # fmt: skip


def test_a_check_in_full_reads_every_byte(bench: Bench, engine: Engine) -> None:
    guards = [
        guard
        for at in range(6)
        for guard in guards_of(
            Buffer(at, bench.base + 4096 + at * 9216, 64, Role.STATIC, head_guard=64, tail_guard=1024 * at), NEAR
        )
    ]
    for guard in guards:
        engine.write_canaries((guard.whole,))
    assert checked(engine, *guards, in_full=True) == ()
    broken = [guard for guard in guards if guard.side is Side.AFTER and guard.whole.nbytes > NEAR]
    for guard in broken:
        flip(bench, [guard.whole.stop - 1])
    found = checked(engine, *guards, in_full=True)
    assert [evidence.subject for evidence in found] == broken, "in the order in which they were asked for"
    assert checked(engine, *guards, in_full=True) == ()


def test_a_broken_guard_is_told_once_and_when_it_changes(
    bench: Bench, engine: Engine, armed: tuple[Guard, Guard]
) -> None:
    before, after = armed
    bench.write(after.whole.start, bytes(TAIL))
    assert len(checked(engine, before, after)) == 1
    assert checked(engine, before, after) == ()
    assert checked(engine, before, after, in_full=True) == ()
    held = bytes(TAIL) if engine.keeps else canary(after.whole.start - bench.base, TAIL)
    assert bench.bytes_at(after.whole.start, TAIL) == held, "it may be what the program reads"
    bench.write(after.whole.start, b"\x01")
    (again,) = checked(engine, before, after)
    assert again.first == after.whole.start, "a second overrun is seen as well as the first"
    assert again.found[16 if again.window < again.first else 0] == 1
    assert checked(engine, before, after) == ()


def test_a_guard_that_was_broken_is_whole_when_it_is_armed_again(
    bench: Bench, engine: Engine, armed: tuple[Guard, Guard]
) -> None:
    before, after = armed
    for guard in armed:
        for _ in range(2):
            bench.write(guard.near.start, b"\x05\x06")
            (found,) = checked(engine, before, after)
            assert (found.subject, found.count) == (guard, 2), "the same bytes again are seen again"
            engine.write_canaries((guard.whole,), here=True)
            assert checked(engine, before, after) == ()
            assert bench.bytes_at(guard.whole.start, 64) == canary(guard.whole.start - bench.base, 64)


def test_damage_beyond_the_near_part_is_told_once_too(bench: Bench, engine: Engine, armed: tuple[Guard, Guard]) -> None:
    _, after = armed
    flip(bench, [after.near.stop + 9])
    assert len(checked(engine, *armed, in_full=True)) == 1
    assert checked(engine, *armed, in_full=True) == ()
    flip(bench, [after.near.start])
    (found,) = checked(engine, *armed)
    assert found.first == after.near.start
    assert found.count == (2 if engine.keeps else 1)


def test_a_broken_guard_is_no_news_to_a_check_that_looks_wider(
    bench: Bench, engine: Engine, armed: tuple[Guard, Guard]
) -> None:
    """Launch by launch a guard is read over its whole length, and at the end of a replay near its buffer again."""
    wide = tuple(replace(guard, near=guard.whole) for guard in armed)
    for guard, one, other in ((armed[0], armed, wide), (armed[1], armed, wide), (armed[0], wide, armed)):
        bench.write(guard.near.start + 8, b"\x05\x06")
        assert len(checked(engine, *one)) == 1
        assert checked(engine, *other) == ()
        assert checked(engine, *one) == ()
        assert checked(engine, *other, in_full=True) == ()
        engine.write_canaries((guard.whole,), here=True)
        bench.write(guard.near.start + 8, b"\x05\x06")
        assert len(checked(engine, *other)) == 1, "armed again it is news to either"
        engine.write_canaries((guard.whole,), here=True)


def test_a_check_in_full_tells_what_else_broke_far_away(
    bench: Bench, engine: Engine, armed: tuple[Guard, Guard]
) -> None:
    _, after = armed
    flip(bench, [after.near.start])
    assert len(checked(engine, *armed)) == 1
    flip(bench, [after.whole.stop - 3])
    (found,) = checked(engine, *armed, in_full=True)
    assert found.last == after.whole.stop - 3
    assert checked(engine, *armed, in_full=True) == ()


def test_a_guard_in_memory_that_is_not_ours_is_told_once_too(
    bench: Bench, engine: Engine, armed: tuple[Guard, Guard]
) -> None:
    lent = tuple(replace(guard, rearm=False) for guard in armed)
    flip(bench, [lent[1].near.start])
    held = bench.bytes_at(lent[1].whole.start, TAIL)
    assert len(checked(engine, *lent)) == 1
    assert len(checked(engine, *lent)) == (0 if engine.keeps else 1)
    assert bench.bytes_at(lent[1].whole.start, TAIL) == held, "no check writes there"
    engine.write_canaries((lent[1].whole,), here=True)
    assert checked(engine, *lent, in_full=True) == ()


@pytest.mark.parametrize(
    ("side", "offset", "truncated"),
    [
        (Side.AFTER, TAIL - 1, True),
        (Side.AFTER, TAIL - 2, False),
        (Side.AFTER, 0, False),
        (Side.BEFORE, 0, True),
        (Side.BEFORE, 1, False),
        (Side.BEFORE, HEAD - 1, False),
    ],
)
def test_evidence_is_truncated_where_the_far_end_changed(
    bench: Bench, engine: Engine, armed: tuple[Guard, Guard], side: Side, offset: int, truncated: bool
) -> None:
    guard = armed[0] if side is Side.BEFORE else armed[1]
    flip(bench, {guard.near.start + 1, guard.whole.start + offset})
    (evidence,) = checked(engine, guard)
    assert evidence.truncated is truncated


def test_the_window_after_a_buffer_starts_at_the_damage(
    bench: Bench, engine: Engine, armed: tuple[Guard, Guard]
) -> None:
    _, after = armed
    bench.write(after.whole.start + 40, b"\x07" * 1000)
    (evidence,) = checked(engine, after)
    assert evidence.window == after.whole.start + 24  # 16 bytes of context
    assert evidence.expected == canary(evidence.window - bench.base, WINDOW)
    assert evidence.found == evidence.expected[:16] + b"\x07" * (WINDOW - 16)


def test_the_window_before_a_buffer_ends_at_the_damage(
    bench: Bench, engine: Engine, armed: tuple[Guard, Guard]
) -> None:
    before, _ = armed
    bench.write(before.whole.stop - 900, b"\x07" * 890)
    (evidence,) = checked(engine, before)
    assert evidence.window + WINDOW == before.whole.stop - 10
    assert evidence.expected == canary(evidence.window - bench.base, WINDOW)
    assert evidence.found == b"\x07" * WINDOW


def test_a_small_guard_before_a_buffer_is_shown_from_its_start(bench: Bench, engine: Engine) -> None:
    (before,) = guards_of(Buffer(1, bench.base + START, NBYTES, Role.STATIC, head_guard=64), NEAR)
    engine.write_canaries((before.whole,))
    flip(bench, [before.whole.start + 2])
    (evidence,) = checked(engine, before)
    assert (evidence.window, evidence.expected) == (before.whole.start, canary(START - 64, 64))


@pytest.mark.parametrize(
    ("nbytes", "changed", "window", "length"), [(40, 3, 0, 40), (600, 590, 574, 26), (600, 9, 0, 256)]
)
def test_the_window_stays_inside_what_was_compared(
    bench: Bench, nbytes: int, changed: int, window: int, length: int
) -> None:
    where = ByteRange(bench.base + 512, bench.base + 512 + nbytes)
    evidence = compared(bench, where, [where.start + changed])
    assert evidence.window == where.start + window
    assert len(evidence.expected) == len(evidence.found) == length
    assert [i for i in range(length) if evidence.expected[i] != evidence.found[i]] == [changed - window]


@pytest.mark.parametrize(
    "offsets",
    [
        {0},
        {511},
        {0, 511},
        {5, 6, 7, 9, 10, 300},
        set(range(512)),
        set(range(0, 2 * RANGES, 2)),
        set(range(1, 2 * RANGES + 2, 2)),
        {o for o in range(512) if o % 5 < 3},
    ],
    ids=["first", "last", "both ends", "runs", "all", "as many as kept", "one more than kept", "many"],
)
def test_counts_and_ranges_are_exact(bench: Bench, offsets: set[int]) -> None:
    where = ByteRange(bench.base + 2000, bench.base + 2512)
    addresses = {where.start + offset for offset in offsets}
    evidence = compared(bench, where, addresses)
    runs = runs_of(addresses)
    assert (evidence.subject, evidence.first, evidence.last) == ("key", min(addresses), max(addresses))
    assert (evidence.count, evidence.ranges_total) == (len(addresses), len(runs))
    assert list(evidence.ranges) == runs[:RANGES]
    listed = [ByteRange(first, last + 1) for first, last in runs[:RANGES]]
    beyond = [ByteRange(listed[-1].stop, evidence.last + 1)] if len(runs) > RANGES else []
    assert list(evidence.parts) == listed + beyond


def test_a_snapshot_tells_only_of_parts_that_changed(bench: Bench, engine: Engine) -> None:
    parts = [(name, ByteRange(bench.base + at, bench.base + at + 64)) for name, at in (("a", 0), ("b", 64), ("c", 32))]
    snapshot = taken(engine, parts)
    assert list(snapshot.parts) == parts
    flip(bench, [bench.base + 70, bench.base + 40])
    engine.check("tag", (), compare=snapshot)
    (result,) = engine.poll(wait=True)
    assert [(e.subject, e.first - bench.base, e.count) for e in result.evidence] == [
        ("a", 40, 1),
        ("b", 70, 1),
        ("c", 40, 2),
    ]


def test_a_snapshot_is_a_copy_and_can_be_compared_again(bench: Bench, engine: Engine) -> None:
    where = ByteRange(bench.base, bench.base + 64)
    snapshot = taken(engine, [("key", where)])
    flip(bench, [bench.base + 5])
    engine.check(1, (), compare=snapshot)
    flip(bench, [bench.base + 5])
    engine.check(2, (), compare=snapshot)
    (result,) = engine.poll(wait=True)
    assert (result.tag, len(result.evidence)) == (1, 1)


def test_results_come_in_order_of_submission_and_once(bench: Bench, engine: Engine, armed: tuple[Guard, Guard]) -> None:
    tags = [object() for _ in range(4)]
    snapshot = taken(engine, [("key", ByteRange(bench.base, bench.base + 8))])
    engine.check(tags[0], armed)
    engine.check(tags[1], (), compare=snapshot)
    flip(bench, [armed[1].near.start])
    engine.check(tags[2], armed)
    flip(bench, [bench.base + 3])
    engine.check(tags[3], (), compare=snapshot)
    engine.check(object(), armed)
    results = engine.poll(wait=True)
    assert [result.tag for result in results] == tags[2:], "those that found something"
    assert [len(result.evidence) for result in results] == [1, 1]
    assert engine.poll(wait=True) == []


def test_read_gives_the_bytes_of_now(bench: Bench, engine: Engine) -> None:
    bench.write(bench.base + 10, b"abcdef")
    assert engine.read(ByteRange(bench.base + 11, bench.base + 14)) == b"bcd"
    assert engine.read(ByteRange(bench.base, bench.base)) == b""


def test_read_many_gives_each_range_its_bytes_of_now(bench: Bench, engine: Engine) -> None:
    ranges = [
        ByteRange(bench.base + start, bench.base + start + n) for start, n in ((700, 3), (0, 0), (64, 4096), (65, 9))
    ]
    bench.write(bench.base + 64, bytes(range(64)))
    views = engine.read_many(ranges)
    assert [bytes(view) for view in views] == [bench.bytes_at(where.start, where.nbytes) for where in ranges]
    bench.write(bench.base + 64, bytes(64))
    assert bytes(views[3]) == bytes(range(1, 10)), "copies, which later writes leave alone"
    assert engine.read_many([]) == []


def test_small_parts_of_a_shadow_are_mirrored_on_the_host(bench: Bench, engine: Engine) -> None:
    where = ByteRange(bench.base + 131, bench.base + 171)
    shadow = engine.shadow([("key", where)])
    for text in (b"0123456789" * 4, b"0123456789" * 3 + b"0123456x89", bytes(40)):
        bench.write(where.start, text)
        engine.check("take", (), take=shadow)
        engine.check("compare", (), compare=shadow)
        engine.poll(wait=True)
        bench.write(where.start, b"\x77" * 40)
        assert shadow.last_values() == [("key", where, text)]


def test_copies_for_a_post_mortem(bench: Bench, engine: Engine) -> None:
    bench.write(bench.base, bytes(range(200)))
    ranges = [ByteRange(bench.base + at, bench.base + at + n) for at, n in ((0, 8), (3, 5), (4, 9), (64, 0))]
    mirror = engine.mirror(ranges)
    engine.check("wait", (), take=engine.shadow([("key", ranges[0])]))
    engine.poll(wait=True)
    bench.write(bench.base, bytes(200))
    assert mirror.read() == [bytes(range(8)), bytes(range(3, 8)), bytes(range(4, 13)), b""]


def test_of_large_ranges_the_beginning_is_copied_and_of_many_the_first_ones(bench: Bench, engine: Engine) -> None:
    bench.write(bench.base, b"\x21" * 40_000)
    mirror = engine.mirror([ByteRange(bench.base, bench.base + 40_000)] * 12)
    engine.check("wait", (), take=engine.shadow([("key", ByteRange(bench.base, bench.base + 4))]))
    engine.poll(wait=True)
    assert mirror.read() == [b"\x21" * (16 << 10)] * 8


def test_of_many_guards_each_is_told_apart(bench: Bench, engine: Engine) -> None:
    """Of several sizes, at places of no alignment, one of them without a near part."""
    guards = [
        guard
        for at in range(40)
        for guard in guards_of(
            Buffer(
                at, bench.base + 512 + at * 800 + at % 7, 60 + at, Role.STATIC, head_guard=8 * (at % 9), tail_guard=100
            ),
            NEAR,
        )
    ]
    for guard in guards:
        engine.write_canaries((guard.whole,))
    assert checked(engine, *guards) == ()
    broken = [guards[place] for place in (0, 3, 31, len(guards) - 1)]
    flip(bench, [guard.near.start for guard in broken])
    assert [evidence.subject for evidence in checked(engine, *guards)] == broken
    assert checked(engine, *guards) == ()
