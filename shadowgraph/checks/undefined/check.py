"""SG107: experiments before some replays of each graph show whether its results depend on bytes that must not matter.

The check notes what the program reads of each graph's results (`consumption`), chooses the bytes to fill as a replay
begins (`fills`), and leaves an `Experiment` on the graph. The backend conducts it before the replay, in the replaying
thread and without the debugger's lock (`trial`), restores all memory, and the finding is reported.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial

from shadowgraph.checks.base import Check, Checkpoint, Context, Detection, host_reader, reader_at
from shadowgraph.checks.culprits import culprit_of_node, node_at
from shadowgraph.checks.probed import report_all
from shadowgraph.checks.undefined import CODE
from shadowgraph.checks.undefined.consumption import Consumed, Consumption, reads_all
from shadowgraph.checks.undefined.details import Depends
from shadowgraph.checks.undefined.facts import Source
from shadowgraph.checks.undefined.fills import bystanders, fills_of, may_skip, own_buffers, typed
from shadowgraph.checks.undefined.records import Effect, Influence, Output, Target, Trial
from shadowgraph.checks.undefined.trial import defined_by, tried
from shadowgraph.common.internal_errors import error_barrier, log
from shadowgraph.graphs.rerunning import state_within
from shadowgraph.model.buffers import Buffer
from shadowgraph.model.findings import Culprit, Severity
from shadowgraph.model.graphs import Graph
from shadowgraph.model.launches import Access, LaunchKind, Pointer
from shadowgraph.model.phases import Phase
from shadowgraph.model.ranges import ByteRange, RangeSet
from shadowgraph.model.reruns import AllocationOf, Experiment, Reruns
from shadowgraph.model.stacks import Stack, current_stack
from shadowgraph.model.views import TensorView
from shadowgraph.tracking.foreign import still_there
from shadowgraph.tracking.writes import Write

_MOST = 12  # experiments with one graph
_FEW = 4  # replays, from the second on, before each of which there is one
_NOVEL = 4  # experiments with one graph because of novel steps
_INPUTS = ("in_ptr", "in_out_ptr")  # arguments of kernels that inductor generates
_COMPARED = 64 << 20  # bytes of results, and of memory in which a node is looked for


@dataclass(slots=True)
class _Schedule:
    """When there are experiments with one graph: before its second, third, fourth, eighth ... replay."""

    due: int = 2
    done: int = 0
    novel: int = 0
    refused: str | None = None

    def is_due(self, replay: int) -> bool:
        """Whether there is one now."""
        return self.refused is None and replay >= self.due and self.done < _MOST + self.novel

    def take(self, replay: int) -> None:
        """Schedule the next one."""
        self.done += 1
        self.due = replay + 1 if replay < _FEW else 1 << replay.bit_length()


@dataclass(slots=True)
class _Defined:
    """What the replays of a graph have left of the rows that its operators may skip.

    Attributes
    ----------
    replays
        The replays so far of which that is known.
    """

    replays: int = 0
    where: RangeSet = field(default_factory=RangeSet)

    def before(self, replay: int) -> RangeSet | None:
        """What the replays before one have defined; None where that is not known of each."""
        return self.where.copy() if self.replays == replay - 1 else None

    def add(self, replay: int, where: RangeSet) -> None:
        """A replay will define some bytes."""
        self.replays = replay
        for part in where:
            self.where.add(part)


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    """An influence on results that the program was not seen to read."""

    checkpoint: Checkpoint
    found: Influence
    runs: int


class UndefinedInfluence(Check):
    """Conducts the experiments."""

    needs_every_write = True

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._consumed = Consumption()
        self._written = RangeSet()  # by eager code
        self._unsure: set[int] = set()  # serials of graphs since whose capture writes passed unseen
        self._padding: dict[int, RangeSet] = {}
        self._schedules: dict[int, _Schedule] = {}
        self._waiting: dict[int, list[_Waiting]] = {}  # by the graph's serial
        self._defined: dict[int, _Defined] = {}  # by serial of the graphs that may skip rows
        self._experiments = self._runs = self._overflows = 0
        self._refused: Counter[str] = Counter()
        self._unsteady: dict[str, None] = {}

    def declare(self, buffer: Buffer, where: ByteRange, policy: str) -> None:
        """A declaration of padding; any thread."""
        known = self._padding.get(buffer.serial, RangeSet()).copy()
        (known.add if policy == "dont_care" else known.discard)(where)
        self._padding[buffer.serial] = known

    # -- what the program reads and writes -----------------------------------------------------------------------

    def host_read(self, view: TensorView, how: str, stack: Stack, checkpoint: Checkpoint) -> None:
        self._consumed.read((view,), host_reader(how, stack))

    def operands_read(self, name: str, pointers: Sequence[Pointer]) -> None:
        reader = reader_at("eager", name, current_stack())
        self._consumed.read([p.view for p in pointers if reads_all(name, p.argument)], reader)

    @property
    def wants_known_writes(self) -> bool:
        return False

    def written(self, write: Write, phase: Phase | None, graph: Graph | None) -> None:
        launch, stores = write.launch, write.stores
        views = [pointer.view for pointer in launch.pointers]
        reader = reader_at("eager", launch.name, launch.stack)
        if stores is not None and stores.loads is not None:
            self._consumed.loaded(stores.loads.ranges, views, reader, graph)
        elif graph is None and launch.kind is not LaunchKind.ATEN:  # it may read what it was given
            for pointer in launch.pointers:
                sure = pointer.argument.startswith(_INPUTS) or pointer.access in (Access.READ, Access.READ_WRITE)
                if pointer.may_read:
                    self._consumed.read((pointer.view,), reader, sure)
        if graph is None:
            self._consumed.overwritten(write.ranges)
            for part in write.ranges:
                self._written.add(part)

    def invalidate_writers(self) -> None:
        """After unseen writes no memory of the captures so far is known to be unwritten."""
        self._unsure.update(self.context.graphs)

    def novel(self) -> None:
        for schedule in list(self._schedules.values()):
            if schedule.novel < _NOVEL:
                schedule.novel += 1
                schedule.due = 0

    # -- an experiment ---------------------------------------------------------------------------------------------

    def replay_begins(self, checkpoint: Checkpoint) -> None:
        graph, replay = checkpoint.graph, checkpoint.replay
        if graph is None or replay is None:
            return
        graph.experiments.clear()  # of a replay that did not take them
        self._consumed.begins(graph)
        schedule = self._schedules.setdefault(graph.serial, _Schedule())
        self._judge_waiting()
        outputs: list[Output] = []
        if schedule.is_due(replay):
            outputs = self._outputs(graph) or self._provisional(graph)
            if outputs:
                schedule.take(replay)
        if outputs or (schedule.refused is None and self._is_to_be_defined(graph, replay)):
            self._prepare(graph, checkpoint, schedule, outputs)
        if len(self._schedules) > len(self.context.graphs):
            self._drop_gone()

    def recheck(self, checkpoint: Checkpoint) -> None:
        """Reads behind the last replay count as well."""
        self._consumed.settle()
        self._judge_waiting()

    def _is_to_be_defined(self, graph: Graph, replay: int) -> bool:
        """Whether to look what a replay defines of rows that operators may skip: each of the first ones."""
        if replay == 1 and may_skip(graph, own_buffers(graph, self.context)):
            self._defined[graph.serial] = _Defined()
        known = self._defined.get(graph.serial)
        return known is not None and replay <= _FEW and known.replays == replay - 1

    def _prepare(self, graph: Graph, checkpoint: Checkpoint, schedule: _Schedule, outputs: list[Output]) -> None:
        """Put an experiment on a graph; without outputs it only tells what the replay defines."""
        unsure, replay = graph.serial in self._unsure, checkpoint.replay or 0
        touched = [self._written, *self._given_to_others(graph)]
        known = self._defined.get(graph.serial)
        defined = known.before(replay) if known is not None else None
        fills = fills_of(graph, self.context, touched, self._padding, unsure, defined)
        skipped = [each for each in fills if each.skipped]
        if not (fills if outputs else skipped):
            return
        trials: list[Trial] = []
        targets = self._targets(graph)

        def conduct(reruns: Reruns) -> None:
            engine = self.context.engine
            with ExitStack() as undo:
                engine.pause(True)  # replays of other threads must not see guards that are filled
                undo.callback(engine.pause, False)
                undo.callback(reruns.run, (), 0)  # they are as they were when check nodes compare again
                if outputs:
                    trials.append(tried(reruns, fills, outputs, targets))
                if known is not None and skipped:
                    known.add(replay, defined_by(reruns, skipped))

        def ended(why: str | None) -> None:
            with error_barrier("undefined influence"):
                self._ended(graph, checkpoint, schedule, trials, why, held)

        held: list[object] = []
        ranges = [*(each.where for each in fills), *bystanders(self.context, held)]
        graph.experiments.append(Experiment(state=partial(self._state, graph, ranges), conduct=conduct, ended=ended))

    def _state(self, graph: Graph, ranges: list[ByteRange], allocation_of: AllocationOf) -> list[ByteRange]:
        context = self.context
        return state_within(graph, context.allocator, allocation_of, ranges, context.settings.locate_memory)

    def _outputs(self, graph: Graph) -> list[Output]:
        """The results that the program reads, each in one buffer, as far as there is room."""
        found: list[Output] = []
        own, room = own_buffers(graph, self.context), _COMPARED
        for consumed in sorted(self._consumed.of(graph.serial), key=lambda each: not each.sure):
            facts = consumed.dtype, consumed.itemsize, consumed.reader, consumed.sure
            for buffer, where in self._homes(consumed.ranges, own):
                if where.nbytes <= room:
                    room -= where.nbytes
                    found.append(Output(buffer, where, *facts))
        return found

    def _provisional(self, graph: Graph) -> list[Output]:
        """All results that the program has a tensor of, while it was not seen to read any: it may read them later."""
        if graph.serial in self._waiting:
            return []
        found: list[Output] = []
        made, room = self._consumed.made_by(graph), _COMPARED
        own = (buffer for buffer in own_buffers(graph, self.context).values() if buffer.alive)
        for buffer in (*own, *(each for each in graph.inputs.values() if still_there(each))):
            for where in made.intersection(buffer.range):
                for part in self._that_matter(buffer, where):
                    room -= part.nbytes
                    if room >= 0:
                        found.append(Output(buffer, part, *typed(graph, buffer, part), None, False))
        return found

    def _given_to_others(self, graph: Graph) -> list[RangeSet]:
        """Memory of a graph's capture that other graphs were given, and may write. They may also use the same memory
        for tensors of their own, which is no reason to take it for written."""
        found: list[RangeSet] = []
        own = own_buffers(graph, self.context)
        for other in self.context.graphs.values():
            given = [] if other is graph else [own[serial] for serial in other.inputs if serial in own]
            made = self._consumed.made_by(other) if given else RangeSet()
            found += [RangeSet.of(made.intersection(buffer.range)) for buffer in given]
        return found

    def _homes(self, ranges: RangeSet, own: dict[int, Buffer]) -> Iterator[tuple[Buffer, ByteRange]]:
        """The buffers that some bytes lie in, with the part in each."""
        for part in ranges:
            living = [each for each in self.context.ledger.overlapping(part.start, part.stop) if still_there(each)]
            gone = [] if living else [each for each in own.values() if each.range.overlaps(part)][:1]
            for buffer in (*living, *gone):
                where = part.intersect(buffer.range)
                if where is not None:
                    yield from ((buffer, each) for each in self._that_matter(buffer, where))

    def _that_matter(self, buffer: Buffer, where: ByteRange) -> Iterator[ByteRange]:
        """Bytes of a result without those that were declared not to matter."""
        yield from RangeSet.of([where]) - self._padding.get(buffer.serial, RangeSet())

    def _targets(self, graph: Graph) -> list[Target]:
        """Where nodes leave results, the small buffers first."""
        found: list[Target] = []
        made, room = self._consumed.made_by(graph), _COMPARED
        inputs = (b for b in graph.inputs.values() if still_there(b) and made.overlaps(b.range))
        own = own_buffers(graph, self.context)
        buffers = {b.serial: b for b in (*own.values(), *inputs)}
        for buffer in sorted(buffers.values(), key=lambda each: each.nbytes):
            room -= buffer.nbytes
            if room >= 0:
                found.append(Target(buffer.range, buffer.dtype, buffer.itemsize))
        return found

    def _ended(
        self,
        graph: Graph,
        checkpoint: Checkpoint,
        schedule: _Schedule,
        trials: list[Trial],
        refused: str | None,
        held: list[object],
    ) -> None:
        """The experiment is over: memory is restored, `held` can be freed, and the replay follows."""
        held.clear()
        if refused is not None:
            schedule.refused = refused
            self._refused[refused] += 1
            said = "shadowgraph: no experiment with %s (SG107): %s"
            log(logging.WARNING, said, graph.name, refused)
        drafts: list[Detection] = []
        for trial in trials:
            self._experiments += 1
            self._runs += trial.runs
            self._overflows += trial.overflows
            if trial.influences:  # the same would be found again
                schedule.due = max(schedule.due, 2 * (checkpoint.replay or 0))
            for output, node in trial.unsteady:
                self._note_unsteady(graph, output, node)
            for each in trial.influences:
                if each.effects[0].output.reader is None:
                    self._waiting.setdefault(graph.serial, []).append(_Waiting(checkpoint, each, trial.runs))
                else:
                    drafts.append(self._draft(checkpoint, each, each.effects[0], trial.runs))
        report_all(self.context, drafts)

    def _judge_waiting(self) -> None:
        """Report what was found before the program was seen to read the results."""
        drafts: list[Detection] = []
        for serial, waiting in list(self._waiting.items()):
            read = self._consumed.of(serial)
            for each in list(waiting):
                effect = _read_effect(each.found, read)
                if effect is not None:
                    waiting.remove(each)
                    drafts.append(self._draft(each.checkpoint, each.found, effect, each.runs))
        report_all(self.context, drafts)

    def _note_unsteady(self, graph: Graph, output: Output, node: int | None) -> None:
        name, _ = self.context.names.name_of(output.buffer)
        known = node_at(graph, node) if node is not None else None
        called = (graph.launch_of(known) or known) if known is not None else None
        by = f", first by {called.name} (node {node})" if called is not None else ""
        said = f"{name} of {graph.name}: two equal runs gave different values{by}"
        if said not in self._unsteady and len(self._unsteady) < 16:
            self._unsteady[said] = None
            log(logging.INFO, "shadowgraph: left out of experiments (SG107): %s", said)

    def _draft(self, checkpoint: Checkpoint, found: Influence, effect: Effect, runs: int) -> Detection:
        filled, where, output, graph = found.filled, found.where, effect.output, checkpoint.graph
        assert graph is not None
        located: tuple[Culprit, ...] = ()
        if found.node is not None and effect.computed:
            culprit = culprit_of_node(
                graph, found.node, checkpoint.replay or 0, filled.buffer.range, where, self.context.ledger,
                self.context.names, found.search,
            )  # fmt: skip
            located = (culprit,)
        sure = output.sure and effect.computed and filled.source is not Source.SLACK
        return Detection(
            code=CODE,
            checkpoint=checkpoint,
            buffer=filled.buffer,
            first=where.start,
            last=where.stop - 1,
            count=where.nbytes,
            ranges=((where.start, where.stop - 1),),
            side=filled.side,
            located=located,
            phase=Phase.REPLAY,
            graph=graph,
            replay=checkpoint.replay,
            reader=output.reader,
            severity=Severity.ERROR if output.sure else Severity.NOTE,
            confidence="high" if sure else "medium",
            key=f"{graph.serial} {filled.source}",
            facts=Depends(found, effect, runs),
        )

    # -- parts -------------------------------------------------------------------------------------------------

    def _drop_gone(self) -> None:
        live = self.context.graphs
        self._schedules = {serial: each for serial, each in self._schedules.items() if serial in live}
        self._consumed.dropped(live)
        self._waiting = {serial: each for serial, each in self._waiting.items() if serial in live}
        self._defined = {serial: each for serial, each in self._defined.items() if serial in live}
        self._unsure &= set(live)
        self._padding = {s: each for s, each in self._padding.items() if self.context.ledger.get(s) is not None}

    def sentence(self) -> str | None:
        """What was tried, for the report; None for nothing."""
        if not self._experiments and not self._refused:
            return None
        text = f"undefined influence (SG107) was tried {self._experiments:,} times, with {self._runs:,} runs of graphs"
        refused = [f"not with {count} of them, since {why}" for why, count in self._refused.items()]
        unsteady = [f"left out: {said}" for said in self._unsteady]
        large = f"left out: {self._overflows} that show with large values alone" if self._overflows else ""
        return "; ".join(filter(None, (text, *refused, *unsteady, large)))


def _read_effect(found: Influence, read: list[Consumed]) -> Effect | None:
    """An effect on bytes that the program has read by now, with the reader."""
    for consumed in sorted(read, key=lambda each: not each.sure):
        for effect in found.effects:
            if any(effect.differing.overlaps(part) for part in consumed.ranges):
                return replace(effect, output=replace(effect.output, reader=consumed.reader, sure=consumed.sure))
    return None
