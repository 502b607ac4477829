"""Put what `shadowgraph explain` says into docs/findings.md, and what the verbs print into docs/verbs.md."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import sys
import tempfile
import textwrap
from pathlib import Path

os.environ.setdefault("TRITON_INTERPRET", "1")  # before the first import of Triton
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
FINDINGS, VERBS = ROOT / "docs" / "findings.md", ROOT / "docs" / "verbs.md"
_WIDTH = 120


def folded(markdown: str) -> str:
    """Paragraphs folded to the width of the docs; a heading stays a line."""
    parts = markdown.split("\n\n")
    return "\n\n".join(textwrap.fill(text, _WIDTH, break_long_words=False, break_on_hyphens=False) for text in parts)


def with_explanations(page: str) -> str:
    """The page with every section of a code as `explain` tells it."""
    from shadowgraph.reports.explanations import explanations

    for code, explanation in explanations().items():
        section = folded(explanation.markdown())
        page, count = re.subn(
            rf"^## {code}: .*?(?=^## )", lambda _, text=section: f"{text}\n\n", page, flags=re.DOTALL | re.MULTILINE
        )
        if count != 1:
            raise SystemExit(f"{FINDINGS.name} has {count} sections for {code}")
    return page


def printed(line: str) -> str:
    """What a ``$ shadowgraph ...`` line prints, in the directory of the dumps."""
    from shadowgraph.commands.main import main

    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        main(shlex.split(line)[1:])
    text = out.getvalue().replace(f"{ROOT}{os.sep}", "").rstrip()
    return "\n".join(line.rstrip() for line in text.splitlines())


def with_outputs(page: str, folder: Path) -> str:
    """The page with every ``console`` block run again on the dumps of `tools/verbs_program.py`."""
    from verbs_program import make_dumps

    make_dumps(folder)

    def again(block: re.Match[str]) -> str:
        lines = re.findall(r"^\$ (.*)$", block[1], flags=re.MULTILINE)
        return "```console\n" + "\n".join(f"$ {line}\n{printed(line)}" for line in lines) + "\n```"

    with contextlib.chdir(folder):
        return re.sub(r"```console\n(.*?)```", again, page, flags=re.DOTALL)


def main() -> int:
    FINDINGS.write_text(with_explanations(FINDINGS.read_text("utf-8")), "utf-8")
    sys.path.insert(0, str(ROOT / "tools"))
    with tempfile.TemporaryDirectory() as folder:
        VERBS.write_text(with_outputs(VERBS.read_text("utf-8"), Path(folder)), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
