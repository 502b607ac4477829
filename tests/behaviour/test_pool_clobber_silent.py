"""SG105 is silent where memory of a pool is shared on purpose, and where its values are not read any more."""

from __future__ import annotations

import ctypes
import gc
import random

import pytest
import torch
from captures import capture, silent
from pools import ELEMENTS, Cached, Piece, source, weak
from steady_state import sampled

import shadowgraph as sg
from shadowgraph.common.finalizer_safe_lock import run_deferred

pytestmark = pytest.mark.parametrize("layout", ["isolate", "faithful"])


def test_outputs_read_before_the_next_replay(layout: str) -> None:
    with sg.debug(layout=layout) as debugger:
        pool = sg.graph_pool_handle()
        pieces = [Piece(source(), factor, pool) for factor in (2, 3, 4)]
        assert len({piece.output.data_ptr() for piece in pieces}) == 1, "invalid: blocks of their own"
        for step in range(9):
            piece = pieces[step % 3]
            piece.replay()
            assert piece.output.sum() == (source() * (2 + step % 3)).sum()
            assert piece.output.tolist() == (source() * (2 + step % 3)).tolist()
        assert silent(debugger)


def test_pieces_hand_outputs_on_in_order(layout: str) -> None:
    with sg.debug(layout=layout) as debugger:
        pool, given = sg.graph_pool_handle(), source()
        steps = []
        for _ in range(2):
            pieces = [Piece(given, 2, pool)]
            for factor in (3, 4, 5):
                pieces.append(Piece(pieces[-1].output, factor, pool))
            steps.append(pieces)
        for step in range(6):
            pieces = steps[step % 2]
            given.fill_(step)
            for piece in pieces:
                piece.replay()
            assert pieces[-1].output.unique().tolist() == [120 * step]
        assert silent(debugger)


def test_eager_code_between_pieces(layout: str) -> None:
    """As attention between two pieces: it fills an output that the piece before has only allocated."""
    with sg.debug(layout=layout) as debugger:
        pool, given, first, second = sg.graph_pool_handle(), source(), sg.HostGraph(), sg.HostGraph()
        result = torch.zeros(ELEMENTS)
        with sg.host_graph(first, pool=pool):
            query = given * 2
            total = (given * 7).sum()
            attended = torch.empty(ELEMENTS)
            held, asked = weak(attended), weak(query)
            del attended, query
        with sg.host_graph(second, pool=pool):
            torch.add(held, 1, out=result)
        for step in range(4):
            first.replay()
            torch.mul(asked, step, out=held)
            second.replay()
            assert torch.equal(result, given * 2 * step + 1)
        assert total.numel() == 1
        assert silent(debugger)


def test_outputs_overwritten_after_they_were_copied(layout: str) -> None:
    with sg.debug(layout=layout) as debugger:
        pool = sg.graph_pool_handle()
        first, second = Piece(source(), 2, pool), Piece(source(), 3, pool)
        kept = torch.zeros(ELEMENTS)
        for _ in range(3):
            first.replay()
            kept.copy_(first.output)
            second.replay()
            assert torch.equal(kept, source() * 2)
            assert torch.equal(second.output, source() * 3)
        assert silent(debugger)


def test_outputs_made_again_before_they_are_read(layout: str) -> None:
    with sg.debug(layout=layout) as debugger:
        pool = sg.graph_pool_handle()
        first, second = Piece(source(), 2, pool), Piece(source(), 3, pool)
        for _ in range(3):
            first.replay()
            second.replay()
            first.replay()
            assert torch.equal(first.output, source() * 2)
        assert silent(debugger)


def test_an_output_that_is_written_over_and_never_read(layout: str) -> None:
    with sg.debug(layout=layout) as debugger:
        pool, given = sg.graph_pool_handle(), source()
        first, total = capture(lambda: (given * 2).sum(), pool)
        second, output = capture(lambda: given * 3, pool)
        for _ in range(3):
            second.replay()
            first.replay()
            assert total.item() == given.sum() * 2
        assert output.shape == (ELEMENTS,)
        output.zero_()
        assert output.unique().tolist() == [0]
        output[3] = 1
        assert silent(debugger)


