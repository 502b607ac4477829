"""The README is kept short and true: each block runs, its report and picture are those that are made, its links exist.

What needs more than a machine with Python is run elsewhere: the server's line in tests/runs/test_sglang_server.py, the
lines that install in tests/tools/test_wheel.py.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from support import vllm_source

from shadowgraph.common.version import VERSION
from shadowgraph.demos.sglang.host import SGLANG_VERSION, sglang_version
from shadowgraph.render.text.explanations import explanations

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
MOST_WORDS = 1_200
DUMP = "notebooks/data/eagle_h200"
# Addresses, serials, line numbers, canaries, which depend on addresses.
VARYING = re.compile(r"0x[0-9a-f]+|allocation \d+|(?<=\.py):\d+|(?<=was )(?:[0-9a-f]{2} ?){2,}")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def lines() -> list[str]:
    """The lines of shell, without comments."""
    found = [shlex.join(shlex.split(line, comments=True)) for block in blocks("bash") for line in block.splitlines()]
    return [line for line in found if line]


def lines_of(*starts: str) -> list[list[str]]:
    return [shlex.split(line) for line in lines() if line.startswith(starts)]


OURS = (
    "shadowgraph report notebooks",
    "shadowgraph hexdump",
    "shadowgraph timeline",
    "shadowgraph nodes",
    "shadowgraph map",
)
EXPLAINED = ("shadowgraph doctor", "shadowgraph explain")
BOOTSTRAP = "python3 tools/bootstrap.py"
INSTALL, SERVER, LATER = "pip install", "shadowgraph wrap", "shadowgraph report run"


def settled(text: str) -> list[str]:
    """Lines without what differs from run to run."""
    return [VARYING.sub("*", line.rstrip()) for line in text.strip().splitlines()]


def test_it_is_short() -> None:
    assert len(README.split()) <= MOST_WORDS


def test_every_block_is_run_by_a_test() -> None:
    assert set(re.findall(r"^```(\w*)", README, re.MULTILINE)) == {"bash", "text", "python", ""}
    assert (len(blocks("text")), len(blocks("python"))) == (1, 1)
    assert not re.search(r"^    \S.*$", re.sub(r"```.*?```", "", README, flags=re.DOTALL), re.MULTILINE)
    known = (*OURS, *EXPLAINED, BOOTSTRAP, INSTALL, SERVER, LATER)
    assert [line for line in lines() if not line.startswith(known)] == []
    assert [len(lines_of(start)) for start in (INSTALL, SERVER, LATER, BOOTSTRAP)] == [1, 1, 1, 2]


def shown() -> tuple[str, str]:
    """The report of the README's case, and its picture, made anew in a process of their own."""
    code = "import json, update_readme as tool; print(json.dumps(tool.run_case()))"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tools")])}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    report, picture = json.loads(done.stdout.splitlines()[-1])
    return report, picture


@pytest.mark.sglang
@pytest.mark.skipif(sglang_version() != SGLANG_VERSION, reason=f"needs sglang {SGLANG_VERSION}")
@pytest.mark.slow
def test_the_report_and_its_picture_are_those_that_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    from update_readme import PICTURE, excerpt, words

    report, picture = shown()
    (text,) = blocks("text")
    assert settled(text) == settled(excerpt(report)), "run tools/update_readme.py"
    stored = words(PICTURE.read_text("utf-8"))
    assert settled(stored) == settled(words(picture)), "run tools/update_readme.py"
    assert settled(" ".join(excerpt(report).split("\n")[0].split()))[0] in settled(stored)[0]
    for said in ("memory map of S-eagle-48", "SUMMARY: shadowgraph: SG101", "+48 B past the end"):
        assert said in stored


def test_the_picture_needs_no_network_and_has_a_ground_of_its_own() -> None:
    from xml.etree import ElementTree

    (path,) = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", README)
    picture = (ROOT / path).read_text("utf-8")
    root = ElementTree.fromstring(picture)
    assert len(root.findall("{http://www.w3.org/2000/svg}svg")) == 2, "a report, and a map"
    assert not re.search(r"url\(['\"]?http|href=\"http|<script", picture)
    assert 'fill="#292929"' in picture, "the report is light on dark, on any page"
    assert "fill: #ffffff" in picture, "the map is dark on light, on any page"


