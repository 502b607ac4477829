"""The options of a debugger, each declared in one row: default, kind, words, and the command lines that have a flag.

Everything that offers options derives them from `OPTIONS`: the fields of `shadowgraph.Settings` (`debug()`,
`install()`), the variables of the environment, `shadowgraph wrap`, the pytest plugin, the magics, and the pages of the
documentation. Imports little: the command line and the pytest plugin start with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

from shadowgraph.common.errors import UsageError
from shadowgraph.common.option_kinds import Bytes, Choice, Count, File, Kind, Limit, Switch, Words
from shadowgraph.common.suggestions import did_you_mean

PREFIX = "SHADOWGRAPH_"
_OTHER_VARIABLES = ("SHADOWGRAPH_TRACEBACK", "SHADOWGRAPH_WRAP")  # of the command, and of `wrap` for its processes
SMALLEST_DUMP = 64 << 10
FENCE_PLACE = r"in:[\w.]+:[\w.<>]+|(?!in:)[^,]+:[1-9]\d*"
CommandLine = Literal["wrap", "pytest"]
Layout = Literal["isolate", "faithful"]
BackendName = Literal["host", "cuda"]
Locate = Literal["auto", "off", "all"]
WatchEager = Literal["always", "sampled"]
Checks = Literal["nodes", "launches"]
Operators = Literal["auto", "observer", "mode"]
CaptureLines = Literal["each", "learnt"]
StaleRows = Literal["error", "note"]


class Flag(NamedTuple):
    """An option's flag on a command line of a shell. The magics have one for each option, named after it.

    Attributes
    ----------
    names
        The flag, and older spellings of it.
    off
        The flag of a switch turns it off.
    zero
        What 0 stands for, where it is taken for None.
    unit
        What a value must be, in the line about one that is none, where that has words of its own.
    """

    names: tuple[str, ...]
    off: bool = False
    zero: str = ""
    unit: str = ""


class Option(NamedTuple):
    """One option.

    Attributes
    ----------
    name
        The field of `Settings`.
    default
        None only where None is a value: nothing set.
    kind
        How a text becomes a value, and which values fit.
    help
        What it is, in the words of every surface.
    more
        Further sentences, for the reference.
    unset
        What None stands for.
    flags
        Its flags, by command line.
    defaults
        Other defaults, by command line: for programs that declare nothing.
    choice
        A further choice of the command lines, which is resolved before there are settings, and what it stands for.
    live
        Whether it may change while a debugger runs.
    """

    name: str
    default: Any
    kind: Kind
    help: str
    more: str = ""
    unset: str = ""
    flags: Mapping[CommandLine, Flag] = {}  # never changed
    defaults: Mapping[CommandLine, Any] = {}  # never changed
    choice: tuple[str, str] | None = None
    live: bool = False

    @property
    def variable(self) -> str:
        """The option's variable of the environment."""
        return PREFIX + self.name.upper()

    @property
    def dashed(self) -> str:
        """The option's flag in a magic."""
        return f"--{self.name.replace('_', '-')}"

    def check(self, value: object) -> None:
        """Refuse a value that does not fit.

        Raises
        ------
        UsageError
        """
        if value is not None or self.default is not None:
            self.kind.check(self.name, value)

    def default_of(self, line: CommandLine | None) -> Any:
        """The default, in general or of a command line."""
        return self.default if line is None else self.defaults.get(line, self.default)

    def default_in_words(self, line: CommandLine | None = None) -> str:
        """The default as a command line writes it; empty for a switch, and where nothing is set."""
        default = self.default_of(line)
        if default is None or isinstance(default, bool):
            return self.unset if default is None else ""
        return f"{default:g}" if isinstance(default, float) else str(default)

    @property
    def reference(self) -> str:
        """All of it but the default, in sentences, for the reference."""
        unset = f" None: {self.unset}." if self.unset else ""
        return f"{self.help[0].upper()}{self.help[1:]}.{unset}{f' {self.more}' if self.more else ''}"

    def told(self, line: CommandLine | None = None) -> str:
        """The help text, in general or of a command line."""
        flag = self.flags.get(line) if line is not None else None
        choice = f"; {self.choice[0]}: {self.choice[1]}" if self.choice is not None and flag is not None else ""
        default = self.default_in_words(line)
        notes = [f"default: {default}"] if default else []
        notes += [f"0: {flag.zero}"] if flag is not None and flag.zero else []
        said = f"do not {self.help}" if flag is not None and flag.off else self.help
        end = f" ({'; '.join(notes)})" if notes else ""
        return f"{said}{choice}{end}"


