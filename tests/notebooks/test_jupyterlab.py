"""The notebooks in a real JupyterLab: all cells are run there, and what they show is looked at in a browser."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

for needed in ("nbformat", "nbclient", "tornado"):
    pytest.importorskip(needed)

from notebook_running import CRASHED, DATA, HOME, JUPYTER, ROOT, SEEDS, seed  # noqa: E402 - after the checks
from support.browser import needs_browser  # noqa: E402
from support.devtools import Tab, is_blank, opened  # noqa: E402

TOKEN = "of-this-test"
NOTEBOOKS = (JUPYTER, CRASHED, HOME / "tour.ipynb", *map(seed, SEEDS))
needs_lab = pytest.mark.skipif(
    importlib.util.find_spec("jupyterlab") is None and not os.environ.get("CI"), reason="needs JupyterLab"
)
_PANEL = (
    "[...(window.jupyterapp?.shell.widgets('main') ?? [])].find((each) => each.sessionContext && each.content?.model)"
)
# Cells off the screen would not be in the document.
_ALL_CELLS = f"""(() => {{ const panel = {_PANEL}, content = panel.content; jupyterapp.shell.activateById(panel.id);
content.notebookConfig = {{...content.notebookConfig, windowingMode: "none"}}; return true; }})()"""
_RUN = f"""(async () => {{ const panel = {_PANEL}; await panel.context.ready; await panel.sessionContext.ready;
jupyterapp.shell.activateById(panel.id); return await jupyterapp.commands.execute("notebook:run-all-cells"); }})()"""
_OUTPUTS = f"""{_PANEL}.content.model.toJSON().cells.filter((cell) => cell.cell_type === "code")
.map((cell) => [cell.execution_count, cell.outputs.map((output) => output.output_type)])"""
_SHOWN = (
    """[...document.querySelectorAll(["iframe", "img", ".sg"].map((each) => `.jp-OutputArea-output ${each}`).join())]"""
)
_PLACE = """(({left, top, width, height}) => [left, top, width, Math.min(height, innerHeight - top)])(
SHOWN[AT].getBoundingClientRect())"""


@contextmanager
def lab(home: Path) -> Iterator[str]:
    """JupyterLab over a folder, without a user's settings; its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--expose-app-in-browser",
        f"--port={port}", "--ServerApp.port_retries=0", f"--IdentityProvider.token={TOKEN}", f"--notebook-dir={home}",
    ]  # fmt: skip
    own = {f"JUPYTER_{name}_DIR": str(home / f".{name.lower()}") for name in ("CONFIG", "RUNTIME", "DATA")}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SHADOWGRAPH_")}
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {**kept, **own, "TRITON_INTERPRET": "1", "IPYTHONDIR": str(home / ".ipython"), "PYTHONPATH": paths}
    with (
        open(home / ".lab.log", "w") as log,
        subprocess.Popen(words, env=environment, stdout=log, stderr=log) as server,
    ):
        try:
            _await(f"http://127.0.0.1:{port}/api/status?token={TOKEN}", home / ".lab.log")
            yield f"http://127.0.0.1:{port}/lab"
        finally:
            server.terminate()


def _await(url: str, log: Path) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except (urllib.error.URLError, OSError):
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.3)
        else:
            return


def run_all(tab: Tab) -> list[tuple[int, list[str]]]:
    """Run all cells; the number and the kinds of outputs of each."""
    tab.until(f"{_PANEL}?.content.model.cells.length > 0")
    tab.value(_ALL_CELLS)
    tab.until(f"{_PANEL}.sessionContext.session?.kernel?.status === 'idle'")
    assert tab.value(_RUN, 300)
    return tab.value(_OUTPUTS)


def shown(tab: Tab) -> Iterator[tuple[str, Any]]:
    """The kind and the image of each frame, picture and fragment, scrolled to the top of the window."""
    for at in range(tab.value(f"{_SHOWN}.length")):
        name = tab.value(f"{_SHOWN}[{at}].tagName")
        tab.value(f"{_SHOWN}[{at}].scrollIntoView({{block: 'start'}})")
        if name == "IFRAME":
            tab.until(f"{_SHOWN}[{at}].contentWindow?.Bokeh?.documents?.[0]?.is_idle")
        time.sleep(0.5)  # until it is painted
        left, top, width, height = tab.value(_PLACE.replace("SHOWN", _SHOWN).replace("AT", str(at)))
        if width > 1 and height > 1:
            yield name, tab.picture(left, top, width, height)


@pytest.mark.slow
@needs_browser
@needs_lab
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_what_it_draws(path: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    shutil.copy(path, home)
    if path == CRASHED and not DATA.is_dir():
        pytest.skip("no data here: take a clone")
    (home / "data").symlink_to(DATA)
    with lab(home) as url, opened(f"{url}/tree/{path.name}?token={TOKEN}&reset", tmp_path) as tab:
        cells = run_all(tab)
        assert [count for count, _ in cells] == list(range(1, len(cells) + 1)), "each cell has run"
        assert not [kinds for _, kinds in cells if "error" in kinds]
        seen = list(shown(tab))
        assert [name for name, image in seen if is_blank(image)] == []
        if path == JUPYTER:
            assert [name for name, _ in seen].count("IFRAME") == 1


@pytest.mark.slow
@needs_browser
@needs_lab
def test_a_blank_frame_is_seen(tmp_path: Path) -> None:
    """The twin: a map whose scripts cannot be fetched is what these tests are for."""
    page = tmp_path / "page.html"
    page.write_text("<body style='margin: 0'><iframe srcdoc='<script src=http://127.0.0.1:9/b.js></script>'></iframe>")
    with opened(page.as_uri(), tmp_path) as tab:
        tab.until("document.readyState === 'complete'")
        assert is_blank(tab.picture(2, 2, 290, 140))
