"""The library is built once, in a cache that no other user can write; where it cannot be built, the report says why."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from shadowgraph.common import private_cache
from shadowgraph.graphs import launch_rows
from shadowgraph.graphs.cuda.capture import CaptureMode
from shadowgraph.graphs.cuda.capture_lines import CaptureLines
from shadowgraph.graphs.observer import building
from shadowgraph.graphs.observer.building import BuildError
from shadowgraph.graphs.observer.library import Library
from shadowgraph.graphs.observer.observer import OperatorObserver
from shadowgraph.model.buffers import Ledger
from shadowgraph.model.graphs import Graph


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and no variable that names a compiler."""
    folder = tmp_path / "home"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    monkeypatch.delenv("CXX", raising=False)
    return folder


def script(path: Path, body: str) -> Path:
    path.write_text(f"#!/bin/sh\n{textwrap.dedent(body)}")
    path.chmod(0o755)
    return path


@pytest.fixture
def copying(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, home: Path) -> Path:
    """A compiler that takes a second and copies the library; it appends a line to the returned file at each call."""
    (library,) = (cache / "shadowgraph").glob("observer-*.so")
    calls = tmp_path / "calls"
    body = f"""
        echo called >> {calls}
        sleep 1
        for last; do :; done
        cp {library} "$last"
    """
    monkeypatch.setenv("CXX", str(script(tmp_path / "copying-c++", body)))
    return calls


def refused(observer: OperatorObserver | None = None) -> str:
    """The report's line of an observer that cannot be built."""
    observer = observer or OperatorObserver()
    if observer.reason is None:
        assert observer.sentence() is None
    observer.start()
    assert not observer.wait(60)
    observer.stop()
    said = observer.sentence()
    assert said is not None, "reports are made after the stop, too"
    assert observer.latest_sequence() == 0
    assert observer.since(0) == []
    return said


def left_in(home: Path) -> list[str]:
    return sorted(path.suffix for path in (home / "shadowgraph").iterdir())


def test_the_library_is_private_and_found_again(copying: Path, home: Path) -> None:
    first = building.library()
    assert building.library() == first
    assert copying.read_text() == "called\n"
    assert left_in(home) == [".lock", ".so"]
    assert (home / "shadowgraph").stat().st_mode & 0o777 == 0o700
    assert first.stat().st_mode & 0o077 == 0
    assert Library(first).sequence.value >= 0


def test_no_caller_waits_for_the_compiler(copying: Path) -> None:
    observer = OperatorObserver()
    began = time.monotonic()
    observer.start()
    assert time.monotonic() - began < 0.5
    assert not observer.active
    assert observer.latest_sequence() == 0
    assert "has not been compiled yet" in str(observer.sentence())
    assert observer.wait(30)
    assert observer.sentence() is None
    observer.stop()


def test_stopped_while_it_is_built(copying: Path) -> None:
    observer = OperatorObserver()
    observer.start()
    observer.stop()
    assert not observer.wait(30)
    assert observer.reason is None
    assert "has not been compiled yet" in str(observer.sentence()), "by the stop"
    observer.start()
    assert observer.active, "it is there by now"
    observer.stop()


