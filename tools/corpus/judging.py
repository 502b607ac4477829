"""Runs one program in all ways and says what became of it."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from corpus.env import Env, NotCapturable, ProbeDone, Program, Skip
from corpus.images import difference
from corpus.planting import Plant
from corpus.running import Answer, Watched, run_plain, said

TOO_SLOW = 20  # times as long as unwatched
SHORTEST = 0.001  # s, for the ratio
# What a program is called that has several problems: the first of these.
PROBLEMS = (
    "crash", "false-alarm", "outputs differ", "watched eager work differs", "host graph differs from eager",
    "a dispatch mode changes bits",
)  # fmt: skip
Mark = Callable[[str], None]


class PassingMode(TorchDispatchMode):
    """Does nothing, but is there."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Ended(Exception):
    """The program could not be run plain, or only the host graph fails: the result says which."""


class Judged:
    """One program; `result` is complete once `clean` or `planted` has returned.

    Parameters
    ----------
    eager_ok
        Whether its replays may be compared with eager work.
    mark
        Told of each stage before it begins, so that the reader of a dead process knows where it died.
    """

    def __init__(self, pid: str, program: Program, backend: str, eager_ok: bool, mark: Mark) -> None:
        self._program, self._backend, self._eager_ok, self._mark = program, backend, eager_ok, mark
        self.result: dict[str, Any] = {"id": pid, "status": "", "problems": []}
        self._problems: set[str] = set()
        self._watched: dict[str, Watched] = {}
        self._began = time.perf_counter()

    # -- both kinds of run ---------------------------------------------------------------------------------------------

    def _plain(self, kind: str, mark: str | None = None) -> Env:
        self._mark(mark or kind)
        return run_plain(self._program, self._backend, kind)

    def _first(self) -> Env:
        """The first plain run; ends where there is none."""
        try:
            if self._backend == "cuda":
                with suppress(ProbeDone):
                    self._plain("probe")
            return self._plain("plain")
        except Skip as skip:
            raise self._done("skipped", reason=f"cannot be made: {skip}") from None
        except NotCapturable as error:
            cause = error.__cause__
            if self._backend == "host" and type(cause).__name__ != "CaptureError":
                self._blame_host_graph(f"not capturable: {error}", cause)
            raise self._done("skipped", reason=f"not capturable: {error}") from None
        except Exception as error:
            if self._backend == "host":
                self._blame_host_graph(f"replay: {said(error)}", error)
            raise self._done("skipped", reason=f"fails unwatched: {said(error)}", trace=_trace(error)) from None

    def _blame_host_graph(self, reason: str, error: BaseException | None) -> None:
        """The host graph is shadowgraph's own: where eager work does not fail, it does."""
        try:
            self._plain("eager")
        except Exception as again:
            raise self._done("skipped", reason=f"fails eagerly: {said(again)}") from None
        self._problems.add("crash")
        trace = _trace(error) if error is not None else ""
        raise self._done("crash", reason=reason, where="unwatched HostGraph", trace=trace)

    def _done(self, status: str, **more: Any) -> Ended:
        seconds = round(time.perf_counter() - self._began, 3)
        self.result |= {"status": status, "problems": sorted(self._problems), "seconds": seconds, **more}
        return Ended()

    # -- a clean program -----------------------------------------------------------------------------------------------

    def clean(self, variants: list[str]) -> dict[str, Any]:
        """Watch it in each variant: it must run as before, give the same bits, and nothing may be found."""
        with suppress(Ended):
            first = self._first()
            self.result |= {"replays": first.replayed, "kept": len(first.kept), "variants": {}}
            self._watch(variants, first)
            second, deterministic = self._again(first)
            if self._eager_ok and not first.undefined:
                self._eager(first, deterministic, variants[0])
            base = max(min(first.graph_time, second.graph_time), SHORTEST)
            for variant, watched in self._watched.items():
                self._judge(variant, watched, first if deterministic else None, base)
            self.result["nodes"] = max((watched.answer["nodes"] for watched in self._watched.values()), default=0)
            raise self._done(next((name for name in PROBLEMS if name in self._problems), "clean"))
        return self.result

    def _watch(self, variants: list[str], first: Env) -> None:
        for variant in variants:
            self._mark(f"watched:{variant}")
            watched = Watched(self._program, self._backend, variant, results=len(first.kept))
            self._watched[variant] = watched
            self.result["variants"][variant] = watched.answer
            if watched.answer["lost"]:
                break

    def _again(self, first: Env) -> tuple[Env, bool]:
        """A second plain run, and whether the program is deterministic without a debugger."""
        second = self._plain("plain", "plain again")
        apart = difference(first.kept, second.kept)
        if apart is not None and not first.undefined:
            self.result["nondeterministic"] = apart
            third = self._plain("plain", "plain again").kept
            if difference(second.kept, third) is None and difference(first.kept, third) is not None:
                self.result["residue"] = apart  # only the run before those that were watched is different
        deterministic = apart is None and not first.undefined
        self.result["compared"] = deterministic
        return second, deterministic

    def _eager(self, first: Env, deterministic: bool, variant: str) -> None:
        """Eager work gives the same bits with a debugger, and on the host what the graph gives."""
        try:
            eager = self._plain("eager")
            if self._backend == "host" and deterministic:
                self._compare_host_graph(first, eager)
            self._mark("watched:eager")
            watched = Watched(self._program, self._backend, variant, kind="eager")
            apart = difference(eager.kept, watched.env.kept)
            steady = apart is None or difference(eager.kept, self._plain("eager").kept) is None
        except Exception as error:
            self.result["eager_error"] = said(error)
            return
        answer = watched.answer
        if apart is not None and not answer["error"] and steady:
            self.result["watched_eager_differs"] = apart
            self._problems.add("watched eager work differs")
        if _problems_of(answer):
            self._problems |= _problems_of(answer)
            self.result["variants"]["eager"] = answer

    def _compare_host_graph(self, first: Env, eager: Env) -> None:
        apart = difference(first.kept, eager.kept)
        if apart is None:
            return
        with PassingMode():
            same = difference(self._plain("eager").kept, first.kept) is None
        self.result["eager_differs"] = apart
        self._problems.add("a dispatch mode changes bits" if same else "host graph differs from eager")

    def _judge(self, variant: str, watched: Watched, plain: Env | None, base: float) -> None:
        answer = watched.answer
        problems = _problems_of(answer)
        if plain is not None and not answer["error"]:
            answer["diff"] = difference(plain.kept, watched.env.kept)
            problems |= {"outputs differ"} if answer["diff"] is not None else set()
        ratio = watched.env.graph_time / base
        if variant != "locate":  # which is meant to take its time: as many looks at all memory as there are nodes
            if ratio > TOO_SLOW:  # something else may have taken the time
                self._mark(f"watched:{variant} again")
                ratio = min(ratio, Watched(self._program, self._backend, variant).env.graph_time / base)
            problems |= {"slow"} if ratio > TOO_SLOW else set()
        answer["ratio"] = round(ratio, 2)
        answer["problems"] = sorted(problems)
        self._problems |= problems

    # -- a planted one -------------------------------------------------------------------------------------------------

    def planted(self, variants: list[str]) -> dict[str, Any]:
        """Watch it in each variant with a write planted past the end of a buffer, which must be found."""
        with suppress(Ended):
            first = self._first()
            self.result |= {"replays": first.replayed, "variants": {}}
            for variant in variants:
                self._mark(f"watched:{variant}")
                plant = Plant(self.result["id"], first.replayed)
                answer = Watched(self._program, self._backend, variant, plant=plant).answer
                answer.setdefault("planted", {"outcome": "crash", "why": answer["error"]})
                self.result["variants"][variant] = answer
                if answer["lost"]:
                    break
            raise self._done("planted")
        return self.result


def _problems_of(answer: Answer) -> set[str]:
    broken = answer["error"] or answer["faults"] or answer["lost"]
    return ({"crash"} if broken else set()) | ({"false-alarm"} if answer["findings"] else set())


def _trace(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))[-3000:]
