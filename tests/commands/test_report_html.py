"""`shadowgraph report --html`: the page says what the text says, loads nothing, obeys nobody, and is whole or not."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from commands.verb_makers import Capture, empty_dump, of_process, printed, refused, run_folder, suppressing_dump
from dumps.dump_makers import with_manifest
from reports.page_reading import Page, folded, read_page
from serving.run_folders import made_folder, with_process

from shadowgraph.commands.main import main
from shadowgraph.dumps.reader import read_dump
from shadowgraph.wrap.status.server import StatusServer

HEX = re.compile(r"^ +([+-]\d+)  ((?:[0-9a-f]{2} )+) (.*?)  was ((?:[0-9a-f]{2} ?)+)$")
ROW = re.compile(r"^  ([a-z][a-z ]{10}| {11})(.*)$")
HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(2)>{{ 7*7 }}\u202egpj\u2066\x1b[2J\x00&lt;'


def page_of(capsys: Capture, path: Path | str, target: Path, *words: str) -> Page:
    """The page of a dump, of a run folder or of a document."""
    said = printed(capsys, "report", str(path), "--html", str(target), *words)
    assert said == f"wrote {target}\n"
    return read_page(target.read_text("utf-8"))


def require_all_said(text: str, page: Page) -> int:
    """Every line of a text report stands in a page; returns how many lines of bytes there were."""
    hexes = 0
    for line in text.splitlines():
        bytes_shown = HEX.match(line)
        if bytes_shown:
            hexes += 1
            for part in bytes_shown[2], bytes_shown[3], bytes_shown[4]:
                assert folded(part) in page.words, line
        elif row := ROW.match(line):
            assert folded(row[2]) in page.words, line
            assert not row[1].strip() or re.search(rf"\b{re.escape(row[1].strip())}\b", page.words), line
        else:
            assert folded(line.removeprefix("SUMMARY: shadowgraph: ").removeprefix("coverage: ")) in page.words, line
    return hexes


# -- what it says ------------------------------------------------------------------------------------------------------


def test_it_says_all_that_the_text_says(worker: Path, cuda_like: Path, tmp_path: Path, capsys: Capture) -> None:
    for dump in worker, cuda_like:
        text = printed(capsys, "report", str(dump))
        assert text.count("SUMMARY: ") >= 1
        assert require_all_said(text, page_of(capsys, dump, tmp_path / "page.html")) >= 1


def test_a_dump_without_findings(tmp_path: Path, capsys: Capture) -> None:
    dump = empty_dump(tmp_path / "empty.dump")
    page = page_of(capsys, dump, tmp_path / "page.html")
    assert require_all_said(printed(capsys, "report", str(dump)), page) == 0
    assert "shadowgraph: no findings " in page.words


def test_what_rules_hid(tmp_path: Path, capsys: Capture) -> None:
    known = tmp_path / "known.txt"
    known.write_text("code=SG101 reason=<b>upstream</b>\ncode=SG102 expires=2026-01-31\n")
    dump = suppressing_dump(tmp_path / "known.dump", known)
    text = printed(capsys, "report", str(dump))
    assert f"suppression {known}:1: 1 finding, 1 sighting: code=SG101 (<b>upstream</b>)\n" in text
    assert f"suppression {known}:2: expired on 2026-01-31, hides nothing, 1 finding of it shown: code=SG102\n" in text
    assert "stale" not in text, "the run goes on"
    page = page_of(capsys, dump, tmp_path / "page.html")
    require_all_said(text, page)


def test_a_redacted_dump(redacted: Path, tmp_path: Path, capsys: Capture) -> None:
    page = page_of(capsys, redacted, tmp_path / "page.html")
    require_all_said(printed(capsys, "report", str(redacted)), page)


def test_a_report_as_json(worker: Path, tmp_path: Path, capsys: Capture) -> None:
    """A page of what `report --json` printed says what the text of that says, the bytes that findings kept included."""
    path = tmp_path / "<b> report.json"
    path.write_text(printed(capsys, "report", str(worker), "--json"), "utf-8")
    page = page_of(capsys, path, tmp_path / "page.html")
    assert require_all_said(printed(capsys, "report", str(path)), page) >= 1
    assert "its buffers, launches and memory are in the dump itself" in page.words
    assert "Memory map" not in page.words
    assert main(["report", str(path), "--html", str(tmp_path / "page.html"), "--error-exitcode", "9"]) == 9


def test_a_run_by_its_status_server_and_as_json(tmp_path: Path, capsys: Capture) -> None:
    folder = made_folder(tmp_path / "run", "python", "serve.py")
    with_process(folder, pid=4_100_001, buffer__name="draft.<first>")
    server = StatusServer(folder, 0)
    server.start()
    try:
        live = page_of(capsys, server.url, tmp_path / "live.html")
        text = printed(capsys, "report", server.url)
        saved = tmp_path / "run.json"
        saved.write_text(printed(capsys, "report", server.url, "--json"), "utf-8")
    finally:
        server.stop()
    assert "SG101" in text
    place, token, _ = server.url.rsplit("/", 2)
    assert f"{place}/.../" in live.words, "its title says which run"
    assert token not in live.words
    for page in live, page_of(capsys, saved, tmp_path / "saved.html"):
        lines = [line for line in text.splitlines() if not line.startswith("  process ")]
        require_all_said("\n".join(lines), page)
        assert re.search(r"Processes .* 4100001 ", page.words)


def test_a_damaged_report_leaves_no_page(worker: Path, tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "report.json"
    whole = printed(capsys, "report", str(worker), "--json")
    for text, code in (
        (whole[:-100], 12),
        (whole.replace('"severity": "error"', '"severity": "loud"'), 12),
        ('{"schema": "other"}', 14),
    ):
        path.write_text(text, "utf-8")
        refused(capsys, code, "report", str(path), "--html", str(tmp_path / "page.html"))
        assert os.listdir(tmp_path) == ["report.json"]


def test_bytes_around_the_damage_are_marked(worker: Path, tmp_path: Path, capsys: Capture) -> None:
    with read_dump(worker) as dump:
        (found,) = (f for f in dump.manifest.facts.findings if f.code == "SG101")
    target = tmp_path / "page.html"
    page_of(capsys, worker, target)
    text = target.read_text("utf-8")
    card = text[text.index(f'id="finding-{found.id}"') :].split("</article>")[0]
    assert f"<td>#{found.id} found</td>" in card
    marked = re.findall(r'<tr class="found">.*?<span class="changed">([0-9a-f ]+)</span>', card)
    assert marked == ["09 00 00 00 0a 00 00 00 0b 00 00 00"], "twelve bytes past the end"
    guard = re.search(r'<td class="number">-16</td><td></td><td><span class="guard">([0-9a-f ]+)</span>', card)
    assert guard is not None
    assert len(guard[1].split()) == 16
    assert '<td class="number">+0</td><td></td><td>01 00 00 00 02' in card, "the buffer's own bytes are not marked"


def test_nodes_launches_and_the_map(cuda_like: Path, tmp_path: Path, capsys: Capture) -> None:
    page = page_of(capsys, cuda_like, tmp_path / "page.html")
    for line in printed(capsys, "nodes", str(cuda_like)).splitlines()[1:-1]:
        place, kind = line.split()[:2]
        assert re.search(rf"(?<!\S){re.escape(place)} {kind}", page.words), line
        for detail in line.split("  ")[-1].split("; "):
            assert folded(detail) in page.words
    assert "Last launches" in page.words
    for line in printed(capsys, "map", str(cuda_like)).splitlines():
        assert folded(line) in page.words
    (picture,) = [value for tag, name, value in page.attributes if (tag, name) == ("img", "src")]
    assert b"<svg" in base64.b64decode(picture.removeprefix("data:image/svg+xml;base64,"))


def test_culprits_are_marked_among_the_nodes(worker: Path, tmp_path: Path, capsys: Capture) -> None:
    page = page_of(capsys, worker, tmp_path / "page.html")
    assert re.search(r"aten\.mul_\.Tensor culprit of SG102 #\d", page.words)


def test_a_run_folder(worker: Path, tmp_path: Path, capsys: Capture) -> None:
    folder = made_folder(tmp_path / "run", "python", "serve.py", "--port", "1")
    with_process(folder, pid=4_100_001, buffer__name="draft.<first>")
    with_process(folder, pid=4_100_002, buffer__name="draft.second")
    page = page_of(capsys, folder, tmp_path / "page.html")
    text = printed(capsys, "report", str(folder))
    heads = [line for line in text.splitlines() if line.startswith("  process ")]
    assert len(heads) == 2
    require_all_said("\n".join(line for line in text.splitlines() if line not in heads), page)
    for head in heads:
        for word in head.replace(",", "").split():
            assert word in page.words
    assert "Processes" in page.words
    assert "draft.<first>" in page.words
    assert "img" not in page.tags, "no dump: no memory map"


def test_a_run_folder_with_dumps_has_the_memory_of_each_process(worker: Path, tmp_path: Path, capsys: Capture) -> None:
    data = worker.read_bytes()
    first, second = of_process(data, 11, 100.0), of_process(data, 12, 100.0)
    folder = run_folder(tmp_path / "run", first=first, second=second, broken=data[:5000])
    assert main(["report", str(folder), "--html", str(tmp_path / "page.html")]) == 0
    assert "broken.dump" in capsys.readouterr().err
    page = read_page((tmp_path / "page.html").read_text("utf-8"))
    assert page.tags.count("img") == 2
    assert "process 11, first.dump" in page.words
    assert "process 12, second.dump" in page.words


def test_findings_of_a_run_are_shown_with_the_bytes_of_their_dump(
    worker: Path, tmp_path: Path, capsys: Capture
) -> None:
    with read_dump(worker) as dump:
        (found,) = (f for f in dump.manifest.facts.findings if f.code == "SG101")
    folder = made_folder(tmp_path / "run")
    with_process(
        folder, pid=found.pid, **{f: getattr(found, f) for f in found.__struct_fields__ if f not in ("id", "pid")}
    )
    (folder / "one.dump").write_bytes(worker.read_bytes())
    assert found.id != 1, "a run counts anew"
    page = page_of(capsys, folder, tmp_path / "page.html")
    assert "worker.table as the dump has it" in page.words
    assert "#1 found 09 00 00 00 0a 00 00 00 0b 00 00 00" in page.words


# -- what it does not do -----------------------------------------------------------------------------------------------


def test_nothing_is_loaded_from_elsewhere(worker: Path, tmp_path: Path, capsys: Capture) -> None:
    target = tmp_path / "page.html"
    page = page_of(capsys, worker, target)
    links = [value for _, name, value in page.attributes if name in ("src", "href", "action", "data", "srcset")]
    assert links
    assert all(value.startswith(("#", "data:image/")) for value in links)
    assert not {"link", "iframe", "object", "embed", "base", "form"} & set(page.tags)
    assert not re.search(r"@import|url\(", target.read_text("utf-8").split("</style>")[0])


def test_no_other_script_may_run(worker: Path, tmp_path: Path, capsys: Capture) -> None:
    page = page_of(capsys, worker, tmp_path / "page.html")
    (script,) = page.scripts
    (policy,) = [value for tag, name, value in page.attributes if (tag, name) == ("meta", "content") and "src" in value]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}';" in policy
    assert policy.startswith("default-src 'none'; ")


def hostile(manifest: dict[str, Any]) -> None:
    """Every text of a manifest says what a browser should not hear."""
    kept = {"code", "kind", "severity", "phase", "dtype", "hex", "fingerprint"}
    begun = ("worker", "tests/", "/", "aten", "fill", "triton", "graph#", "SG1")

    def bent(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: each if key in kept else bent(each) for key, each in value.items()}
        if isinstance(value, list):
            return [bent(each) for each in value]
        said = isinstance(value, str) and value.startswith(begun) and value not in ("aten", "triton")
        return HOSTILE + value if said else value

    manifest.update(bent(manifest), reason=HOSTILE, argv=[HOSTILE])


def test_texts_of_a_dump_stay_texts(worker: Path, tmp_path: Path, capsys: Capture) -> None:
    made = tmp_path / "made_up.dump"
    made.write_bytes(with_manifest(worker.read_bytes(), hostile))
    target = tmp_path / "page.html"
    page = page_of(capsys, made, target)
    plain = page_of(capsys, worker, tmp_path / "plain.html")
    assert page.scripts == plain.scripts
    assert set(page.tags) == set(plain.tags)
    assert {(tag, name) for tag, name, _ in page.attributes} == {(tag, name) for tag, name, _ in plain.attributes}
    assert page.words.count("<script>alert(1)</script>") > 20
    assert "{{ 7*7 }}" in page.words
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", target.read_text("utf-8"))


def test_a_text_of_a_megabyte_is_cut(worker: Path, tmp_path: Path, capsys: Capture) -> None:
    def long(manifest: dict[str, Any]) -> None:
        manifest["reason"] = "because " * 200_000
        manifest["facts"]["findings"][0]["buffer"]["name"] = "long " * 400_000

    made = tmp_path / "made_up.dump"
    made.write_bytes(with_manifest(worker.read_bytes(), long))
    page = page_of(capsys, made, tmp_path / "page.html")
    assert "more characters" in page.words
    assert (tmp_path / "page.html").stat().st_size < 1_000_000


def test_many_findings_stay_small(worker: Path, tmp_path: Path, capsys: Capture) -> None:
    def many(manifest: dict[str, Any]) -> None:
        known = manifest["facts"]["findings"]
        manifest["facts"]["findings"] = [{**known[n % len(known)], "id": n + 1} for n in range(3_000)]

    made = tmp_path / "made_up.dump"
    made.write_bytes(with_manifest(worker.read_bytes(), many))
    page = page_of(capsys, made, tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size < 5_000_000
    assert "3,000 findings" in page.words
    assert f"... and 2,800 more findings and notes; shadowgraph report {made} shows all" in page.words


@pytest.mark.slow
def test_a_large_dump_makes_a_small_page(tmp_path: Path, capsys: Capture) -> None:
    tools, path = Path(__file__).resolve().parents[2] / "tools", tmp_path / "large.dump"
    code = (
        f"import sys; sys.path.insert(0, {str(tools)!r}); from bench_verbs import *; large_dump(Path({str(path)!r}), "
    )
    # A process of its own: the made-up buffers stay in the ledger when the memory that they lie in is gone.
    subprocess.run([sys.executable, "-c", f"{code}20_000, 2_000)"], check=True, timeout=300, capture_output=True)
    page = page_of(capsys, path, tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size < 5_000_000
    assert f"... 1,940 more; shadowgraph nodes {path} shows all" in page.words
    assert "20,002 buffers" in page.words


def test_without_matplotlib_one_line_says_so(
    worker: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    page = page_of(capsys, worker, tmp_path / "page.html")
    assert "img" not in page.tags
    assert page.words.count("no picture: plots need matplotlib") == 1
    assert "pip install 'matplotlib>=3.9'" in page.words
    require_all_said(printed(capsys, "report", str(worker)), page)
    for line in printed(capsys, "map", str(worker)).splitlines():
        assert folded(line) in page.words


# -- the file ----------------------------------------------------------------------------------------------------------


def test_an_older_page_stays_when_the_new_one_cannot_be_written(
    worker: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "page.html"
    target.write_text("older")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    said = refused(capsys, 3, "report", str(worker), "--html", str(target))
    assert said == f"shadowgraph: error: cannot write {target}: No space left on device\n"
    assert target.read_text() == "older"
    assert os.listdir(tmp_path) == ["page.html"]


def test_what_cannot_be_written_is_refused_before_a_dump_is_read(tmp_path: Path, capsys: Capture) -> None:
    missing = str(tmp_path / "no.dump")
    assert "it is a folder" in refused(capsys, 3, "report", missing, "--html", str(tmp_path))
    nowhere = str(tmp_path / "no" / "page.html")
    assert f"there is no folder {tmp_path / 'no'}" in refused(capsys, 3, "report", missing, "--html", nowhere)
    assert "/dev/stdout" in refused(capsys, 2, "report", missing, "--html", "-")
    assert "take one of them" in refused(capsys, 2, "report", missing, "--html", "page.html", "--json")
    assert "cannot read" in refused(capsys, 3, "report", missing, "--html", str(tmp_path / "page.html"))
    assert os.listdir(tmp_path) == []


def test_a_damaged_dump_leaves_no_page(worker: Path, tmp_path: Path, capsys: Capture) -> None:
    cut = tmp_path / "cut.dump"
    cut.write_bytes(worker.read_bytes()[:-100])
    refused(capsys, 12, "report", str(cut), "--html", str(tmp_path / "page.html"))
    assert os.listdir(tmp_path) == ["cut.dump"]


def test_a_pipe_stays_a_pipe(worker: Path, tmp_path: Path, capsys: Capture) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got: list[str] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_text("utf-8")))
    reader.start()
    assert main(["report", str(worker), "--html", str(pipe)]) == 0
    reader.join(60)
    assert got
    assert got[0].endswith("</html>\n")
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert os.listdir(tmp_path) == ["pipe"]


def test_the_exit_code_says_whether_there_are_findings_when_asked_to(
    worker: Path, tmp_path: Path, capsys: Capture
) -> None:
    words = ["report", str(worker), "--html", str(tmp_path / "page.html"), "--error-exitcode"]
    assert main([*words, "9"]) == 9
    empty = empty_dump(tmp_path / "empty.dump")
    assert main(["report", str(empty), *words[2:], "9"]) == 0
    assert capsys.readouterr().err == ""


def test_the_page_of_a_dump_is_the_same_each_time(worker: Path, tmp_path: Path, capsys: Capture) -> None:
    for name in "one", "two":
        page_of(capsys, worker, tmp_path / name)
    one, two = ((tmp_path / name).read_text("utf-8") for name in ("one", "two"))
    without = re.compile(r"base64,[A-Za-z0-9+/=]+")
    assert without.sub("", one) == without.sub("", two)


@pytest.mark.parametrize("module", ["shadowgraph", "shadowgraph.render.text.text", "shadowgraph.dumps.reader"])
def test_the_template_engine_is_loaded_for_pages_only(module: str) -> None:
    code = f"import sys, {module}; before = set(sys.modules); sys.exit('shadowgraph.render.html' in before)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == 0
    code = "import sys, shadowgraph; sys.exit('jinja2' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == 0
