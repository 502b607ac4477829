"""Which modules count as imported."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from shadowgraph.common.imported_modules import imported

NAME = "half_of_it"


def test_a_module_counts_from_the_end_of_its_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / f"{NAME}.py").write_text(
        "import sys\nfrom shadowgraph.common.imported_modules import imported\n"
        "assert __name__ in sys.modules\nDURING = imported(__name__)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert imported(NAME) is None
    try:
        module = import_module(NAME)
        assert module.DURING is None
        assert imported(NAME) is module
    finally:
        del sys.modules[NAME]


def test_one_that_failed_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / f"{NAME}.py").write_text("raise OSError('broken here')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(OSError, match="broken here"):
        import_module(NAME)
    assert imported(NAME) is None


def test_one_that_is_forbidden_does_not_count_and_one_made_by_hand_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, NAME, None)
    assert imported(NAME) is None
    module = ModuleType(NAME)
    assert module.__spec__ is None
    monkeypatch.setitem(sys.modules, NAME, module)
    assert imported(NAME) is module
