"""One write past the end of one buffer of a clean program: what must be found.

A kernel gets a buffer and reads from memory how far past its end it goes: a real overrun depends on data, too,
and until it is armed the program is as clean as before. Which buffer (static, or written by the graph), how many bytes,
and whether the kernel is captured or runs in prepare, follows from the program's id. It is armed only where a guard
stands right behind the buffer, so that the write never hits the program's own data.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten

from corpus.counting import FOUND
from corpus.env import Captured, Env

LONGEST = 64  # bytes


@dataclass(frozen=True)
class Target:
    """Memory to write past. Holds no tensor: a program's buffers live as long as without it."""

    start: int
    nbytes: int
    form: str


class Plant:
    """The write planted into one run of a program.

    Parameters
    ----------
    pid
        The program's id, from which everything is chosen.
    replays
        How many replays the program makes: the write comes with the second one, where there is one.

    Attributes
    ----------
    where
        ``graph`` or ``prepare``.
    armed
        Whether the write was made.
    why_not
        Why it was not, so far.
    """

    def __init__(self, pid: str, replays: int) -> None:
        choose = random.Random(f"planted in {pid}")
        self.where = choose.choice(("graph", "prepare"))
        self.of = choose.choice(("static", "output"))
        self.nbytes = choose.randint(2, LONGEST)
        self._pick = choose.random()
        self._at = min(2, max(replays, 1))
        self._made: list[torch.Tensor] = []
        self._named: list[Any] = []
        self._extra: torch.Tensor | None = None
        self._graph: Any = None  # whose capture holds the kernel, or whose output is written past
        self._passed = 0
        self.target: Target | None = None
        self._writable: torch.Tensor | None = None
        self.serial: int | None = None
        self.armed = False
        self.why_not = "no capture of the program's own"

    # -- what the program tells ----------------------------------------------------------------------------------------

    def made(self, tensor: torch.Tensor) -> None:
        """A static buffer was made."""
        self._made.append(tensor)

    def named(self, owner: Any) -> None:
        """An owner of static buffers was named."""
        self._named.append(owner)

    def before_capture(self, env: Env) -> None:
        """Compile the kernel and make what it reads, before the first capture."""
        if self._extra is None:
            with torch.no_grad(), env.guarded():
                self._extra = torch.zeros(1, dtype=torch.int32, device=env.device)
                spare = torch.zeros(1, dtype=torch.uint8, device=env.device)
            self._launch(spare)

    def in_capture(self, env: Env, graph: Any, out: Any) -> None:
        """The body of a capture has run, and the capture goes on: choose the buffer, and launch the kernel at it."""
        if self._graph is not None:
            return
        outputs, statics = list(self._candidates(out)), self._statics()
        chosen = (outputs or statics) if self.of == "output" else (statics or outputs)
        if not chosen:
            self.why_not = "no buffer that owns its memory"
            return
        self._choose(chosen)
        self._graph = graph
        if self.where == "graph":
            assert self._writable is not None
            self._launch(self._writable)

    def before_replay(self, env: Env, captured: Captured) -> None:
        """A replay is about to begin: write, or let the graph write, from the chosen one on."""
        self._passed += 1
        if self.armed or self._passed < self._at or self._writable is None:
            return
        if self.where == "graph" and captured.graph is not self._graph:
            self.why_not = "the graph is not replayed again"
            return
        if self._arm(env) and self.where == "prepare":
            with env.prepare(captured):
                self._launch(self._writable)

    def before_results(self, env: Env) -> None:
        """Results are about to be read: in a program that captures by calls of torch's, the place to write."""
        if env.graphs or self.armed or not env.kept or not self._statics():
            return
        self.where = "prepare"
        if self._writable is None:
            self.before_capture(env)
            self._choose(self._statics())
        assert self._writable is not None
        if self._arm(env):
            self._launch(self._writable)

    def forget(self) -> None:
        """Let go of the program's memory: it has ended."""
        self._made, self._named, self._graph, self._writable = [], [], None, None

    # -- doing it ------------------------------------------------------------------------------------------------------

    def _choose(self, chosen: list[torch.Tensor]) -> None:
        tensor = chosen[int(self._pick * len(chosen))].detach()
        flat = tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)
        self.target = Target(flat.data_ptr(), flat.numel(), f"{tensor.dtype}{list(tensor.shape)}")
        self._writable = flat

    def _arm(self, env: Env) -> bool:
        """Let the kernel write, where a guard stands right behind the buffer."""
        assert self.target is not None
        assert self._extra is not None
        stop = self.target.start + self.target.nbytes
        standing = [b for b in env.debugger.buffers if b.stop == stop and b.exact and b.tail_guard >= self.nbytes]
        if not standing:
            self.why_not = "no guard right behind the buffer"
            return False
        self.serial, self.armed = standing[0].serial, True
        self._extra.fill_(self.nbytes)
        env.wait()
        return True

    def _launch(self, target: torch.Tensor) -> None:
        from corpus.kernels import overrun

        overrun[(1,)](target, target.numel(), self._extra, BLOCK=LONGEST)

    def _statics(self) -> list[torch.Tensor]:
        made = list(self._candidates(self._made))
        return made or list(self._candidates(self._named))

    def _candidates(self, tree: Any) -> Iterator[torch.Tensor]:
        for each in tree_flatten(tree)[0]:
            if isinstance(each, nn.Module):
                yield from (t for t in (*each.parameters(), *each.buffers()) if _owns_its_memory(t))
            elif isinstance(each, torch.Tensor) and _owns_its_memory(each):
                yield each

    # -- what became of it ---------------------------------------------------------------------------------------------

    def outcome(self, debugger: Any) -> dict[str, Any]:
        """Found or not, by what, and whether the kernel and the bytes are named."""
        told = {"where": self.where, "buffer": self.target.form if self.target else None, "bytes": self.nbytes}
        if not self.armed:
            return {"outcome": "not planted", "why": self.why_not, **told}
        assert self.target is not None
        errors = [finding for finding in debugger.findings if self._is_about(finding)]
        if not errors:
            return {"outcome": self._instead(debugger), **told}
        found = errors[0]
        culprits = {culprit.name for culprit in (found.culprit, *found.candidates)}
        return {
            "outcome": FOUND,
            "code": found.code,
            "culprit": any("overrun" in (name or "") for name in culprits),
            "exactly": found.bytes is not None and found.bytes.last == self.target.nbytes + self.nbytes - 1,
            **told,
        }

    def _is_about(self, finding: Any) -> bool:
        assert self.target is not None
        mine = finding.buffer.serial == self.serial or finding.buffer.address == self.target.start
        return mine and finding.bytes is not None and finding.bytes.last >= finding.buffer.nbytes

    def _instead(self, debugger: Any) -> str:
        if debugger.findings:
            return "elsewhere"
        return "a note only" if any(self._is_about(note) for note in debugger.notes) else "missed"


def _owns_its_memory(tensor: torch.Tensor) -> bool:
    """Whether a tensor is dense and all of its storage, so that what is behind it is nothing of the program's."""
    if type(tensor) not in (torch.Tensor, nn.Parameter) or tensor.layout != torch.strided or tensor.is_meta:
        return False
    if tensor.numel() == 0 or tensor.storage_offset() or tensor.is_conj() or tensor.is_neg() or tensor.is_quantized:
        return False
    return tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()
