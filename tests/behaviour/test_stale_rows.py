"""SG103 on the host: forgotten padding is named to the row, and the fixed twin is silent."""

from __future__ import annotations

import types
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from padding import Batch, told
from playing import played
from programs import only

import shadowgraph as sg
from shadowgraph.common.errors import UsageError
from shadowgraph.dumps.reader import read_dump

LAYOUTS = ["isolate", "faithful"]


@pytest.fixture(params=LAYOUTS)
def debugger(request: pytest.FixtureRequest) -> Iterator[sg.Debugger]:
    with sg.debug(backend="host", layout=request.param) as made:
        yield made


# -- what must be found ----------------------------------------------------------------------------------------------


def test_forgotten_padding_is_named_to_the_row(debugger: sg.Debugger) -> None:
    batch = Batch(debugger)
    batch.step([2, 3, 5, 7])
    assert debugger.findings == ()
    batch.step([6])
    found = only(debugger.findings)
    name = batch.graphs[4].model.name
    assert (found.code, found.severity, found.confidence) == ("SG103", "error", "high")
    assert (found.phase, found.graph, found.replay) == ("prepare", name, 2)
    assert (found.buffer.name, found.buffer.shape) == ("batch.slots", (8,))
    assert (found.bytes.first, found.bytes.last, found.bytes.count, found.bytes.ranges) == (8, 31, 24, ((8, 31),))
    assert [(r.first, r.last, r.graph, r.replay) for r in found.detail.stale] == [(1, 3, name, 1)]
    assert (found.detail.rows, found.detail.refreshed, found.detail.padded) == (4, ((0, 0),), ("batch.lens",))
    assert (found.culprit.name, found.culprit.status) == ("aten.copy_.default", "candidate")
    assert (found.culprit.stack[0].function, found.reader.name) == ("step", "aten.add.Tensor")
    said = f"rows 1 to 3 of batch.slots (int64[8]) still hold what was written for replay 1 of {name}, though row 0 was"
    assert found.message == f"SG103 stale rows: {said} refreshed, while preparing replay 2 of {name}"


def test_the_fixed_twin_is_silent(debugger: sg.Debugger) -> None:
    batch = Batch(debugger)
    for values in ([2, 3, 5, 7], [6], [1, 2], [9, 8, 7, 6], [5]):
        batch.step(values, zero=True)
    assert told(debugger) == []


def test_rows_of_several_ages(debugger: sg.Debugger) -> None:
    batch = Batch(debugger)
    batch.step([2, 3, 5, 7])
    batch.step([1, 2, 3, 4])
    batch.lens.fill_(1)
    batch.lens[:3].copy_(torch.tensor([9, 9, 9]))
    batch.slots[:3].copy_(torch.tensor([4, 5, 6]))
    debugger.padding(batch.slots, "dont_care")
    batch.replay()
    assert debugger.findings == ()
    debugger.padding(batch.slots, "refresh")
    batch.step([1])
    found = only(debugger.findings)
    assert [(r.first, r.last, r.replay) for r in found.detail.stale] == [(1, 2, 3), (3, 3, 2)]


def test_the_replay_is_that_of_the_graph_that_it_was_written_for(debugger: sg.Debugger) -> None:
    batch = Batch(debugger, 8, 4)
    batch.step([2, 3, 5, 7, 9, 11, 13, 15], padded_to=8)
    batch.step([6, 8], padded_to=4)
    found = only(debugger.findings)
    assert (found.graph, found.replay) == (batch.graphs[4].model.name, 1)
    assert [(r.first, r.last, r.graph, r.replay) for r in found.detail.stale] == [(2, 3, batch.graphs[8].model.name, 1)]


def test_a_refresh_with_the_old_value_is_a_refresh(debugger: sg.Debugger) -> None:
    batch = Batch(debugger)
    batch.step([2, 3, 5, 7])
    batch.lens.fill_(1)
    batch.lens[:2].copy_(torch.tensor([4, 4]))
    batch.slots[2:4].copy_(torch.tensor([5, 7]))
    batch.slots[:2].copy_(torch.tensor([2, 3]))
    batch.replay()
    assert told(debugger) == []


