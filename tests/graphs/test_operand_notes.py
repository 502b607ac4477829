"""Notes of what eager operators read, copy and return."""

from __future__ import annotations

import torch

import shadowgraph as sg
from shadowgraph.graphs.dispatch import operand_notes
from shadowgraph.graphs.dispatch.operand_notes import LARGEST, OperandNotes
from shadowgraph.model.ranges import ByteRange


def notes() -> OperandNotes:
    found = operand_notes.current
    assert found is not None
    return found


def span(tensor: torch.Tensor) -> ByteRange:
    return ByteRange(tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes)


def test_copies_of_one_form_are_noted() -> None:
    with sg.debug():
        x = torch.zeros(4)
        y, z = x.clone(), torch.empty(4)
        z.copy_(x)
        halves = torch.cat([x, y])
        other = [x.to(torch.float64)[:2], torch.zeros(2, 4).copy_(x), torch.zeros(4, 4).t().clone()]
        large = torch.zeros(LARGEST, dtype=torch.int16).clone()
        known = [(copied.ranges, copied.alive) for copied in notes().copies]
        assert known == [
            ((span(x), span(y)), True),
            ((span(x), span(z)), True),
            ((span(x), span(halves[:4])), True),
            ((span(y), span(halves[4:])), True),
            ((span(x), span(other[0]._base)), True),
        ]
        del y, halves, other, large
        assert [copied.alive for copied in notes().copies] == [False, True, False, False, False]


def test_nothing_else_is_noted_unless_a_check_wants_it() -> None:
    with sg.debug():
        interest = notes().interest()
        x, y = torch.zeros(8), torch.ones(4)
        assert not notes().closely
        assert x.sum() is not None
        interest.want([span(x[4:])])
        assert notes().closely
        seen = x[4:], x[:4].add_(1), y + 1, x.fill_(0), x[4:].copy_(y)
        assert not interest.reads, "views, writes and other memory"
        seen = (*seen, x + 1, x[5].item(), torch.stack([y, x[4:]]))
        assert set(interest.reads) == {span(x[4:])}
        assert len(interest.reads) == 1, "each range once"
        interest.want(())
        assert not notes().closely
        assert len((*seen, x + 1)) == 9


def test_results_of_a_dtype() -> None:
    with sg.debug():
        interest = notes().interest()
        interest.want((), ["int64"])
        made = torch.arange(4) * 2
        other = torch.zeros(4)
        view = made.view(2, 2)
        launch = interest.results[-1][1]
        assert launch.name == "aten.mul.Tensor"
        assert launch.pointers[0].view.address == made.data_ptr() == view.data_ptr()
        assert launch.stack[0].function == "test_results_of_a_dtype"
        assert made.data_ptr() not in interest.used
        assert (made + other).shape == (4,)
        assert made.data_ptr() in interest.used