def test_an_output_that_eager_code_writes_again(layout: str) -> None:
    with sg.debug(layout=layout) as debugger:
        pool, given = sg.graph_pool_handle(), source()
        first, total = capture(lambda: (given * 2).sum(), pool)
        second, output = capture(lambda: given * 3, pool)
        for step in range(3):
            second.replay()
            first.replay()
            output.fill_(step)
            assert output.unique().tolist() == [step]
        assert total.numel() == 1
        assert silent(debugger)


def test_a_workspace_that_was_never_filled(layout: str) -> None:
    with sg.debug(layout=layout) as debugger:
        program = Cached(before=False)
        for _ in range(3):
            program.graph.replay()
            program.workspace.tolist()
        assert silent(debugger)


@pytest.mark.parametrize("wanted", [True, False], ids=["written before it is read", "left alone"])
def test_a_kernels_scratch_buffer(layout: str, wanted: bool) -> None:
    """It shares its block with a temporary, eager code uses it, too, and no value in it outlives a launch."""
    from pool_kernels import through

    with sg.debug(layout=layout) as debugger:
        given, graph, result = source(), sg.HostGraph(), torch.zeros(ELEMENTS)
        with sg.host_graph(graph):
            total = (given * 2).sum()
            scratch = torch.empty(ELEMENTS)
            through[(1,)](given, scratch, result, WANTED=wanted, BLOCK=ELEMENTS)
        for _ in range(3):
            through[(1,)](given, scratch, result, WANTED=True, BLOCK=ELEMENTS)
            graph.replay()
            assert torch.equal(result, given)
        assert total.numel() == 1
        assert silent(debugger)


def test_a_callable_that_writes_what_it_does_not_declare(layout: str) -> None:
    with sg.debug(layout=layout) as debugger:
        given, graph = source(), sg.HostGraph()
        with sg.host_graph(graph):
            total = (given * 2).sum()
            workspace = torch.empty(ELEMENTS)
            kept = weak(workspace)
            graph.call(lambda: kept.fill_(4))
            output = given + workspace
        workspace.fill_(5)
        for _ in range(3):
            graph.replay()
            assert torch.equal(output, given + 4)
        assert total.numel() == 1
        assert silent(debugger)


def test_pools_of_their_own(layout: str) -> None:
    with sg.debug(layout=layout) as debugger:
        first, second = Piece(source(), 2, sg.graph_pool_handle()), Piece(source(), 3, sg.graph_pool_handle())
        assert first.output.data_ptr() != second.output.data_ptr(), "invalid: one block"
        for _ in range(3):
            first.replay()
            second.replay()
            assert torch.equal(first.output, source() * 2)
        assert silent(debugger)


def test_a_storage_over_an_unknown_tensors_memory(layout: str) -> None:
    """Where it is not known which of two tensors of the same form a pointer means, nothing is said."""
    with sg.debug(layout=layout) as debugger:
        pool = sg.graph_pool_handle()
        first, second = Piece(source(), 2, pool), Piece(source(), 3, pool)
        address = second.output.data_ptr()
        first.replay()
        second.replay()
        mine = torch.frombuffer((ctypes.c_char * 4 * ELEMENTS).from_address(address), dtype=torch.float32)
        assert mine.tolist() == (source() * 3).tolist()
        assert silent(debugger)


def test_replays_that_are_not_seen(layout: str) -> None:
    """With every third replay checked, the order of the others is not known."""
    with sg.debug(layout=layout, every=3) as debugger:
        pool = sg.graph_pool_handle()
        first, second = Piece(source(), 2, pool), Piece(source(), 3, pool)
        for step in range(20):
            piece = (first, second)[step % 2 if step < 10 else 0]
            piece.replay()
            assert piece.output.tolist() == (source() * piece.factor).tolist()
        assert silent(debugger)