def test_rows_of_a_table(debugger: sg.Debugger) -> None:
    """Rows wider than what is refreshed of them, and apart from each other in memory."""
    with debugger.guard():
        lens, table = torch.ones(4, dtype=torch.int64), torch.zeros(4, 6, dtype=torch.int32)
    debugger.name("batch", {"lens": lens, "table": table})
    graph = sg.HostGraph()
    with sg.host_graph(graph):
        out = lens[:4] * table[:4, :3].sum(1)
    for count in (4, 2):
        if count < 4:
            lens.fill_(1)
        lens[:count].copy_(torch.arange(count))
        table[:count, :2].copy_(torch.arange(1, 2 * count + 1).view(count, 2))
        graph.replay()
    found = only(debugger.findings)
    assert [(r.first, r.last) for r in found.detail.stale] == [(2, 3)]
    assert (found.bytes.count, found.bytes.ranges_total) == (24, 2)
    del out


def test_inputs_in_one_flat_tensor(debugger: sg.Debugger) -> None:
    with debugger.guard():
        flat = torch.zeros(16, dtype=torch.int64)
    lens, slots = flat[0:4], flat[8:12]
    debugger.name("batch", types.SimpleNamespace(lens=lens, slots=slots, flat=flat))
    graph = sg.HostGraph()
    with sg.host_graph(graph):
        out = lens + slots
    for values in ([2, 3, 5, 7], [6]):
        lens.fill_(1)
        lens[: len(values)].copy_(torch.tensor(values))
        slots[: len(values)].copy_(torch.tensor(values))
        graph.replay()
    found = only(debugger.findings)
    assert (found.buffer.name, found.bytes.first, found.bytes.last) == ("batch.slots", 8, 31)
    assert (found.detail.stale[0].first, found.detail.padded) == (1, ("batch.lens",))
    del out


@pytest.mark.parametrize("at", [0, 8])
def test_rows_of_a_view_that_has_no_name(debugger: sg.Debugger, at: int) -> None:
    """Rows are counted of what the graph reads; the name is that of all that it is cut out of."""
    with debugger.guard():
        lens, flat = torch.ones(4, dtype=torch.int64), torch.zeros(24, dtype=torch.int64)
    debugger.name("batch", types.SimpleNamespace(lens=lens, flat=flat))
    graph = sg.HostGraph()
    with sg.host_graph(graph):
        out = flat[at : at + 16].view(4, 4).sum(1) * lens
    for count in (4, 2):
        lens.fill_(1)
        lens[:count].copy_(torch.arange(count) + 2)
        flat[at : at + 4 * count].copy_(torch.arange(4 * count) + 5)
        graph.replay()
    found = only(debugger.findings)
    assert (found.buffer.name, found.buffer.shape, found.detail.viewed) == ("batch.flat", (4, 4), True)
    part = f"batch.flat[{at}:{at + 16}].view(4, 4) (int64[4, 4])"
    assert f"rows 2 to 3 of {part} still hold what was written" in found.message
    del out


def test_a_triton_kernel_refreshes_the_rows_that_it_stores(debugger: sg.Debugger) -> None:
    from shadowgraph.demos.kernels import fill

    batch = Batch(debugger, dtype=torch.int32)
    batch.step([2, 3, 5, 7])
    batch.lens.fill_(1)
    batch.lens[:2].copy_(torch.tensor([4, 4]))
    fill[(1,)](batch.slots, 0, 2, 9, BLOCK=8)
    batch.replay()
    found = only(debugger.findings)
    assert (found.culprit.name, found.detail.refreshed) == ("fill", ((0, 1),))
    fill[(1,)](batch.slots, 0, 4, 9, BLOCK=8)
    batch.replay()
    assert only(debugger.findings).occurrences == 1


def test_padding_that_is_copied_in_one_piece_makes_a_note(debugger: sg.Debugger) -> None:
    """The other input may have been padded before it was copied, or have needed more of its rows."""
    batch = Batch(debugger)
    for values in ([2, 3, 5, 7], [6]):
        batch.lens[:4].copy_(torch.tensor(values + [1] * (4 - len(values))))
        batch.slots[: len(values)].copy_(torch.tensor(values))
        batch.replay()
    assert debugger.findings == ()
    note = only(debugger.notes)
    assert (note.code, note.confidence, note.buffer.name) == ("SG103", "low", "batch.slots")


