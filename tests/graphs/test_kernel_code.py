"""What is read from the code of compiled Triton kernels (`support.compiled_kernels`)."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from support import compiled_kernels

from shadowgraph.graphs.triton.compiled import code_of, note_code
from shadowgraph.model.kernel_code import KernelCode, KernelTextError, Use, uses_of
from shadowgraph.model.launches import Launch, LaunchKind

LOADED = Use(loads=True)
STORED = Use(stores=True)
LOADED_IN_PART = Use(loads=True, whole=False)
STORED_IN_PART = Use(stores=True, whole=False)


class Kernel:
    """What Triton returns for a launch, as far as it is looked at."""

    def __init__(self, asm: dict[str, str], signature: dict[str, str]) -> None:
        self.asm, self.src = asm, SimpleNamespace(signature=signature)


@pytest.fixture(scope="module")
def kernels() -> dict[str, Kernel]:
    """Compiled in a process of their own: in this one Triton interprets."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, compiled_kernels.__file__]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, f"invalid: {ran.stderr[-2000:]}"
    return {name: Kernel(*each) for name, each in json.loads(ran.stdout).items()}


@pytest.mark.parametrize(
    ("function", "uses"),
    [
        ("add", {"x": LOADED, "y": LOADED, "out": STORED}),
        ("gather", {"x": LOADED_IN_PART, "indices": LOADED, "out": STORED}),
        ("store_rows", {"cache": STORED_IN_PART, "rows": LOADED, "values": LOADED}),
        ("fill_from", {"out": STORED_IN_PART}),
        ("fill_to_length", {"out": STORED_IN_PART, "length": LOADED}),
        ("fill_if_told", {"out": STORED_IN_PART, "told": LOADED}),
        ("count", {"counts": Use(loads=True, stores=True, whole=False), "values": LOADED}),
        ("sums", {"x": LOADED, "out": STORED}),
        ("chain", {"x": LOADED_IN_PART, "out": STORED}),
        ("early", {"x": LOADED, "out": STORED}),
        ("early_by_value", {"x": LOADED_IN_PART, "out": STORED_IN_PART, "length": LOADED}),
        ("early_twice", {"x": LOADED, "y": LOADED, "out": STORED}),
        ("bisect", {"x": LOADED_IN_PART, "counts": LOADED_IN_PART, "out": STORED}),
        ("halve", {"x": LOADED, "out": STORED}),
        ("written_in_while", {"x": LOADED_IN_PART, "out": STORED_IN_PART, "length": LOADED}),
        ("while_from", {"out": STORED_IN_PART}),
        ("chosen_start", {"out": STORED_IN_PART}),
        ("for_from", {"out": STORED_IN_PART}),
        ("described", {"x": LOADED, "out": STORED}),
        ("described_at", {"out": STORED_IN_PART, "rows": LOADED}),
        ("told_in_assembly", {"x": Use(loads=True, stores=True, whole=False), "out": STORED}),
        ("from_a_table", dict.fromkeys(("x", "out", "table"))),
        ("in_a_function", dict.fromkeys(("out", "table"))),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_uses_of_arguments(kernels: dict[str, Kernel], function: str, uses: dict[str, Use | None]) -> None:
    code = code_of(kernels[function])
    assert code is not None
    assert {name: code.use(name) for name in uses} == uses
    assert code.use("n") is None, "a number is no pointer"


def test_dependency_control(kernels: dict[str, Kernel]) -> None:
    facts = {name: code_of(kernels[name]) for name in ("add", "waiting", "releasing")}
    said = {name: (code.waits, code.releases) for name, code in facts.items() if code is not None}
    assert said == {"add": (False, False), "waiting": (True, False), "releasing": (False, True)}


def test_a_launch_has_the_code_of_what_it_ran(kernels: dict[str, Kernel]) -> None:
    kernel: Any = kernels["add"]
    launch = Launch(LaunchKind.TRITON, "add", ())
    note_code(launch, None)
    assert launch.code is None
    note_code(launch, kernel)
    assert launch.code is code_of(kernel)
    note_code(launch, object())
    assert launch.code is None


def test_a_kernel_that_is_gone_is_unknown() -> None:
    kernel = Kernel({"ttir": "", "ptx": ""}, {})
    code = code_of(kernel)
    del kernel
    gc.collect()
    assert code is not None
    assert (code.use("x"), code.waits, code.releases) == (None, None, None)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "module {\n}",
        "tt.func public @k(%a: !tt.ptr<i32>, %b: i32) {\n}",
        "tt.func public @k(%a: !tt.ptr<!tt.ptr<i32>>) {\n%0 = tt.load %a : !tt.ptr<!tt.ptr<i32>>\n}",
        "tt.func public @k(%a: !tt.ptr<i32>) {\ncf.br ^bb1\n^bb1(%p: !tt.ptr<i32>):\ntt.store %p, %p : i32\n}",
        "tt.func public @k(%a: !tt.ptr<i32>) {\ncf.br ^bb2(%a : !tt.ptr<i32>)\n^bb1(%p: !tt.ptr<i32>):\ntt.return\n}",
        "tt.func public @k(%a: !tt.ptr<i32>) {\ncf.switch %a, [default: ^bb1]\n^bb1:\ntt.return\n}",
    ],
)
def test_what_is_not_understood_is_unknown(text: str) -> None:
    with pytest.raises(KernelTextError):
        uses_of(text, ["a"])
    assert KernelCode(lambda: {"ttir": text}, ("a",)).use("a") is None


def test_the_region_of_a_mapped_function_may_do_anything() -> None:
    text = (
        "tt.func public @k(%a: !tt.ptr<i32>) {\n"
        '%0 = "tt.map_elementwise"(%a) <{pack = 1 : i32}> ({\n'
        "^bb0(%p: !tt.ptr<i32>):\n"
        "%1 = tt.call @store(%p) : (!tt.ptr<i32>) -> i32\n"
        "tt.map_elementwise.return %1 : i32\n"
        "}) : (!tt.ptr<i32>) -> i32\ntt.return\n}"
    )
    assert uses_of(text, ["a"]) == {"a": Use(True, True, False)}


def test_values_that_a_branch_hands_to_a_block() -> None:
    text = (
        "tt.func public @k(%a: !tt.ptr<i32>, %b: !tt.ptr<i32>, %n: i32) {\n"
        "%c = arith.cmpi eq, %n, %n : i32\n"
        'cf.cond_br %c, ^bb1(%a : !tt.ptr<i32>), ^bb1(%b : !tt.ptr<i32>) loc("k.py":3:4)\n'
        '^bb1(%p: !tt.ptr<i32> loc("k.py":1:2)):  // 2 preds: ^bb0, ^bb0\n'
        "tt.store %p, %n : !tt.ptr<i32>\ntt.return\n}"
    )
    assert uses_of(text, ["a", "b", "n"]) == {"a": STORED, "b": STORED}


def test_unknown_operations_may_do_anything() -> None:
    text = "tt.func public @k(%a: !tt.ptr<i32>, %b: !tt.ptr<i32>) {\n%0 = tt.call @other(%a) : (!tt.ptr<i32>) -> i32\n}"
    assert uses_of(text, ["a", "b"]) == {"a": Use(True, True, False), "b": Use()}
