"""The file: whole or not at all, within its bound, in the background, and clear when it cannot be."""

from __future__ import annotations

import errno
import logging
import os
import stat
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from dump_makers import Server, dump_of_a_server, guarded, overflow
from support import warm

import shadowgraph as sg
from shadowgraph.common.errors import MissingFileError
from shadowgraph.common.internal_errors import internal_errors
from shadowgraph.dumps import taking
from shadowgraph.dumps.process_dumps import dump_to
from shadowgraph.dumps.reader import read_dump
from shadowgraph.dumps.schema import Why


def names_in(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_a_directory_gives_names_of_their_own(tmp_path: Path) -> None:
    with sg.debug() as debugger:
        made = [debugger.dump(tmp_path) for _ in range(3)]
    assert len(set(made)) == 3
    for path in made:
        assert path.parent == tmp_path
        assert str(os.getpid()) in path.name
        assert path.suffix == ".safetensors"
    assert names_in(tmp_path) == sorted(path.name for path in made)


def test_readable_for_its_owner_only(tmp_path: Path) -> None:
    path = dump_of_a_server(tmp_path / "run.safetensors")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def _crash(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("step", ["replace", "fsync", "write"])
def test_a_failure_leaves_the_old_dump_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    path = dump_of_a_server(tmp_path / "run.safetensors")
    before = path.read_bytes()
    with sg.debug() as debugger:
        guarded(debugger, 4)
        with monkeypatch.context() as patch:
            if step == "write":
                real = open

                def full(*args: Any, **options: Any) -> Any:
                    file = real(*args, **options)
                    file.raw.close()
                    real_fd = os.open("/dev/full", os.O_WRONLY)
                    return real(real_fd, "wb", buffering=options["buffering"])

                patch.setattr("shadowgraph.dumps.writer.open", full, raising=False)
            else:
                patch.setattr(os, step, _crash)
            with pytest.raises(MissingFileError, match=r"cannot write the dump .*run\.safetensors: No space left") as e:
                debugger.dump(path)
    assert "\n" not in str(e.value)
    assert path.read_bytes() == before
    assert names_in(tmp_path) == ["run.safetensors"], "nothing temporary is left"


def test_interrupted_by_the_user_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with sg.debug() as debugger:
        monkeypatch.setattr(os, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            debugger.dump(tmp_path / "run.safetensors")
    assert names_in(tmp_path) == []


def test_killed_between_the_bytes_and_the_name(tmp_path: Path) -> None:
    path = dump_of_a_server(tmp_path / "run.safetensors")
    before = path.read_bytes()
    code = (
        "import os, shadowgraph as sg\n"
        "os.replace = lambda *_: os.kill(os.getpid(), 9)\n"
        f"with sg.debug() as debugger: debugger.dump({str(path)!r})\n"
    )
    done = warm.run([sys.executable, "-c", code], os.environ)
    assert done.returncode == -9, done.stderr
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("none/run.safetensors", "No such file or directory"),
        ("file/run.safetensors", "Not a directory"),
        ("pipe", "it exists and is no regular file"),
        ("x" * 300, "File name too long"),
        ("nul\0byte", "null byte"),
    ],
)
def test_places_that_cannot_be_written(tmp_path: Path, place: str, said: str) -> None:
    (tmp_path / "file").write_text("")
    os.mkfifo(tmp_path / "pipe")
    with sg.debug() as debugger, pytest.raises(sg.ShadowgraphError, match=said) as caught:
        debugger.dump(f"{tmp_path}/{place}")
    assert "\n" not in str(caught.value)
    assert names_in(tmp_path) == ["file", "pipe"]


@pytest.mark.parametrize("limit", [0, -1, 1000, True, "64M", None])
def test_limits_that_do_not_fit(tmp_path: Path, limit: Any) -> None:
    with sg.debug() as debugger:
        if limit is None:
            assert debugger.dump(tmp_path, limit=None).exists()
            return
        with pytest.raises(sg.UsageError, match="at least 65,536 bytes"):
            debugger.dump(tmp_path, limit=limit)
    with pytest.raises(sg.UsageError, match="dump_limit must be at least"), sg.debug(dump_limit=1):
        pass


@pytest.mark.parametrize("limit", [64 << 10, 256 << 10, 1 << 20])
def test_the_bound_holds_and_says_what_it_cost(tmp_path: Path, limit: int) -> None:
    with sg.debug() as debugger:
        server = Server(debugger)
        kept = [guarded(debugger, 8 << 10, dtype=torch.uint8) for _ in range(200)]
        large = [guarded(debugger, 128 << 10, dtype=torch.float16) for _ in range(20)]
        server.step(past=1)
        live = debugger.report(quiet=True)
        path = debugger.dump(tmp_path / "run.safetensors", limit=limit)
        del kept, large
    assert path.stat().st_size <= limit
    with read_dump(path) as dump:
        assert dump.facts() == live.facts
        rows = dump.manifest.payloads
        assert {Why.FINDING, Why.SHADOW, Why.WHOLE} <= {row.why for row in rows}
        left = {entry.what: entry for entry in dump.manifest.left_out}
        missing = sum(entry.nbytes for entry in left.values())
        assert {entry.reason for entry in left.values()} == {"for size"}
        assert left["ends of large buffers"].count == 42, "the least useful goes first"
        assert sum(row.nbytes for row in rows) + missing >= 200 * (8 << 10) + 42 * 4096


def test_a_ledger_that_does_not_fit_goes_before_the_findings(tmp_path: Path) -> None:
    with sg.debug() as debugger:
        server = Server(debugger)
        kept = [guarded(debugger, 1, dtype=torch.uint8) for _ in range(3000)]
        server.step(past=1)
        live = debugger.report(quiet=True)
        path = debugger.dump(tmp_path / "run.safetensors", limit=64 << 10)
        del kept
    assert path.stat().st_size <= 64 << 10
    with read_dump(path) as dump:
        assert dump.facts() == live.facts
        left = {entry.what for entry in dump.manifest.left_out}
        assert {"live buffers", "guards"} <= left
        assert [b.start for b in dump.buffers] == [server.page_table.data_ptr()], "the one that a finding is about"


def test_written_in_the_background(tmp_path: Path) -> None:
    with sg.debug() as debugger:
        table = guarded(debugger, 4)
        table.fill_(7)
        path = debugger.dump(tmp_path / "run.safetensors", background=True)
        table.fill_(9)
        start = table.data_ptr()
        del table
    taking.finish()
    with read_dump(path) as dump:
        (row,) = [row for row in dump.manifest.payloads if row.why is Why.WHOLE and row.start == start]
        assert dump.payload(row) == torch.full((4,), 7, dtype=torch.int32).numpy().tobytes()
        (buffer,) = [buffer for buffer in dump.buffers if buffer.start == start]
        assert buffer.alive, "as it was when the bytes were copied"


def test_a_later_dump_is_not_replaced_by_an_earlier_one(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    with sg.debug() as debugger:
        for number in range(5):
            debugger.dump(path, reason=f"number {number}", background=True)
        debugger.dump(path, reason="last")
    with read_dump(path) as dump:
        assert dump.manifest.reason == "last"


def test_the_end_of_the_interpreter_waits_for_the_file(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    code = (
        "import time, shadowgraph as sg\nfrom shadowgraph.dumps import taking, writer\n"
        "real = taking.write_dump\n"
        "taking.write_dump = lambda *words: (time.sleep(1), real(*words))\n"
        f"with sg.debug() as debugger: debugger.dump({str(path)!r}, background=True)\n"
    )
    done = warm.run([sys.executable, "-c", code], os.environ)
    assert done.returncode == 0, done.stderr
    read_dump(path).close()


def test_a_slow_disk_keeps_neither_the_program_nor_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written, disk, told = threading.Event(), threading.Event(), list[tuple[str, bool]]()
    write = taking.write_dump

    def slow(*args: Any) -> Path:
        assert disk.wait(30)
        return write(*args)

    def tell(path: Path) -> None:
        told.append((threading.current_thread().name, path.exists()))
        written.set()

    monkeypatch.setattr(taking, "write_dump", slow)
    with sg.debug() as debugger:
        path = dump_to(tmp_path, debugger, "run", "finding", redact=False, background=True, written=tell)
        assert path == tmp_path / "run-finding.dump"
        assert not list(tmp_path.iterdir())
        (thread,) = (thread for thread in threading.enumerate() if thread.name == "shadowgraph-dump")
        assert thread.daemon
        monkeypatch.setattr(taking, "LIMIT", 0.05)
        assert not taking.finish()
        disk.set()
        monkeypatch.setattr(taking, "LIMIT", 30.0)
        assert taking.finish()
    assert written.is_set()
    assert told == [("shadowgraph-dump", True)]


@pytest.mark.parametrize("background", [True, False])
def test_at_the_very_end_a_large_dump_is_written_at_once(tmp_path: Path, background: bool) -> None:
    """Of a finding of the last check: no thread starts any more, and no pool takes work."""
    path = tmp_path / "run"
    code = (
        "import atexit, torch, shadowgraph as sg\n"
        "debugger = sg.install(backend='host')\n"
        "with debugger.guard(): tables = [torch.zeros(1 << 20) for _ in range(5)]\n"
        f"atexit.register(lambda: debugger.dump({str(path)!r}, background={background}))\n"
    )
    options = {**os.environ, "SHADOWGRAPH_DUMP_WHOLE": str(8 << 20)}
    done = warm.run([sys.executable, "-c", code], options)
    assert done.returncode == 0, done.stderr
    assert "Error" not in done.stderr
    with read_dump(path) as dump:
        assert sum(row.nbytes for row in dump.manifest.payloads) > 16 << 20


def test_a_process_ends_though_its_dump_cannot_be_written(tmp_path: Path) -> None:
    code = (
        "import threading, shadowgraph as sg\nfrom shadowgraph.dumps import taking\n"
        "taking.LIMIT, taking.write_dump = 0.2, lambda *_: threading.Event().wait()\n"
        f"with sg.debug() as debugger: debugger.dump({str(tmp_path / 'run')!r}, background=True)\n"
    )
    warm.run([sys.executable, "-c", code], os.environ, timeout=60).check_returncode()
    assert not list(tmp_path.iterdir())


def test_a_forked_child_waits_for_none_of_its_parent_s_dumps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = threading.Event()
    monkeypatch.setattr(taking, "write_dump", lambda *_: disk.wait(30))
    with sg.debug() as debugger:
        debugger.dump(tmp_path / "run", background=True)
        child = os.fork()
        if child == 0:
            os._exit(0 if taking.finish() and not taking._in_background else 1)
        disk.set()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert taking.finish()


def test_what_goes_wrong_in_the_background_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with sg.debug() as debugger:
        before = internal_errors.total
        monkeypatch.setattr(os, "replace", _crash)
        debugger.dump(tmp_path / "run.safetensors", background=True)
        taking.finish()
        assert internal_errors.total == before + 1
        assert any("No space left" in fault for fault in debugger.facts().faults)


def test_dumps_in_sync_mode_and_after_the_end(tmp_path: Path) -> None:
    with pytest.raises(sg.FindingsError), sg.debug(sync=True) as debugger:
        table = guarded(debugger, 4)
        overflow(table)
    for number in range(2):
        with read_dump(debugger.dump(tmp_path / f"{number}.safetensors")) as dump:
            assert len(dump.facts().findings) == 1


def test_a_dump_checks_first_unless_told_not_to(tmp_path: Path) -> None:
    with sg.debug() as debugger:
        table = guarded(debugger, 4)
        overflow(table)
        with read_dump(debugger.dump(tmp_path, check=False)) as dump:
            assert dump.facts().findings == ()
        with read_dump(debugger.dump(tmp_path)) as dump:
            assert len(dump.facts().findings) == 1


def test_our_own_fault_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("ours")

    with sg.debug() as debugger:
        monkeypatch.setattr(taking, "collect", broken)
        with pytest.raises(sg.ShadowgraphError, match="the dump could not be made: ZeroDivisionError: ours"):
            debugger.dump(tmp_path)
    assert names_in(tmp_path) == []


def test_from_a_log_handler_at_the_first_finding(tmp_path: Path) -> None:
    class First(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if not list(tmp_path.iterdir()):
                debugger.dump(tmp_path, reason="first finding", check=False)

    handler = First()
    with sg.debug() as debugger:
        server = Server(debugger)
        server.step()
        faults_before = internal_errors.total
        logging.getLogger("shadowgraph").addHandler(handler)
        try:
            server.step(past=1)
            server.step()
        finally:
            logging.getLogger("shadowgraph").removeHandler(handler)
        assert internal_errors.total == faults_before
        assert len(debugger.findings) == 1
    (path,) = tmp_path.iterdir()
    with read_dump(path) as dump:
        assert dump.manifest.reason == "first finding"
        assert [finding.code for finding in dump.facts().findings] == ["SG101"]


def test_from_another_thread_while_graphs_replay(tmp_path: Path) -> None:
    with sg.debug() as debugger:
        server = Server(debugger)
        made: list[Path] = []
        done = threading.Event()

        def dumps() -> None:
            for number in range(5):
                made.append(debugger.dump(tmp_path / f"{number}.safetensors", check=False))
            done.set()

        faults_before = internal_errors.total
        thread = threading.Thread(target=dumps)
        thread.start()
        while not done.is_set():
            server.step()
        thread.join()
        assert internal_errors.total == faults_before
    assert len(made) == 5
    for path in made:
        read_dump(path).close()
