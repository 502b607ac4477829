"""What the log of replays makes of runs, against a plain model of rows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shadowgraph.checks.row_epochs import Epochs, Run, mixture, rows_of
from shadowgraph.checks.stale_rows.row_log import Begun, states_of
from shadowgraph.model.row_history import RowState
from shadowgraph.model.views import TensorView

_BASE, _COUNT, _WIDTH = 4096, 12, 8
_VIEW = TensorView(_BASE, _BASE, _COUNT * _WIDTH, (_COUNT, 2), (2, 1), "int32", 4, "cpu")
_WRITES = st.lists(
    st.tuples(st.integers(-8, _COUNT * _WIDTH), st.integers(1, 40), st.booleans(), st.booleans()), max_size=12
)


@given(_WRITES, st.integers(0, 12))
def test_every_row_has_the_state_that_the_check_tells(writes: list[tuple[int, int, bool, bool]], last: int) -> None:
    rows, epochs = rows_of(_VIEW), Epochs()
    assert rows is not None
    for time, (start, length, sure, constant) in enumerate(writes, 1):
        epochs.note(Run(_BASE + start, _BASE + start + length, time, None, sure, constant))
    stretches = list(states_of(rows, last, epochs.runs))
    assert [row for first, stop, _, _ in stretches for row in range(first, stop + 1)] == list(range(_COUNT))
    states = {row: state for first, stop, state, _ in stretches for row in range(first, stop + 1)}
    seen = mixture(epochs.by_row(rows), last)
    written = {row for row, state in states.items() if state in (RowState.REFRESHED, RowState.PADDED)}
    assert written == set(seen.fresh)
    assert {row for row, state in states.items() if state is RowState.KEPT} == set(seen.stale)
    times = {row: time for first, stop, _, time in stretches for row in range(first, stop + 1)}
    assert all(times[row] == run.time for row, run in seen.stale.items())


def test_a_row_is_dated_to_the_first_replay_after_its_write() -> None:
    begun = Begun(((10, 1, 1), (20, 2, 1), (30, 1, 2)), whole=True)
    assert begun.first_after(5, 40, {1}) == (1, 1)
    assert begun.first_after(15, 40, {1}) == (1, 2)
    assert begun.first_after(15, 40, {1, 2}) == (2, 1)
    assert begun.first_after(15, 30, {1}) == (None, None), "that is the replay itself"
    assert Begun(((10, 1, 7),), whole=False).first_after(5, 40, {1}) == (None, None), "earlier ones are forgotten"
    assert Begun(((10, 1, 7),), whole=False).first_after(12, 40, {1}) == (None, None)
