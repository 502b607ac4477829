"""A project of its own for each test of the plugin."""

from __future__ import annotations

import pytest
from support.projects import Project


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Project:
    return Project(pytester, monkeypatch)