def test_the_snippet_runs_and_finds_its_bug(tmp_path: Path) -> None:
    (snippet,) = blocks("python")
    script = tmp_path / "snippet.py"
    script.write_text(snippet)
    done = subprocess.run([sys.executable, str(script)], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "SG102 in-graph mutation: aten.mul_.Tensor (node 0) changed" in done.stdout


def test_the_snippet_without_its_bug_is_silent(tmp_path: Path) -> None:
    (snippet,) = blocks("python")
    assert "kv_indptr[1:].mul_(2)" in snippet
    script = tmp_path / "snippet.py"
    script.write_text(snippet.replace("kv_indptr[1:].mul_(2)", "kv_indptr[1:].mul(2)"))
    done = subprocess.run([sys.executable, str(script)], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "no findings" in done.stdout


def run(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """A line of ours, in a folder that has the notebooks as the checkout does."""
    (folder / "notebooks").symlink_to(ROOT / "notebooks")
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    own = [sys.executable, "-m", *words]
    return subprocess.run(own, cwd=folder, env=env, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("words", lines_of(*EXPLAINED), ids=" ".join)
def test_a_line_without_a_dump_runs(words: list[str], tmp_path: Path) -> None:
    done = run(words, tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search("the planted overflow was found|lacks a factor", done.stdout)


@pytest.mark.skipif(not (ROOT / DUMP).is_dir(), reason=f"no {DUMP} here: take a clone")
@pytest.mark.parametrize("words", lines_of(*OURS), ids=" ".join)
def test_a_line_on_the_dump_runs(words: list[str], tmp_path: Path) -> None:
    done = run(words, tmp_path)
    assert done.returncode == 0, done.stderr
    made = [name for name in words if name.endswith((".html", ".svg"))]
    for name in made:
        assert (tmp_path / name).stat().st_size > 10_000
    if not made:
        assert re.search(r"cuda_graph_kv_indices|66 nodes, 2 shown", done.stdout)


@pytest.mark.parametrize("words", lines_of(BOOTSTRAP), ids=" ".join)
def test_the_two_commands_are_taken(words: list[str], tmp_path: Path) -> None:
    more = ["--venv", str(tmp_path / "venv"), "--dry-run"]
    done = subprocess.run([sys.executable, *words[1:], *more], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    wanted = "shadowgraph demo --reports --picture" if "demo" in words else "-m pytest -q"
    assert wanted in done.stdout
    assert not (tmp_path / "venv").exists()


def test_what_is_installed_is_an_extra() -> None:
    (words,) = lines_of(INSTALL)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    asked = re.fullmatch(r"\.\[(.+)\]", words[-1])
    assert asked is not None
    assert set(asked[1].split(",")) <= set(extras)
    assert {"cuda12", "cuda13"} <= set(extras)


PARSER = """
import argparse
from sglang.srt.server_args import ServerArgs

parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
print(*(flag for action in parser._actions for flag in action.option_strings))
"""


@pytest.mark.sglang
@pytest.mark.skipif(sglang_version() is None, reason="needs sglang's source, for its parser")
def test_flags_for_sglang_are_those_of_its_parser() -> None:
    """In the README and in the docs, wherever a line starts its server."""
    path = os.pathsep.join([str(ROOT / "tests" / "runs" / "standins"), str(ROOT)])
    env = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", PARSER], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    known = set(done.stdout.split())
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    texts = [text for page in pages for text in re.findall(r"sglang\.launch_server (.*)", page.read_text("utf-8"))]
    assert any("--model-path" in text for text in texts)
    used = {flag for text in texts for flag in re.findall(r"(?<![\w-])--[a-z][\w-]*(?![\w-]*\.\.\.)", text)}
    assert sorted(used - known) == []


@pytest.mark.skipif(vllm_source.root() is None, reason="needs vLLM's source: VLLM_SOURCE names a folder with it")
def test_the_command_for_vllm_is_one_of_its_own() -> None:
    assert 'vllm serve "$MODEL"' in README
    assert 'name = "serve"' in vllm_source.text_of("vllm/entrypoints/cli/serve.py")


def test_every_kind_has_its_row() -> None:
    rows = re.findall(r"^\| \[(SG\d+)\]\(docs/findings\.md#[\w-]+\) \| ([^|]+) \|", README, re.MULTILINE)
    assert rows == [(code, told.kind) for code, told in explanations().items()]


def test_links_and_files_exist() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
    texts = [README, *((ROOT / name).read_text("utf-8") for name in ("CONTRIBUTING.md", "SECURITY.md"))]
    texts.append((ROOT / "docs" / "developing.md").read_text("utf-8"))
    for text in texts:
        for path in re.findall(r"(?<![/\w])(?:tools|tests|shadowgraph)/[\w./]+\.py", text):
            assert (ROOT / path).exists(), path


def test_every_tool_is_told_to_developers() -> None:
    page = (ROOT / "docs" / "developing.md").read_text("utf-8")
    parts = {"elf", "fatbins", "live_abba", "live_engine", "live_runs", "live_vllm_engine"}  # of tools that are told
    parts |= {"mode_sensitive", "operator_samples", "report_words", "varying", "verbs_program"}
    tools = {path.stem for path in (ROOT / "tools").glob("*.py")}
    assert sorted(name for name in tools - parts if f"tools/{name}.py" not in page) == []


def test_one_version_is_told_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    changes = (ROOT / "CHANGELOG.md").read_text("utf-8")
    released = re.findall(r"^## \[?(\d+\.\d+\.\d+)\]?", changes, re.MULTILINE)
    assert project["version"] == VERSION == released[0]
    assert released == sorted(released, key=lambda text: [int(part) for part in text.split(".")], reverse=True)
