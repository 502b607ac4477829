"""A program that serves under wrap, looked at over HTTP while it runs: findings, counts, the switch, its end."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.browser import browser, needs_browser
from support.wrapping import environment, program, wrap, wrap_words

from shadowgraph.commands.main import main
from shadowgraph.wrap.folder.reader import read_run


class Served:
    """A wrapped server and its status pages."""

    def __init__(self, supervisor: subprocess.Popen[str], folder: Path, url: str) -> None:
        self.supervisor, self.folder, self.url = supervisor, folder, url

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=30) as answer:
            return str(answer.read().decode())

    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.get("json"))
        return found

    def metric(self, name: str) -> float:
        match = re.search(rf"^shadowgraph_{name}(?:\{{[^}}]*\}})? (\S+)$", self.get("metrics"), re.MULTILINE)
        return float(match.group(1)) if match else -1.0

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait for something that comes within a few pulses."""
        deadline = time.monotonic() + 60
        while not holds():
            assert time.monotonic() < deadline, self.get("json")
            time.sleep(0.3)


@contextmanager
def served(tmp_path: Path, *options: str, past_end: int = 8) -> Iterator[Served]:
    folder = tmp_path / "run"
    words = [*wrap_words(folder, "--status", "0", *options), *program("serving.py", str(past_end))]
    with subprocess.Popen(
        words, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    ) as supervisor:
        try:
            assert supervisor.stdout is not None
            assert supervisor.stdout.readline() == "serving\n"
            url = json.loads((folder / "run.json").read_text())["status"]
            yield Served(supervisor, folder, url)
        finally:
            if supervisor.poll() is None:
                supervisor.send_signal(signal.SIGTERM)
                supervisor.communicate(timeout=60)


@pytest.mark.slow
def test_a_server_is_watched_switched_off_and_on_and_ended(tmp_path: Path) -> None:
    with served(tmp_path) as run:
        run.until(lambda: len(run.json()["findings"]) == 1)
        seen = run.json()["findings"][0]["occurrences"]
        run.until(lambda: run.json()["findings"][0]["occurrences"] > seen + 100)
        assert run.metric("findings") == 1
        assert "decode.page_table" in run.get("")
        run.until(lambda: run.metric("replays_checked_total") > 0)
        assert "decode.page_table" in run.get("map")

        assert main(["pause", str(run.folder)]) == 0
        run.until(lambda: run.metric("checking") == 0)
        assert run.metric("switched_on") == 0
        checked, replays = run.metric("replays_checked_total"), run.metric("replays_total")
        run.until(lambda: run.metric("replays_total") > replays)
        assert run.metric("replays_checked_total") == checked
        assert main(["resume", str(run.folder)]) == 0
        run.until(lambda: run.metric("replays_checked_total") > checked)
        assert (run.metric("checking"), run.metric("findings"), run.metric("faults_total")) == (1, 1, 0)

        run.supervisor.send_signal(signal.SIGTERM)
        _, said = run.supervisor.communicate(timeout=60)
        with pytest.raises(OSError, match="refused"):
            run.get("json")
    assert run.supervisor.returncode == 0
    assert said.count(f"status on {run.url}\n") == 1
    assert said.count("SUMMARY: shadowgraph: SG101") == 1
    assert "checking was switched off once, for " in said
    (finding,) = read_run(run.folder).merged().findings
    assert finding.occurrences > seen + 100


@pytest.mark.slow
def test_one_replay_in_ten_within_a_budget(tmp_path: Path) -> None:
    with served(tmp_path, "--every", "10", "--budget-percent", "90") as run:
        run.until(lambda: run.metric("replays_total") > 100)
        replays, checked = run.metric("replays_total"), run.metric("replays_checked_total")
        assert checked == pytest.approx(replays / 10, abs=1)
        assert (run.metric("check_every"), run.metric("findings")) == (10, 1)
        assert 0 <= run.metric("overhead_percent") <= 90
        run.supervisor.send_signal(signal.SIGTERM)
        _, said = run.supervisor.communicate(timeout=60)
    assert "checks on one replay in 10 of each graph, as asked" in said


def test_a_port_in_use_costs_one_line_and_the_program_runs(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = wrap(tmp_path, sys.executable, "-c", "print('ran')", options=("--status", str(port)))
    assert (done.code, done.out) == (0, "ran\n")
    lines = [line for line in done.err.splitlines() if "status page" in line]
    assert lines == [
        f"shadowgraph: no status page: port {port} of 127.0.0.1: Address already in use; the program runs without"
    ]
    assert "status" not in done.run.manifest


def test_a_command_that_cannot_run_ends_the_server_too(tmp_path: Path) -> None:
    done = wrap(tmp_path, "no-such-command-anywhere", options=("--status", "0"))
    assert done.code == 127


def test_the_status_of_a_supervisor_does_not_import_torch(tmp_path: Path) -> None:
    with served(tmp_path) as run:
        run.until(lambda: "decode.page_table" in run.get("map"))
        for path in ("", "json", "metrics"):
            assert run.get(path)
        mapped = Path(f"/proc/{run.supervisor.pid}/maps").read_text()
    assert "libtorch" not in mapped


@needs_browser
@pytest.mark.slow
def test_in_a_browser(tmp_path: Path) -> None:
    """What a browser makes of the page, after its rules on what a page may do."""
    with served(tmp_path) as run:
        run.until(lambda: run.metric("replays_checked_total") > 0)
        text = in_browser(run.url, tmp_path)
        memory = in_browser(run.url.rstrip("/") + "/" + re.findall('href="([^"]*)">memory map', text)[0], tmp_path)
        page = re.findall('href="(finding/[0-9]+)"', text)[0]
        run.until(lambda: "as the dump has it" in run.get(page))
        finding = in_browser(run.url + page, tmp_path)
        stranger = in_browser(re.sub("[^/]+/$", "", run.url), tmp_path)
    assert "needs the token" in stranger
    assert "SG101" not in stranger
    assert '<b class="bad">1</b>findings' in text
    assert '<b class="good">on</b>checking' in text
    assert re.search(r"<td>SG101</td><td>error</td>.*8 bytes past the end of decode.page_table", text)
    assert re.search("<h1>SG101 .*8 bytes past the end of decode.page_table", text)
    assert "decode.page_table" in memory
    assert f'<a href="{page}">SG101</a>' in memory, "the map leads to the finding"
    assert '<i class="damage" style="left: ' in memory
    assert "8 bytes past the end of decode.page_table" in finding
    assert '<span class="changed">' in finding, "the bytes that it found"
    assert '<div class="row hit"><div class="who"><b>decode.page_table' in finding, "and their place"


def in_browser(url: str, tmp_path: Path) -> str:
    """The document as Chromium has it when it has been loaded."""
    words = [browser(), "--headless=new", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    words.append(f"--user-data-dir={tmp_path / 'profile'}")
    done = subprocess.run(
        [*words, url], capture_output=True, text=True, timeout=120, env=environment(HOME=str(tmp_path))
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