def test_a_machine_without_a_compiler(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert refused().endswith("no observer in C++ (no C++ compiler was found (g++, c++, clang++))")


def test_a_compiler_that_fails_is_quoted_and_not_tried_again(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = tmp_path / "calls"
    body = f"echo called >> {calls}; echo; echo 'a.cpp:1: fatal error:   no such file' >&2; echo x > /dev/full; exit 1"
    monkeypatch.setenv("CXX", str(script(tmp_path / "broken-c++", body)))
    observer = OperatorObserver()
    assert "broken-c++ failed: a.cpp:1: fatal error: no such file" in refused(observer)
    assert "fatal error" in refused(observer)
    assert calls.read_text() == "called\n" * 2, "for the whole of it, and without what records captures"
    assert left_in(home) == [".lock", ".lock"]


def test_a_compiler_that_dies_and_one_that_makes_rubbish(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", str(script(tmp_path / "dying-c++", "kill -9 $$")))
    assert "dying-c++ failed: it said nothing" in refused() or "Killed" in refused()
    rubbish = 'for last; do :; done; echo rubbish > "$last"'
    monkeypatch.setenv("CXX", str(script(tmp_path / "rubbish-c++", rubbish)))
    assert "the library cannot be loaded" in refused()


def test_a_source_that_does_not_compile(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "observer.cpp"
    source.write_text("#include <no_such_header.h>\n")
    monkeypatch.setattr(building, "SOURCES", (source,))
    assert "no_such_header.h" in refused()


def test_where_only_the_recorder_of_captures_does_not_compile_operators_are_noted(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = f"""
        for each; do
          case "$each" in *.cpp) if grep -q shadowgraph_capture_begin "$each"; then
            echo "error: no member named 'values_'" >&2; exit 1
          fi;; esac
        done
        exec {" ".join(building.compiler())} "$@"
    """
    monkeypatch.setenv("CXX", str(script(tmp_path / "older-c++", body)))
    observer = OperatorObserver()
    observer.start()
    assert observer.wait(300), observer.sentence()
    before = observer.latest_sequence()
    torch.ones(4).add_(1)
    assert [each.launch.name for each in observer.since(before)][-1] == "aten.add_.Tensor"
    assert observer.sentence() is None, "as long as no capture is to be recorded"
    assert observer.library is not None
    assert observer.library.captures is None
    assert launch_rows.written_in_cpp(observer.library) is not None
    made = CaptureLines(True, observer).begin(Graph(1, "graph#1"), Ledger(), False, SimpleNamespace())  # type: ignore[arg-type]
    observer.stop()
    assert isinstance(made, CaptureMode)
    assert observer.sentence() == (
        "1 capture went through a dispatch mode, which is slower: the observer in C++ has no recorder of captures "
        "(older-c++ failed: error: no member named 'values_')"
    )


def test_a_torch_without_headers(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.__path__", [str(tmp_path)])
    assert "torch's headers are not installed" in refused()


def test_the_key_changes_with_compiler_source_and_torch(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = {building.planned().library}
    own = script(tmp_path / "own-c++", "exit 1")
    monkeypatch.setenv("CXX", str(own))
    paths.add(building.planned().library)
    script(own, "exit 2; # another version")
    paths.add(building.planned().library)
    monkeypatch.setenv("CXX", f"{own} -m64")
    paths.add(building.planned().library)
    monkeypatch.setattr("torch.__version__", "99.0")
    paths.add(building.planned().library)
    source = tmp_path / "observer.cpp"
    source.write_text("// another")
    monkeypatch.setattr(building, "SOURCES", (source,))
    paths.add(building.planned().library)
    assert len(paths) == 6


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o1777])
def test_a_cache_that_others_can_write_is_refused(copying: Path, home: Path, mode: int) -> None:
    library = building.library()
    library.parent.chmod(mode)
    said = refused()
    assert "writable by others" in said
    assert str(library.parent) in said
    assert copying.read_text() == "called\n"


def test_a_cache_below_a_folder_that_others_can_write_is_refused(copying: Path, home: Path) -> None:
    home.chmod(0o777)
    assert f"{home} is writable by others" in refused()
    home.chmod(0o1777)  # as the folder for temporary files
    building.library()


def test_a_cache_of_another_user_is_refused(copying: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    building.library()
    uid = os.geteuid()
    monkeypatch.setattr(private_cache.os, "geteuid", lambda: uid + 1)
    assert "another user's" in refused()


def test_a_link_in_place_of_the_cache_is_refused(copying: Path, home: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (home / "shadowgraph").symlink_to(tmp_path / "elsewhere")
    assert "is a link" in refused()
    assert not any((tmp_path / "elsewhere").iterdir())


def test_a_library_that_others_could_have_written_is_built_anew(copying: Path) -> None:
    library = building.library()
    library.chmod(0o666)
    assert building.library() == library
    assert copying.read_text() == "called\n" * 2
    assert library.stat().st_mode & 0o022 == 0
    library.rename(library.with_suffix(".kept"))
    library.symlink_to(library.with_suffix(".kept"))
    assert not building.library().is_symlink()
    assert copying.read_text() == "called\n" * 3


def test_without_a_home_the_folder_for_temporary_files_is_taken(
    copying: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a file" / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    library = building.library()
    assert library.parent == tmp_path / f"shadowgraph-cache-{os.geteuid()}"
    assert library.parent.stat().st_mode & 0o777 == 0o700


BUILDS = "from shadowgraph.graphs.observer import building; print(building.library())"


@contextlib.contextmanager
def process() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([sys.executable, "-c", BUILDS], stdout=subprocess.PIPE, text=True) as running:
        try:
            yield running
        finally:
            running.kill()


def test_processes_that_build_at_once_build_once(copying: Path, home: Path) -> None:
    with contextlib.ExitStack() as stack:
        running = [stack.enter_context(process()) for _ in range(3)]
        said = {each.communicate(timeout=60)[0] for each in running}
    assert said == {f"{building.library()}\n"}
    assert copying.read_text() == "called\n"
    assert left_in(home) == [".lock", ".so"]


def test_processes_that_build_at_once_without_locks(copying: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a file system that has none: each builds, and the library is whole at any time."""

    def unsupported(*_: object) -> None:
        raise OSError("no locks available")

    monkeypatch.setattr(building.fcntl, "flock", unsupported)
    with process() as other:
        mine = building.library()
        assert other.communicate(timeout=60)[0] == f"{mine}\n"
    Library(mine)
    assert left_in(home) == [".lock", ".so"]


def test_a_process_that_is_killed_leaves_the_library_to_the_next(copying: Path, home: Path) -> None:
    with process() as first:
        until = time.monotonic() + 60
        while not copying.exists() and time.monotonic() < until:
            time.sleep(0.01)
        first.send_signal(signal.SIGKILL)
    building.library()  # waits for the compiler that goes on
    assert copying.read_text() == "called\n"


def test_what_killed_builds_have_left_is_removed_in_time(copying: Path, home: Path) -> None:
    library = building.planned().library
    old, new = library.with_name("observer-1.1-2.tmp"), library.with_name("observer-1.1-3.log")
    for path in (old, new):
        path.touch()
    os.utime(old, (0, 0))
    building.library()
    assert (old.exists(), new.exists()) == (False, True)


def test_a_program_that_ignores_its_children_gets_the_library(copying: Path) -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert building.library().exists()
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_the_compiler_is_no_member_of_the_programs_group_and_has_none_of_its_files(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = tmp_path / "said"
    body = f"ps -o pgid= -p $$ > {said} 2>/dev/null; ls /proc/$$/fd | wc -w >> {said}; exit 1"
    monkeypatch.setenv("CXX", str(script(tmp_path / "telling-c++", body)))
    with open(tmp_path / "kept", "w") as kept:
        os.set_inheritable(kept.fileno(), True)
        refused()
    *group, files = said.read_text().split()
    if shutil.which("ps") and group:
        assert int(group[0]) != os.getpgrp()
    assert int(files) <= 6, "the standard streams, the lock, the script, and the listed folder"


def test_a_forked_child_says_why_it_has_none(copying: Path) -> None:
    program = """
        import os, sys
        from shadowgraph.graphs.observer.observer import observer

        observer.start()
        child = os.fork()
        if not child:
            observer.wait(5)
            print(observer.sentence())
            sys.stdout.flush()
            os._exit(0)
        os.waitpid(child, 0)
        assert observer.wait(30), observer.sentence()
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "the process was forked while it was built" in done.stdout


def test_an_interpreter_that_ends_has_no_thread_for_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_thread(_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("threading.Thread.start", no_thread)
    assert "can't start new thread" in refused()


def test_another_error_is_told_too() -> None:
    def build() -> Path:
        raise BuildError("the disk is on fire")

    assert "the disk is on fire" in refused(OperatorObserver(build))
    assert "ZeroDivisionError" in refused(OperatorObserver(lambda: Path(str(1 // 0))))
