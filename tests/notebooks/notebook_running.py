"""Notebooks run from their first cell to their last in a fresh kernel; what they print is compared without addresses.

``python tests/notebooks/notebook_running.py`` runs the investigations and stores the outputs of those that changed;
``--all`` stores all of them, pictures included.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbclient
import nbformat
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from varying import settled  # noqa: E402

HOME = ROOT / "notebooks"
JUPYTER = HOME / "jupyter.ipynb"
CRASHED = HOME / "crashed_server.ipynb"
DATA = HOME / "data"
SEEDS = ("kv_indptr", "kv_indices", "page_table", "padding", "aiter")
MACHINE_PATH = re.compile(r"(?<![\w.])/(home|root|tmp|usr|opt|mnt|work|var|Users)\b|\b[A-Za-z]:\\")
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


class InterpreterKernel(AsyncKernelManager):
    """A kernel of the interpreter that runs the tests; nothing is registered anywhere."""

    @property
    def kernel_spec(self) -> KernelSpec:
        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(argv=argv, display_name="this interpreter", language="python")


def seed(name: str) -> Path:
    """The file of one of the `SEEDS`."""
    return HOME / f"seed_{name}.ipynb"


def saved(path: Path) -> Any:
    return nbformat.read(path, as_version=nbformat.NO_CONVERT)


def execute(path: Path, home: str) -> Any:
    """A notebook after it ran in a directory that holds nothing but the notebooks' data.

    Data that lies in `home` already is left as it is. A cell that raises, or a kernel that dies, raises here.
    """
    if DATA.is_dir() and not Path(home, DATA.name).exists():
        Path(home, DATA.name).symlink_to(DATA)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SHADOWGRAPH_")}
    environment = kept | {
        "TRITON_INTERPRET": "1",
        "IPYTHONDIR": home,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
    }
    notebook = saved(path)
    client = nbclient.NotebookClient(
        notebook, timeout=120, startup_timeout=120, kernel_manager_class=InterpreterKernel, coalesce_streams=True,
        record_timing=False,
    )  # fmt: skip
    client.execute(env=environment, cwd=home)
    return notebook


def code_of(notebook: Any) -> dict[str, Any]:
    """Code cells by id."""
    return {cell.id: cell for cell in notebook.cells if cell.cell_type == "code"}


def printed(cell: Any) -> str:
    """What a cell wrote, and the text of what it displayed."""
    parts = []
    for output in cell.outputs:
        parts.append(output.text if output.output_type == "stream" else output.get("data", {}).get("text/plain", ""))
    return _ANSI.sub("", "".join(parts))


def pictures(cell: Any) -> list[str]:
    """A cell's pictures, in base64."""
    return [output.data["image/png"] for output in cell.outputs if "image/png" in output.get("data", {})]


def comparable(cell: Any) -> str:
    """What a cell printed, without what changes from run to run."""
    return settled(printed(cell))


def same(one: Any, other: Any) -> bool:
    """Whether two runs of a notebook say the same."""
    left, right = code_of(one), code_of(other)
    return left.keys() == right.keys() and all(
        (comparable(left[name]), len(pictures(left[name])), left[name].execution_count)
        == (comparable(right[name]), len(pictures(right[name])), right[name].execution_count)
        for name in left
    )


def store(path: Path, everything: bool = False) -> bool:
    """Run a notebook and keep its outputs where they differ from the stored ones; returns whether they did."""
    before = saved(path)
    with tempfile.TemporaryDirectory() as home:
        after = execute(path, home)
    if same(before, after) and not everything:
        return False
    for cell in after.cells:
        cell.metadata.clear()
    kept = {name: after.metadata[name] for name in ("kernelspec", "language_info") if name in after.metadata}
    kept["language_info"] = {"name": "python"}  # a version would change with the interpreter
    after.metadata.clear()
    after.metadata.update(kept)
    nbformat.write(after, path)
    return True


if __name__ == "__main__":
    for each in (*map(seed, SEEDS), JUPYTER, CRASHED):
        changed = store(each, everything="--all" in sys.argv[1:])
        print(f"{each.relative_to(ROOT)}: {'stored' if changed else 'as it was'}")
