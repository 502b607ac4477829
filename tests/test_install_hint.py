"""What messages say to install: packages that an index has, whatever of shadowgraph itself is at hand."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from shadowgraph.common import install_hint
from shadowgraph.common.install_hint import install_command

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    install_hint.requirements.cache_clear()
    yield
    install_hint.requirements.cache_clear()


def as_installed(monkeypatch: pytest.MonkeyPatch, folder: Path, *lines: str) -> None:
    """The package stands in a folder without a checkout, with the metadata of a wheel."""
    monkeypatch.setattr(install_hint, "__file__", str(folder / "shadowgraph" / "common" / "install_hint.py"))
    monkeypatch.setattr(install_hint, "requires", lambda name: list(lines))


def test_in_a_checkout_the_packages_of_an_extra_are_named() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    for extra in ("cuda12", "cuda13", "triton", "plot", "notebook"):
        said = install_command(extra)
        assert said.startswith("pip install ")
        assert all(f"'{line}'" in said for line in extras[extra])
    assert install_command("notebook", "bokeh") == "pip install 'bokeh>=3.6'"


def test_a_wheel_names_them_from_its_metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = (
        "torch>=2.10",
        "matplotlib>=3.9; extra == 'plot'",
        'bokeh>=3.6; python_version > "3" and extra == "notebook"',
    )
    as_installed(monkeypatch, tmp_path, *lines)
    assert install_command("plot") == "pip install 'matplotlib>=3.9'"
    assert install_command("notebook", "bokeh") == "pip install 'bokeh>=3.6'"


def test_another_projects_folder_is_no_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "other"\n[project.optional-dependencies]\nplot = ["x"]\n'
    )
    as_installed(monkeypatch, tmp_path, "matplotlib>=3.9; extra == 'plot'")
    assert install_command("plot") == "pip install 'matplotlib>=3.9'"


def test_a_copy_of_the_package_alone_says_where_to_install_it_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_installed(monkeypatch, tmp_path)
    assert install_command("plot") == "install shadowgraph from a checkout or a wheel file, with its extra plot"


def test_no_text_says_that_an_index_has_shadowgraph() -> None:
    files = [ROOT / "README.md"]
    for folder, suffixes in (("docs", (".md",)), ("shadowgraph", (".py", ".html")), ("notebooks", (".ipynb",))):
        files += [path for path in (ROOT / folder).rglob("*") if path.suffix in suffixes]
    wrong = re.compile(r"pip install (?:-\S+ )*['\"]?shadowgraph\b(?!/)")
    assert [str(path.relative_to(ROOT)) for path in files if wrong.search(path.read_text("utf-8"))] == []