def test_a_graph_that_is_gone(layout: str) -> None:
    with sg.debug(layout=layout) as debugger:
        pool, given = sg.graph_pool_handle(), source()
        first, output = capture(lambda: given * 2, pool)
        first.replay()
        first.reset()
        del first
        gc.collect()
        run_deferred()
        second, other = capture(lambda: given * 3, pool)
        second.replay()
        assert output.tolist() == (given * 2).tolist()
        assert other.tolist() == (given * 3).tolist()
        assert silent(debugger)


def test_in_the_steady_state(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with sampled(monkeypatch, (100, 200), 4000, layout=layout) as debugger:
        pool = sg.graph_pool_handle()
        first, second = Piece(source(), 2, pool), Piece(source(), 3, pool)
        for step in range(1500):
            piece = (first, second)[random.Random(step).randint(0, 1)]
            piece.replay()
            if step % 7 == 0:
                assert piece.output.tolist() == (source() * piece.factor).tolist()
        assert silent(debugger)


@pytest.mark.parametrize("seed", range(12))
def test_what_captures_reuse_is_judged_by_the_values(layout: str, seed: int) -> None:
    """Graphs of temporaries, outputs that are held and outputs that are held weakly, all in one pool."""
    pick, factor = random.Random(seed), 1
    with sg.debug(layout=layout) as debugger:
        pool, given = sg.graph_pool_handle(), source() + 1
        values = given.tolist()
        graphs: list[sg.HostGraph] = []
        outputs: list[tuple[sg.HostGraph, torch.Tensor, list[float]]] = []
        for _ in range(pick.randint(2, 5)):
            graphs.append(sg.HostGraph())
            with sg.host_graph(graphs[-1], pool=pool):
                temporaries = []
                for _ in range(pick.randint(1, 6)):
                    factor += 1
                    made = given * factor
                    if pick.random() < 0.3:
                        temporaries.append(made)
                    else:
                        kept = made if pick.random() < 0.5 else weak(made)
                        outputs.append((graphs[-1], kept, [factor * each for each in values]))
                        del kept
                    del made
                    if temporaries and pick.random() < 0.6:
                        temporaries.pop(pick.randrange(len(temporaries)))
                temporaries.clear()

        def sightings() -> int:
            return sum(each.occurrences for each in debugger.findings if not each.detail.apart)

        for _ in range(60):
            if pick.random() < 0.4 or not outputs:
                pick.choice(graphs).replay()
                continue
            graph, output, wanted = pick.choice(outputs)
            before, right = sightings(), output.tolist() == wanted
            if graph.model.replays:
                assert right is (sightings() == before), [each.message for each in debugger.findings]
        assert {each.code for each in debugger.findings} <= {"SG105"}
        assert debugger.facts().faults == {}


@pytest.mark.parametrize("seed", range(8))
def test_any_order_of_replays_and_reads_is_judged_by_the_values(layout: str, seed: int) -> None:
    """What is read is either right and silent, or wrong and found."""
    pick = random.Random(seed)
    with sg.debug(layout=layout) as debugger:
        pool, given = sg.graph_pool_handle(), source()
        pieces = []
        for _ in range(4):
            taken = pick.choice(pieces).output if pieces and pick.random() < 0.4 else given
            pieces.append(Piece(taken, len(pieces) + 2, pool))
        roots = [piece for piece in pieces if piece.given is given]
        wanted = [(given * piece.factor).tolist() for piece in roots]
        for piece in roots:
            piece.replay()
        for _ in range(60):
            at = pick.randrange(len(roots))
            if pick.random() < 0.5:
                roots[at].replay()
            else:
                before = sum(finding.occurrences for finding in debugger.findings)
                right = roots[at].output.tolist() == wanted[at]
                after = sum(finding.occurrences for finding in debugger.findings)
                assert right is (after == before), [finding.message for finding in debugger.findings]
        assert all(finding.code == "SG105" for finding in debugger.findings)
