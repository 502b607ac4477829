"""Steps larger than all before them: hooks report the sizes of a step before it runs, and the first one beyond the
largest so far is a reason to observe that step in full.

Adapters and Triton hooks call `Novelty.see` in the thread that prepares, on the path of every step, whether operators
are observed or not. No lock: two threads that report at once may lose a size, which is then novel once more.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable
from itertools import compress

_SOURCES = 4096  # graphs or kernels whose sizes are kept
_ROOM, _PARTS = 4, 40  # the next novel size is a tenth larger, and a fortieth more for each time that there was one

Sizes = tuple[int, int, int]

current: Novelty | None = None  # of the active debugger, for hooks below the debugger


class Novelty:
    """The largest sizes so far: of a batch, its longest sequence, the sum of its lengths, a plan or a grid.

    Bugs of size, such as a buffer that a longer context than ever overruns, happen first at a size beyond all before.
    Sizes count in steps of a tenth, since a sequence grows with every token. A step grows with each time that the same
    source was novel, so that a program whose sizes go on growing is not observed for ever.

    Parameters
    ----------
    steady
        Whether operators pass unobserved now. Until they do, sizes are only learnt.
    watch
        Called with the reason before a step that is to be observed in full, in the thread of the step.

    Attributes
    ----------
    woken
        How often a step was novel while operators passed unobserved.
    dropped
        How often a step was not judged, because too many sources are known already.
    """

    def __init__(self, steady: Callable[[], bool], watch: Callable[[str], None]) -> None:
        self._steady, self._watch = steady, watch
        self._limits: defaultdict[str, dict[Hashable, Sizes]] = defaultdict(dict)  # by kind of sizes and source
        self._times: Counter[tuple[str, Hashable]] = Counter()
        self.woken = self.dropped = 0

    def see(self, kind: str, source: Hashable, first: int, second: int = 0, third: int = 0) -> None:
        """Report up to three sizes of a step that is about to be prepared.

        Parameters
        ----------
        kind
            What they are sizes of, in words.
        source
            What they are compared within, such as a graph's serial.
        """
        limits = self._limits[kind].get(source)
        if limits is None or first > limits[0] or second > limits[1] or third > limits[2]:
            self._larger(kind, source, (first, second, third), limits)

    def forget(self, source: Hashable) -> None:
        """A source is gone."""
        for kind, known in list(self._limits.items()):
            if known.pop(source, None) is not None:
                self._times.pop((kind, source), None)

    def _larger(self, kind: str, source: Hashable, sizes: Sizes, limits: Sizes | None) -> None:
        known = self._limits[kind]
        if limits is None and len(known) >= _SOURCES:
            self.dropped += 1
            return
        before = limits or (0, 0, 0)
        room = _ROOM + self._times[kind, source]
        larger = [size > limit for size, limit in zip(sizes, before, strict=True)]
        first, second, third = (
            size + size * room // _PARTS if is_larger else limit
            for size, limit, is_larger in zip(sizes, before, larger, strict=True)
        )
        known[source] = first, second, third
        if self._steady():
            self._times[kind, source] += 1
            self.woken += 1
            self._watch(f"{kind} beyond all before: {', '.join(f'{size:,}' for size in compress(sizes, larger))}")

    def sentence(self) -> str | None:
        """How often a step was observed because of its sizes, for the report; None for never."""
        if not self.woken and not self.dropped:
            return None
        times = "once" if self.woken == 1 else f"{self.woken:,} times"
        text = f"a step larger than all before it was watched in full {times}"
        return f"{text}; {self.dropped:,} steps were not judged by their sizes" if self.dropped else text
