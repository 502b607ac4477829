"""Put the report that is printed today into the README, between the ``text`` fences: python tools/update_readme.py"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CASE = "S-eagle-48"


def main() -> int:
    words = [sys.executable, "-m", "shadowgraph", "demo", "--case", CASE, "--reports"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("SG101"))
    last = next(i for i, line in enumerate(lines) if line.startswith("shadowgraph: "))
    report = "\n".join(line.rstrip() for line in lines[first : last + 1])
    path = ROOT / "README.md"
    text = path.read_text(encoding="utf-8")
    # A function as replacement: the report may hold backslashes.
    path.write_text(re.sub(r"```text\n.*?```", lambda _: f"```text\n{report}\n```", text, flags=re.DOTALL), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