OPTIONS: tuple[Option, ...] = (
    Option(
        "backend", "host", Choice(get_args(BackendName)),
        "where graphs run: host, which needs no GPU, or cuda",
        flags={"wrap": Flag(("--backend",)), "pytest": Flag(("--shadowgraph-backend",))},
        defaults={"wrap": "auto", "pytest": "auto"},
        choice=("auto", "cuda where a GPU is usable"),
    ),
    Option(
        "sync", False, Switch(),
        "check after every launch and raise at the first finding",
        "The error is `FindingsError`.",
        flags={"wrap": Flag(("--sync",))},
    ),
    Option(
        "layout", "isolate", Choice(get_args(Layout)),
        "faithful: memory freed during a capture is reused in it, as the program's own pool would; isolate: it is not, "
        "and every tensor has guards",
        "On CUDA the pool of ``faithful`` is the program's own, and guards stand in bytes that it never allocated.",
        flags={"wrap": Flag(("--layout",))},
        defaults={"wrap": "faithful"},
    ),
    Option(
        "near_guard", 256, Bytes(at_least=16),
        "bytes of canary directly before and after a buffer, which every check reads",
    ),
    Option(
        "far_guard", None, Bytes(),
        "bytes of canary beyond the near guard after a buffer, read after a near hit and in rotation",
        unset="as many as the buffer has, from 4 KiB to 1 MiB",
    ),
    Option(
        "guard_memory", None, Bytes(),
        "most bytes that guards may add",
        "Past it guards shrink to the near ones, then stop.",
        unset="1 GiB on the host, 5 % of a card",
        flags={"wrap": Flag(("--guard-memory",), unit="bytes such as 512M")},
    ),
    Option(
        "shadow_limit", 1 << 20, Bytes(),
        "largest buffer in bytes whose values are compared across a replay unless it is protected or watched",
    ),
    Option(
        "suppressions", None, File(),
        "file of rules whose findings are counted but not shown",
        "One rule a line: a fingerprint, or patterns of code, buffer, kernel, file and function; ``#`` comments.",
        flags={"wrap": Flag(("--suppressions",))},
    ),
    Option(
        "infer", True, Switch(),
        "apply the inferred rules (SG102 and SG109 without a declaration)",
        flags={"wrap": Flag(("--no-infer",), off=True)},
    ),
    Option(
        "list_inferred", False, Switch(),
        "show what the host reads of a graph's changes (SG102) as notes",
        "Else it is only counted: outputs, counters and tokens that are fed back are meant to be read. "
        "`Debugger.inferred` lists them in any case.",
        flags={"wrap": Flag(("--list-inferred",))},
    ),
    Option(
        "dump_limit", 64 << 20, Bytes(at_least=SMALLEST_DUMP),
        "largest dump in bytes",
        "Contents that do not fit are left out, the least useful first.",
    ),
    Option(
        "dump_whole", 64 << 10, Bytes(),
        "largest buffer in bytes whose contents a dump holds in full",
        "Of a larger one it holds both ends.",
    ),
    Option(
        "variable_names", True, Switch(),
        "name buffers that the program does not name after the variables that lead to them, locals included",
        "Variables are looked up for buffers of findings, for inputs of new graphs, for what a ``guard()`` block "
        "allocates, and when a dump or a map is made; in all at most five seconds. They are read as stored, without "
        "code of the program, and are not kept alive. Names that `Debugger.name` gives go before.",
        flags={"wrap": Flag(("--no-variable-names",), off=True)},
    ),
    Option(
        "guard_eager", "off", Words(("off", "auto", "all"), "in:module:qualname", r"in:[\w.]+:[\w.<>]+"),
        "eager allocations that become guarded static buffers without a guard() block: off, auto, all or "
        "in:module:qualname",
        "``auto``: results of allocating operators, except parameters of modules, until the eighth replay after the "
        "latest capture; above 64 MiB those of ``empty``, ``zeros``, ``ones``, ``full`` and their kin, which get a "
        "guard behind them where they are made; ``all``: every result of every operator, at any time; "
        "``in:module:qualname``: like auto, in a function and its callees, at any time; several separated by commas. "
        "In watched threads.",
        flags={"wrap": Flag(("--guard-eager",))},
        defaults={"wrap": "auto", "pytest": "auto"},
    ),
    Option(
        "fence", None, Words((), "in:module:qualname or FILE:LINE", FENCE_PLACE, "WHERE"),
        "lay a fence behind eager allocations of a place, in:module:qualname or FILE:LINE: no memory is mapped behind "
        "them, so that an access past their end ends the program at that instruction",
        "By SIGSEGV on the host, by a lost context (error 700) on CUDA. The function, or the line, is on the stack "
        "while the tensor is allocated; several separated by commas.",
        unset="none",
        flags={"wrap": Flag(("--fence",))},
    ),
    Option(
        "fence_anyway", False, Switch(),
        "lay fences also under CUDA MPS, where an access past one ends all programs that share the device",
        flags={"wrap": Flag(("--fence-anyway",))},
    ),
    Option(
        "watch_eager", "always", Choice(get_args(WatchEager)),
        "sampled: after a long time without an event, observe eager operators around one replay in 256 only, and look "
        "closer at one in 64 to 192; after 100,000 operators without a capture observe none until the next capture",
        "See `shadowgraph.monitor.sampling.observation` and `shadowgraph.monitor.idleness`.",
        flags={"wrap": Flag(("--watch-eager",))},
        defaults={"wrap": "sampled"},
    ),
    Option(
        "checks", "nodes", Choice(get_args(Checks)),
        "how replays of CUDA graphs are checked: nodes, by two kernel nodes that are added to each captured graph; "
        "launches, by kernels launched around each replay",
        "Nodes check every replay on the device, also one that no Python code launches. A graph that was captured "
        "before, or that cannot carry them, is checked by launches in any case.",
        flags={"wrap": Flag(("--checks",))},
    ),
    Option(
        "operators", "mode", Choice(get_args(Operators)),
        "what notes operators while dispatch modes let them pass unseen: mode, nothing; observer, kernels in C++ "
        "that stand in for torch's, in every thread; auto, observer with backend cuda",
        "The observer is compiled in the background when it is first wanted (g++, c++ or clang++, some ten seconds of "
        "one core) and kept in ``$XDG_CACHE_HOME/shadowgraph`` or ``~/.cache/shadowgraph``. Nothing waits for it; "
        "until it is there, and where it cannot be built, it is as with ``mode``, and the report says so.",
        flags={"wrap": Flag(("--operators",))},
        defaults={"wrap": "auto"},
    ),
    Option(
        "capture_lines", "each", Choice(get_args(CaptureLines)),
        "how the launches of a CUDA capture get their lines: each, by a dispatch mode and a look at each C function "
        "that returns, in each capture; learnt, by the observer in C++, from an earlier graph that the same code "
        "captured, as long as operators and kernels are the same",
        "``learnt`` captures faster. Until the observer is compiled, and where it cannot be, it is as with ``each``, "
        "and the report says so; with ``operators=\"mode\"`` as well.",
        flags={"wrap": Flag(("--capture-lines",))},
    ),
    Option(
        "every", 1, Count(),
        "look closer at one replay of each graph in this many, from its first on",
        "Guards of a graph with check nodes are compared at every replay in any case; of another graph, damage by a "
        "replay in between is seen at the next one that is looked at.",
        flags={"wrap": Flag(("--every",))},
    ),
    Option(
        "overhead_percent", None, Limit(float, metavar="PERCENT"),
        "most of the wall time that checking may take, in percent",
        "Past it checks thin out, then stop. Checks that were thinned out come back once there is time for them.",
        unset="no limit",
        flags={
            "wrap": Flag(("--budget-percent", "--overhead"), zero="no limit", unit="a share of the time in percent")
        },
        defaults={"wrap": 75.0},
    ),
    Option(
        "fault_limit", None, Limit(int),
        "internal errors after which checks thin out; at twice as many they stop",
        unset="no limit",
        defaults={"wrap": 1000},
    ),
    Option(
        "locate", "auto", Choice(get_args(Locate)),
        "when a replay runs its nodes one by one, with a memory check after each, to name the launch at fault: auto, "
        "the replay after a failed check whose culprit is not known; off; all, every graph's second replay too",
        "The second replay tells which bytes each node writes.",
        flags={"wrap": Flag(("--locate",))},
    ),
    Option(
        "locate_memory", 2 << 30, Bytes(),
        "most bytes that copies for a replay node by node may take",
        "A replay that needs more is refused.",
    ),
    Option(
        "stale_rows", "error", Choice(get_args(StaleRows)),
        "whether stale rows (SG103) of inputs that the program declares nothing about are an error or a note",
        "`Debugger.padding` declares.",
        defaults={"wrap": "note", "pytest": "note"},
        live=True,
    ),
    Option(
        "undefined", False, Switch(),
        "before some replays, run the graph several times with other values in bytes that must not matter, to see "
        "whether its results depend on them (SG107)",
        "Before the second, third, fourth, eighth, sixteenth ... replay of each graph that is looked at: four runs of "
        "it, and some dozens where a result depends. All memory is restored before the replay. Threads of the program "
        "must not write meanwhile: the restoration would undo that. Copies take up to ``locate_memory``.",
        flags={"wrap": Flag(("--undefined",))},
    ),
    Option(
        "partial_reruns", True, Switch(),
        "run a graph whose nodes cannot be looked at one by one in part, several times, before a replay, to name the "
        "launch at fault",
        "Off where threads of the program may write at any time: a rerun would undo that. ``locate=\"all\"`` asks for "
        "it in any case.",
        defaults={"wrap": False},
        live=True,
    ),
)  # fmt: skip


