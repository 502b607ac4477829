"""Hooks around vLLM's sleep mode: which memory loses its contents at a sleep, and when it is mapped again.

`CuMemAllocator` unmaps all of its memory at `sleep`, and keeps the addresses. What has one of the tags to offload is
copied to the host before and back in `wake_up`; the rest is mapped again with other contents. ``Worker.sleep`` offloads
the weights at level 1 and nothing at level 2, where ``Worker.wake_up`` copies the named buffers of the model back by an
operator, which is observed like any other write. Ranges and tags are those of the allocator's own table; no object of
vLLM is kept alive.

Run in the thread that sleeps and wakes up, without a lock. A sleep waits for the device, since vLLM empties the cache
of torch's allocator in it; the first bytes of what graphs read are copied before it.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import TYPE_CHECKING, Any

from shadowgraph.common.internal_errors import error_barrier_all
from shadowgraph.integrations.dropped_memory import Drop, DroppedMemory
from shadowgraph.model.ranges import ByteRange

if TYPE_CHECKING:
    from shadowgraph.debugger import Debugger

_WHERE = "vllm adapter"

Original = Callable[..., Any]


class SleepHooks:
    """Reports what a sleep drops to the active debugger. Base class of `Hooks`."""

    def __init__(self) -> None:
        self._dropped = DroppedMemory()
        self._level: object = None  # of the worker's sleep that goes on

    def forget_sleep(self, debugger: Debugger) -> None:
        """A debugger has ended."""
        self._dropped.forget(debugger)

    def fall_asleep(self, original: Original) -> Original:
        """Around a sleep of the allocator."""

        def sleep(allocator: Any, *args: Any, **kwargs: Any) -> Any:
            drops: list[Drop] = []
            with error_barrier_all(_WHERE):
                offloaded = tags_offloaded(allocator, args[0] if args else kwargs.get("offload_tags"))
                if offloaded is not None:
                    drops = self._dropped.announce(ranges_dropped(allocator, offloaded), self._how(offloaded))
            result = original(allocator, *args, **kwargs)
            self._dropped.dropped(drops)
            return result

        return sleep

    def wake(self, original: Original) -> Original:
        """Around a wake-up of the allocator, of all memory or of some tags."""

        def wake_up(allocator: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(allocator, *args, **kwargs)
            with error_barrier_all(_WHERE):
                self._dropped.back(args[0] if args else kwargs.get("tags"))
            return result

        return wake_up

    def sleep_level(self, original: Original) -> Original:
        """Around a worker's sleep, for the report: users know the level, not the tags."""

        def sleep(worker: Any, *args: Any, **kwargs: Any) -> Any:
            self._level = args[0] if args else kwargs.get("level", 1)
            try:
                return original(worker, *args, **kwargs)
            finally:
                self._level = None

        return sleep

    def _how(self, offloaded: tuple[str, ...]) -> str:
        if type(self._level) is int:
            return f"vllm sleep(level={self._level})"
        return f"vllm CuMemAllocator.sleep(offload_tags={offloaded})"


def tags_offloaded(allocator: Any, given: Any) -> tuple[str, ...] | None:
    """The tags whose memory a sleep copies to the host, by its argument; None for one that vLLM refuses."""
    if given is None:
        return (allocator.default_tag,)
    if isinstance(given, str):
        return (given,)
    return given if isinstance(given, tuple) else None


def ranges_dropped(allocator: Any, offloaded: Container[str]) -> dict[str, list[ByteRange]]:
    """Addresses by tag of the memory that a sleep does not copy to the host."""
    found: dict[str, list[ByteRange]] = {}
    for address, data in list(allocator.pointer_to_data.items()):
        if data.tag not in offloaded:
            nbytes = data.handle[1]  # of device, size, address and handle of the driver
            found.setdefault(data.tag, []).append(ByteRange(address, address + nbytes))
    return found
