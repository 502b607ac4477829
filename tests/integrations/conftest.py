"""A debugger with the flashinfer adapter hung on wrappers that plan and run as flashinfer's do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from planning_backend import attachment

import shadowgraph as sg
from shadowgraph.common.internal_errors import internal_errors
from shadowgraph.integrations.flashinfer.adapter import Attachment


@pytest.fixture
def attached() -> Iterator[Attachment]:
    with attachment() as made:
        yield made


@pytest.fixture(params=["isolate", "faithful"])
def debugger(request: pytest.FixtureRequest, attached: Attachment) -> Iterator[sg.Debugger]:
    before = internal_errors.total
    with sg.debug(layout=request.param) as made:
        yield made
    assert internal_errors.total == before, internal_errors.counts