def option(name: str, rows: Sequence[Option] = OPTIONS) -> Option:
    """The option with a name.

    Raises
    ------
    KeyError
        For a name that no option has.
    """
    return {row.name: row for row in rows}[name]


def from_variables(environment: Mapping[str, str], rows: Sequence[Option] = OPTIONS) -> dict[str, Any]:
    """The options that variables of the environment set.

    Raises
    ------
    UsageError
        For a variable whose text does not parse, and for one that begins as ours do and does not exist.
    """
    known = {row.variable for row in (*OPTIONS, *rows)} | set(_OTHER_VARIABLES)
    for name in environment:
        if name.startswith(PREFIX) and name not in known:
            near = did_you_mean(name, known, PREFIX)
            raise UsageError(f"no variable {name}{near}; docs/settings.md lists them: unset it or correct its name")
    return {
        row.name: row.kind.parse(environment[row.variable], row.variable) for row in rows if row.variable in environment
    }


def defaults_of(line: CommandLine, environment: Mapping[str, str], rows: Sequence[Option] = OPTIONS) -> dict[str, Any]:
    """A command line's other defaults, where no variable of the environment sets the option."""
    return {row.name: row.defaults[line] for row in rows if line in row.defaults and row.variable not in environment}


def add_flags(add: Callable[..., Any], line: CommandLine, rows: Sequence[Option] = OPTIONS, prefix: str = "") -> None:
    """Offer the flags of a command line; what is not given is None.

    Parameters
    ----------
    add
        `add_argument` of a parser, or `addoption` of pytest.
    prefix
        What names of parsed options begin with.
    """
    for row in rows:
        if line not in row.flags:
            continue
        words = row.kind.argument()
        if "choices" in words:
            words["choices"] = _choices(row, line)
        elif "action" in words:
            words["const"] = not row.flags[line].off
        else:
            words["metavar"] = row.kind.metavar
        add(*row.flags[line].names, dest=prefix + row.name, help=row.told(line).replace("%", "%%"), **words)


