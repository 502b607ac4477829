"""Run folders as a run leaves them, made without one."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from support.finding_samples import altered

from shadowgraph.common.version import VERSION
from shadowgraph.model.coverage import Coverage
from shadowgraph.wrap.folder.heartbeats import Heartbeat, heartbeat_file, write_heartbeat
from shadowgraph.wrap.folder.injection_config import InjectionConfig
from shadowgraph.wrap.folder.run_folder import RunFolder

COVERAGE = Coverage(written=200, exact=150, unguarded=(), dropped=3)


def made_folder(path: Path, *command: str) -> Path:
    """A folder whose run goes on: its program is this process."""
    made = RunFolder(path)
    made.begin(command or ("python", "serve.py"), InjectionConfig(made.path), VERSION)
    made.note(child=os.getpid(), host=os.uname().nodename)
    return Path(made.path)


def with_process(folder: Path, pulse: Heartbeat | None = None, pid: int | None = None, **facts: Any) -> Path:
    """The files of one process with one finding; of this one, which lives, unless `pid` says otherwise."""
    pid = os.getpid() if pid is None else pid
    path = folder / f"findings-{pid}-1.jsonl"
    now = 4_000_000_000.0  # after any process's start
    start = {"kind": "start", "time": now, "format": 1, "pid": pid, "ppid": 1, "argv": ["python"], "born": "start"}
    finding = {"kind": "finding", "time": now, "book": 1, "finding": altered(pid=pid, id=1, **facts).to_dict()}
    lines = [start, {"kind": "watch", "time": now, "backend": "host"}, finding]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    if pulse is not None:
        write_heartbeat(heartbeat_file(path), pulse)
    return path