# -- declared --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["refresh", "dont_care", None])
def test_declarations_overrule(debugger: sg.Debugger, policy: str | None) -> None:
    """Without a witness only what was declared is reported."""
    batch = Batch(debugger)
    if policy is not None:
        debugger.padding(batch.slots, policy)
    for values in ([2, 3, 5, 7], [6]):
        batch.slots[: len(values)].copy_(torch.tensor(values))
        batch.replay()
    assert told(debugger) == ([("SG103", "batch.slots")] if policy == "refresh" else [])
    assert len(debugger.findings) == (policy == "refresh")


def test_rows_that_do_not_matter(debugger: sg.Debugger) -> None:
    batch = Batch(debugger)
    debugger.padding(batch.slots[2:], "dont_care")
    batch.step([2, 3, 5, 7])
    batch.step([6])
    assert [(r.first, r.last) for r in only(debugger.findings).detail.stale] == [(1, 1)]


def test_a_declaration_ends_with_its_buffer(debugger: sg.Debugger) -> None:
    addresses = []
    for _ in range(2):
        first = Batch(debugger)
        addresses += [first.slots.data_ptr(), first.lens.data_ptr()]
        debugger.padding(first.slots, "dont_care")
        debugger.padding(first.lens, "dont_care")
        del first
    batch = Batch(debugger)
    assert batch.slots.data_ptr() in addresses, "an address is used again; if not, this shows nothing"
    batch.step([2, 3, 5, 7])
    batch.step([6])
    assert only(debugger.findings).buffer.name == "batch.slots"


def test_an_unknown_policy_is_refused(debugger: sg.Debugger) -> None:
    batch = Batch(debugger)
    with pytest.raises(UsageError, match="'refresh', 'dont_care' or 'judged', not 'zero'"):
        debugger.padding(batch.slots, "zero")


# -- as on a device --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("fixed", [False, True])
def test_on_a_device(monkeypatch: pytest.MonkeyPatch, layout: str, fixed: bool) -> None:
    """Values arrive late, and graphs are looked at when they are first replayed."""
    with played(monkeypatch, layout=layout) as debugger:
        batch = Batch(debugger)
        for values in ([2, 3, 5, 7], [6], [5, 4, 3, 2]):
            batch.step(values, zero=fixed)
        found = debugger.check()
        assert told(debugger) == ([] if fixed else [("SG103", "batch.slots")])
    if not fixed:
        assert (only(found).replay, [(r.first, r.last, r.replay) for r in found[0].detail.stale]) == (2, [(1, 3, 1)])


def test_on_a_device_a_kernel_may_have_written_what_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    from shadowgraph.demos.kernels import fill

    with played(monkeypatch) as debugger:
        batch = Batch(debugger, dtype=torch.int32)
        batch.step([2, 3, 5, 7])
        fill[(1,)](batch.slots, 0, 0, 9, BLOCK=8)  # it was given all of it
        batch.step([6])
        debugger.check()
        assert told(debugger) == []


# -- what is kept ----------------------------------------------------------------------------------------------------


def test_every_sighting_counts_until_it_is_looked_at_seldom(debugger: sg.Debugger) -> None:
    batch = Batch(debugger)
    for _ in range(20):
        batch.step([2, 3, 5, 7])
        batch.step([6])
    found = only(debugger.findings)
    assert (found.replay, found.occurrences, found.revision) == (2, 9, 1), "eight, and the sixteenth"


def test_report_and_document(debugger: sg.Debugger) -> None:
    batch = Batch(debugger)
    batch.step([2, 3, 5, 7])
    batch.step([6])
    name, text = batch.graphs[4].model.name, str(debugger.report(quiet=True))
    assert "8 to 31 of a 64-byte buffer, 24 stale" in text
    assert f"stale      rows 1 to 3 of 4 that the graph reads, from replay 1 of {name}" in text
    assert "unlike     batch.lens, which was written there for this replay" in text
    document = only(debugger.findings).to_dict()["detail"]
    assert document["stale"] == [{"first": 1, "last": 3, "graph": name, "replay": 1}]
    assert (document["rows"], document["refreshed"], document["padded"]) == (4, [[0, 0]], ["batch.lens"])


