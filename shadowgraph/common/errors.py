"""The errors that shadowgraph raises on purpose, each with the exit code of its command.

An error here is one clear line that says what to do. Any other failure inside shadowgraph is an internal error (see
`shadowgraph.common.internal_errors`): it is counted, shown in the report, and never breaks the watched program.
"""

from __future__ import annotations

from typing import ClassVar


class ShadowgraphError(Exception):
    """Base of every deliberate error.

    Attributes
    ----------
    exit_code
        Exit code of a `shadowgraph` command that this error ends. 0 is success and 1 is left to Python.
    """

    exit_code: ClassVar[int] = 10


class UsageError(ShadowgraphError):
    """An option, argument or call that does not exist or does not fit."""

    exit_code: ClassVar[int] = 2


class MissingFileError(ShadowgraphError):
    """A named file cannot be read or written."""

    exit_code: ClassVar[int] = 3


class FindingsError(ShadowgraphError):
    """Findings exist and the caller asked to treat them as a failure (also raised at the first one with ``sync``)."""

    exit_code: ClassVar[int] = 4


class MissingPackageError(ShadowgraphError):
    """A package, or a version of it, that this step needs is not installed."""

    exit_code: ClassVar[int] = 5


class BackendError(ShadowgraphError):
    """The backend cannot work here: no GPU, a torch that is too old, a dead CUDA context."""

    exit_code: ClassVar[int] = 6


class DeviceLostError(ShadowgraphError):
    """The CUDA context is dead or refuses a call: nothing more can be read from the device."""

    exit_code: ClassVar[int] = 6


class CaptureError(ShadowgraphError):
    """An operation that a graph cannot contain, or a capture call out of order."""

    exit_code: ClassVar[int] = 7


class FreedInputError(ShadowgraphError):
    """A replay would read or write memory whose owner was freed."""

    exit_code: ClassVar[int] = 8


class UnknownBufferError(ShadowgraphError):
    """The named object is not a tensor, or not a tracked buffer."""

    exit_code: ClassVar[int] = 9


class DumpError(ShadowgraphError):
    """A file cannot be read as a dump."""


class DamagedDumpError(DumpError):
    """A dump that is truncated, modified or forged."""

    exit_code = 12


class NewerDumpError(DumpError):
    """A dump of a later schema."""

    exit_code = 13


class OlderDumpError(DumpError):
    """A dump, or a report's JSON, of an earlier schema that this version does not read any more."""

    exit_code = 17


class ForeignFileError(DumpError):
    """A file that is not a dump."""

    exit_code = 14


class InvalidCaseError(ShadowgraphError):
    """The precondition of a test program did not hold, so that its result would prove nothing."""

    exit_code: ClassVar[int] = 11


class RunFolderError(ShadowgraphError):
    """A run folder cannot be created, written or read, or holds another run."""

    exit_code: ClassVar[int] = 15


class OlderRunError(RunFolderError):
    """A run folder of an earlier format that this version does not read any more."""

    exit_code: ClassVar[int] = 17


class UnsafeFolderError(RunFolderError):
    """A folder named with ``--run-dir`` belongs to another user, or is a link."""

    exit_code: ClassVar[int] = 16


class RecordedLogError(ShadowgraphError):
    """A check log or launch log that is truncated, forged, or of another version."""

    exit_code: ClassVar[int] = 18


class FenceError(ShadowgraphError):
    """A fence that cannot be laid, or was not: a place that does not exist, no allocation there, no memory for it."""

    exit_code: ClassVar[int] = 19


class NothingToDrawError(ShadowgraphError):
    """A picture of which nothing is known: a graph without any known write, for example."""

    exit_code: ClassVar[int] = 20


class NotExecutableError(ShadowgraphError):
    """The command to wrap exists and cannot be run (exit code as in a shell)."""

    exit_code: ClassVar[int] = 126


class CommandNotFoundError(ShadowgraphError):
    """The command to wrap does not exist (exit code as in a shell)."""

    exit_code: ClassVar[int] = 127
