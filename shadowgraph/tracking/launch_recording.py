"""The launch log that is written now, for every module that sees launches, replays, batches or plans.

`shadowgraph.monitor.recorder` sets it, when a debugger starts and after a fork; any thread reads it. On a hot path:

    log = launch_recording.current
    if log is not None:
        log.launch(...)
"""

from __future__ import annotations

from shadowgraph.model.launch_log import LaunchLog

current: LaunchLog | None = None  # None while no debugger watches
