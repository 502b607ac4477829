from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shadowgraph.common.errors import UsageError
from shadowgraph.common.option_kinds import parse_bytes
from shadowgraph.common.settings import Settings


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("0", 0),
        ("65536", 65536),
        (" 512 ", 512),
        ("16b", 16),
        ("64K", 1 << 16),
        ("64k", 1 << 16),
        ("64KB", 1 << 16),
        ("64KiB", 1 << 16),
        ("1.5M", 3 << 19),
        ("2GiB", 2 << 30),
        ("1t", 1 << 40),
        ("-1", -1),
    ],
)
def test_numbers_of_bytes(text: str, nbytes: int) -> None:
    assert parse_bytes(text) == nbytes


@pytest.mark.parametrize("text", ["", " ", "K", "64X", "1.5", "ten", "1 2", "0x10", "infK", "nanM", "1e999G"])
def test_what_is_no_number_of_bytes(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w+"):
        parse_bytes(text)


def test_the_defaults_are_documented_and_need_no_gpu() -> None:
    settings = Settings()
    assert (settings.backend, settings.layout, settings.sync, settings.infer) == ("host", "isolate", False, True)
    assert (settings.near_guard, settings.far_guard) == (256, None)
    assert (settings.guard_memory, settings.shadow_limit) == (None, 1 << 20)
    assert Settings.from_environment({}) == settings
    documented = Settings.__doc__ or ""
    assert [field.name for field in dataclasses.fields(Settings) if f"\n    {field.name}\n" not in documented] == []


@pytest.mark.parametrize(
    ("variable", "text", "option", "value"),
    [
        ("BACKEND", "cuda", "backend", "cuda"),
        ("LAYOUT", "faithful", "layout", "faithful"),
        ("NEAR_GUARD", "1K", "near_guard", 1024),
        ("FAR_GUARD", "2M", "far_guard", 2 << 20),
        ("FAR_GUARD", "0", "far_guard", 0),
        ("GUARD_MEMORY", "1.5G", "guard_memory", 3 << 29),
        ("SHADOW_LIMIT", "123", "shadow_limit", 123),
        ("EVERY", "20", "every", 20),
        ("SUPPRESSIONS", "a dir/known.txt", "suppressions", "a dir/known.txt"),
        ("SYNC", "1", "sync", True),
        ("SYNC", " Yes ", "sync", True),
        ("SYNC", "on", "sync", True),
        ("SYNC", "TRUE", "sync", True),
        ("INFER", "0", "infer", False),
        ("INFER", "no", "infer", False),
        ("INFER", "Off", "infer", False),
        ("INFER", "false", "infer", False),
        ("INFER", "", "infer", False),
    ],
)
def test_variables(variable: str, text: str, option: str, value: object) -> None:
    environment = {f"SHADOWGRAPH_{variable}": text, "NEAR_GUARD": "99", "SHADOWGRAPH_TRACEBACK": "1"}
    assert Settings.from_environment(environment) == dataclasses.replace(Settings(), **{option: value})  # type: ignore[arg-type]


def test_the_process_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHADOWGRAPH_NEAR_GUARD", "4K")
    assert Settings.from_environment().near_guard == 4096


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        ("SYNC", "maybe", "SHADOWGRAPH_SYNC must be 0 or 1, not 'maybe'"),
        ("FAR_GUARD", "big", "SHADOWGRAPH_FAR_GUARD must be a number of bytes such as 65536 or 64K, not 'big'"),
        ("SHADOW_LIMIT", "infK", "SHADOWGRAPH_SHADOW_LIMIT must be a number of bytes such as 65536 or 64K, not 'infK'"),
        ("GUARD_MEMORY", "", "SHADOWGRAPH_GUARD_MEMORY must be a number of bytes such as 65536 or 64K, not ''"),
        (
            "EVRY",
            "4",
            "no variable SHADOWGRAPH_EVRY (did you mean SHADOWGRAPH_EVERY?); docs/settings.md lists them: "
            "unset it or correct its name",
        ),
        ("XYZ", "", "no variable SHADOWGRAPH_XYZ; docs/settings.md lists them: unset it or correct its name"),
        ("LAYOUT", "faithfull", "layout must be one of isolate, faithful, not 'faithfull' (did you mean faithful?)"),
        ("BACKEND", "rocm", "backend must be one of host, cuda, not 'rocm'"),
        ("SHADOW_LIMIT", "-1", "shadow_limit must not be negative, not -1"),
    ],
)
def test_variables_that_do_not_parse(variable: str, text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        Settings.from_environment({f"SHADOWGRAPH_{variable}": text})
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": "CUDA"}, "backend must be one of host, cuda, not 'CUDA'"),
        ({"layout": ""}, "layout must be one of isolate, faithful, not ''"),
        ({"near_guard": 15}, "near_guard must be at least 16 bytes, not 15"),
        ({"far_guard": -1}, "far_guard must not be negative, not -1"),
        ({"guard_memory": -5}, "guard_memory must not be negative, not -5"),
        ({"near_guard": "64K"}, "near_guard must be a whole number of bytes, not '64K'"),
        ({"shadow_limit": 0.5}, "shadow_limit must be a whole number of bytes, not 0.5"),
        ({"shadow_limit": None}, "shadow_limit must be a whole number of bytes, not None"),
        ({"near_guard": True}, "near_guard must be a whole number of bytes, not True"),
        ({"sync": "no"}, "sync must be True or False, not 'no'"),
        ({"sync": 1}, "sync must be True or False, not 1"),
        ({"infer": None}, "infer must be True or False, not None"),
        ({"suppressions": 5}, "suppressions must be the path of a file, not 5"),
        ({"dump_limit": 1 << 10}, "dump_limit must be at least 65,536 bytes, not 1024"),
        ({"dump_whole": -1}, "dump_whole must not be negative, not -1"),
        ({"backend": 3}, "backend must be one of host, cuda, not 3"),
        ({"layout": ["isolate"]}, "layout must be one of isolate, faithful, not ['isolate']"),
        (
            {"near_guards": 64, "sync": True},
            "no option 'near_guards' (did you mean near_guard?); options are: backend, capture_lines, checks, ",
        ),
    ],
)
def test_options_that_do_not_fit(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        Settings().with_options(**options)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("option", ["sync", "near_guard", "suppressions", "backend"])
def test_a_value_that_does_not_fit_is_told_in_one_short_line(option: str) -> None:
    with pytest.raises(UsageError) as caught:
        Settings().with_options(**{option: np.zeros((40, 40))})
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 140


def test_suppressions_may_be_a_path() -> None:
    assert Settings().with_options(suppressions=Path("known.txt")).suppressions == Path("known.txt")


def test_smallest_values_that_fit() -> None:
    made = Settings().with_options(near_guard=16, far_guard=0, guard_memory=0, shadow_limit=0)
    assert (made.near_guard, made.far_guard, made.guard_memory, made.shadow_limit) == (16, 0, 0, 0)


def test_options_make_a_copy() -> None:
    settings = Settings()
    assert settings.with_options(sync=True) == Settings(sync=True)
    assert settings == Settings()
    assert settings.with_options() == settings
