"""Which pages `tools/update_docs.py` writes anew."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

PAGE = """# Verbs

```console
$ shadowgraph timeline kv_indptr buggy.dump
dump of process 1655, 2026-11-30 13:06:08 UTC, on demand
draft.kv_indptr  int32[5]  20 bytes at 0x7f6218e01800, static
  13:06:08.096  found     bytes 4 to 19 (took 1.5 ms)
```
"""


@pytest.fixture
def docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The tool, with pages of its own that nothing prints for."""
    import update_docs

    for name in ("FINDINGS", "VERBS", "REPORT"):
        path = tmp_path / f"{name.lower()}.md"
        path.write_text(PAGE, "utf-8")
        monkeypatch.setattr(update_docs, name, path)
    monkeypatch.setattr(update_docs, "pages", lambda: [update_docs.REPORT])
    for name in ("with_parts", "with_explanations", "with_outputs", "with_words"):
        monkeypatch.setattr(update_docs, name, lambda page, *given: page)
    return update_docs


def again(page: str, *given: object) -> str:
    """What another run prints."""
    for old, new in (("1655", "30518"), ("11-30 13:06:08", "12-01 09:00:59"), ("13:06:08.096", "09:00:59.602"),
                     ("0x7f6218e01800", "0x7f736b801800"), ("1.5 ms", "12 ms")):  # fmt: skip
        assert old in page
        page = page.replace(old, new)
    return page


def test_a_page_that_says_the_same_is_kept(docs: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docs, "with_outputs", again)
    assert docs.main([]) == 0
    assert [path.read_text("utf-8") for path in (docs.FINDINGS, docs.VERBS, docs.REPORT)] == [PAGE] * 3


@pytest.mark.parametrize(("old", "new"), [("4 to 19", "4 to 15"), ("[5]", "[55]"), ("on demand", "")])
def test_a_page_that_says_something_else_is_written_whole(
    old: str, new: str, docs: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = again(PAGE).replace(old, new)
    monkeypatch.setattr(docs, "with_outputs", lambda page, folder: wanted)
    docs.main([])
    assert (docs.VERBS.read_text("utf-8"), docs.FINDINGS.read_text("utf-8")) == (wanted, PAGE)


def test_words_of_the_report_count(docs: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docs, "with_outputs", again)
    monkeypatch.setattr(docs, "with_words", lambda page, dump: page + "more\n")
    docs.main([])
    assert docs.REPORT.read_text("utf-8") == again(PAGE) + "more\n"
    assert docs.VERBS.read_text("utf-8") == PAGE


def test_parts_alone_are_made_without_the_verbs(docs: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docs, "with_parts", lambda page: page + "part\n")
    monkeypatch.setattr(docs, "with_outputs", lambda page, folder: pytest.fail("a verb was run"))
    assert docs.main(["--parts"]) == 0
    assert (docs.REPORT.read_text("utf-8"), docs.VERBS.read_text("utf-8")) == (PAGE + "part\n", PAGE)