def test_a_dump_tells_the_same(debugger: sg.Debugger, tmp_path: Path) -> None:
    batch = Batch(debugger)
    batch.step([2, 3, 5, 7])
    batch.step([6])
    path = debugger.dump(tmp_path / "run.safetensors")
    with read_dump(path) as dump:
        assert only(dump.facts().findings) == only(debugger.findings)


def test_around_a_program_that_declares_nothing_it_is_a_note(debugger: sg.Debugger) -> None:
    """As under ``wrap``: an input may be meant to keep its rows, as sglang's ``input_ids`` are, and nobody says so."""
    batch = Batch(debugger)
    debugger.runner.adjust(stale_rows="note")
    batch.step([11, 12, 13, 14])
    batch.step([15, 16])
    assert debugger.findings == ()
    (note,) = debugger.notes
    assert (note.code, note.buffer.name, note.confidence) == ("SG103", "batch.slots", "medium")
    debugger.padding(batch.slots, "refresh")
    batch.step([11, 12, 13, 14])
    batch.step([15, 16])
    assert [found.code for found in debugger.findings] == ["SG103"]


@pytest.mark.parametrize("use", ["slots", "tokens"])
def test_two_padded_inputs_make_an_error_of_places_in_memory(debugger: sg.Debugger, use: str) -> None:
    debugger.runner.adjust(stale_rows="note")
    with debugger.guard():
        kept, lens, positions = (torch.zeros(4, dtype=torch.int64) for _ in range(3))
        table = torch.arange(64.0).view(32, 2)
    debugger.name("batch", {"kept": kept, "lens": lens, "positions": positions})
    graph = sg.HostGraph()
    with sg.host_graph(graph):
        read = table[kept] if use == "slots" else torch.nn.functional.embedding(kept, table)
        _ = read.sum(1) * lens + positions
    for values in ([11, 12, 13, 14], [15, 16]):
        for tensor, padding in ((kept, None), (lens, 1), (positions, 0)):
            tensor[: len(values)].copy_(torch.tensor(values))
            if padding is not None and len(values) < 4:
                tensor[len(values) :].fill_(padding)
        graph.replay()
    found = only(debugger.findings if use == "slots" else debugger.notes)
    assert (found.code, found.buffer.name) == ("SG103", 'batch["kept"]')
    assert (found.severity, found.confidence) == (("error", "high") if use == "slots" else ("note", "medium"))
    assert len(found.detail.padded) == 2, "invalid: one witness alone"


def test_leniency_ends_where_somebody_declared_that_rows_are_judged(debugger: sg.Debugger) -> None:
    batch = Batch(debugger)
    debugger.runner.adjust(stale_rows="note")
    debugger.padding(batch.slots[:3], "judged")  # row 3 is in the graph too, and nobody says what becomes of it
    batch.step([11, 12, 13, 14])
    batch.step([15, 16])
    assert debugger.findings == ()
    assert [note.code for note in debugger.notes] == ["SG103"]
    debugger.padding(batch.slots, "judged")
    batch.step([11, 12, 13, 14])
    batch.step([15])
    found = only(debugger.findings)
    assert (found.buffer.name, found.confidence, found.detail.padded) == ("batch.slots", "high", ("batch.lens",))


def test_judged_is_no_promise_to_refresh(debugger: sg.Debugger) -> None:
    """Rows that no other input shows to be padding may stay, as in a persistent batch."""
    batch = Batch(debugger)
    debugger.runner.adjust(stale_rows="note")
    debugger.padding(batch.slots, "judged")
    batch.step([11, 12, 13, 14])
    batch.slots[:2].copy_(torch.tensor([15, 16]))
    batch.replay()
    assert told(debugger) == []


@pytest.mark.parametrize("last", ["judged", "dont_care"])
def test_of_two_declarations_the_last_one_counts(debugger: sg.Debugger, last: str) -> None:
    batch = Batch(debugger)
    for policy in ("refresh", "judged", "dont_care", last):
        debugger.padding(batch.slots, policy)
    batch.step([11, 12, 13, 14])
    batch.step([15, 16])
    assert [code for code, _ in told(debugger)] == (["SG103"] if last == "judged" else [])