def given(values: Mapping[str, Any], line: CommandLine, rows: Sequence[Option] = OPTIONS) -> dict[str, Any]:
    """The options among parsed flags that the command line names.

    Raises
    ------
    UsageError
        For a text that does not parse, or a number below 0 where 0 stands for None.
    """
    found: dict[str, Any] = {}
    for row in rows:
        value = values.get(row.name)
        if value is not None and line in row.flags:
            found[row.name] = _value(value, row, row.flags[line])
    return found


def require(values: Mapping[str, Any], rows: Sequence[Option] = OPTIONS) -> None:
    """Refuse values that do not fit.

    Raises
    ------
    UsageError
    """
    for row in rows:
        if row.name in values:
            row.check(values[row.name])


def _value(value: Any, row: Option, flag: Flag) -> Any:
    if isinstance(value, str):
        try:
            return row.kind.parse(value, flag.names[0])
        except UsageError:
            if flag.unit:
                raise UsageError(f"{flag.names[0]} must be {flag.unit}, not {value!r}") from None
            raise
    if not flag.zero:
        return value
    if not value >= 0:
        raise UsageError(f"{flag.names[0]} must be {flag.unit}, or 0 for {flag.zero}, not {value:g}")
    return value or None


def _choices(row: Option, line: CommandLine) -> tuple[str, ...]:
    """The choices on a command line, its default first."""
    own = row.kind.argument()["choices"]
    more = (row.choice[0],) if row.choice is not None else ()
    return tuple(dict.fromkeys((row.default_of(line), *own, *more)))
