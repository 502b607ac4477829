"""Put into the docs, and into the README's table of versions, what they have from the code: python tools/update_docs.py

Parts of pages between marks, such as settings, options, costs and the changelog, what `shadowgraph explain` says
(findings.md), and what the verbs print (verbs.md, report.md). A page stays as it is where what is printed differs by
addresses, process numbers and times alone. `--parts` leaves out what the verbs print, which takes longest.
"""

from __future__ import annotations

import argparse
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
sys.path[:0] = [str(ROOT), str(ROOT / "docs"), str(ROOT / "tools")]
from varying import settled  # noqa: E402

FINDINGS, VERBS, REPORT = (ROOT / "docs" / f"{name}.md" for name in ("findings", "verbs", "report"))
_WIDTH = 120


def pages() -> list[Path]:
    """Every page that may have parts."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def with_parts(page: str) -> str:
    """The page with everything between marks made again."""
    from building.parts import filled

    return filled(page)


def folded(markdown: str) -> str:
    """Paragraphs folded to the width of the docs; a heading stays a line."""
    parts = markdown.split("\n\n")
    return "\n\n".join(textwrap.fill(text, _WIDTH, break_long_words=False, break_on_hyphens=False) for text in parts)


def with_explanations(page: str) -> str:
    """The page with every section of a code as `explain` tells it."""
    from shadowgraph.render.text.explanations import explanations

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
    text = out.getvalue().replace(f"{ROOT}{os.sep}", "").replace(f"{os.getcwd()}{os.sep}", "").rstrip()
    return "\n".join(line.rstrip() for line in text.splitlines())


def with_outputs(page: str, folder: Path) -> str:
    """The page with every ``console`` block run again on the dumps of `tools/verbs_program.py`."""
    from verbs_program import make_dumps

    if not any(folder.iterdir()):
        make_dumps(folder)

    def again(block: re.Match[str]) -> str:
        lines = re.findall(r"^\$ (.*)$", block[1], flags=re.MULTILINE)
        return "```console\n" + "\n".join(f"$ {line}\n{printed(line)}" for line in lines) + "\n```"

    with contextlib.chdir(folder):
        return re.sub(r"```console\n(.*?)```", again, page, flags=re.DOTALL)


def with_words(page: str, dump: Path) -> str:
    """The page with every ``text`` block under a mark ``printed`` made again from a dump."""
    import report_words

    def again(block: re.Match[str]) -> str:
        return "\n".join((block[1], "```text", *getattr(report_words, block[2])(dump), "```"))

    return re.sub(r"(<!-- printed: (\w+) -->)\n```text\n.*?```", again, page, flags=re.DOTALL)


def store(path: Path, made: str) -> None:
    """Write a page, unless the stored one says the same."""
    if settled(made) != settled(path.read_text("utf-8")):
        path.write_text(made, "utf-8")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", action="store_true", help="leave out what the verbs print")
    options = parser.parse_args(argv)
    for page in pages():
        page.write_text(with_parts(page.read_text("utf-8")), "utf-8")
    store(FINDINGS, with_explanations(FINDINGS.read_text("utf-8")))
    if options.parts:
        return 0
    with tempfile.TemporaryDirectory() as folder:
        store(VERBS, with_outputs(VERBS.read_text("utf-8"), Path(folder)))
        report = with_outputs(REPORT.read_text("utf-8"), Path(folder))
        store(REPORT, with_words(report, Path(folder) / "buggy.dump"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
