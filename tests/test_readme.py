"""The README is kept true: its report is the one that is printed, its snippet runs, its links exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from shadowgraph.demos.sglang.host import SGLANG_VERSION, sglang_version

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
VARYING = re.compile(r"0x[0-9a-f]+|allocation \d+|(?<=\.py):\d+")  # addresses, serials, line numbers


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def settled(text: str) -> list[str]:
    """Lines without what differs from run to run."""
    return [VARYING.sub("*", line.rstrip()) for line in text.strip().splitlines()]


@pytest.mark.sglang
@pytest.mark.skipif(sglang_version() != SGLANG_VERSION, reason=f"needs sglang {SGLANG_VERSION}")
@pytest.mark.slow
def test_the_report_is_the_one_that_is_printed() -> None:
    words = [sys.executable, "-m", "shadowgraph", "demo", "--case", "S-eagle-48", "--reports"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (report,) = blocks("text")
    printed = settled(done.stdout)
    start = next(i for i, line in enumerate(printed) if line.startswith("SG101"))
    wanted = settled(report)
    assert printed[start : start + len(wanted)] == wanted


def test_the_snippet_runs_and_finds_its_bug(tmp_path: Path) -> None:
    (snippet,) = blocks("python")
    script = tmp_path / "snippet.py"
    script.write_text(snippet)
    done = subprocess.run([sys.executable, str(script)], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "SG102 in-graph mutation: aten.mul_.Tensor (node 0) changed" in done.stdout


def test_links_and_files_exist() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
    for path in re.findall(r"(?<![/\w])tools/[\w.]+\.py", README):
        assert (ROOT / path).exists(), path
