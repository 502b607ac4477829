from __future__ import annotations

import pytest

from shadowgraph.model.owner_paths import ends_of, is_end, parts_of


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        ("draft.kv_indptr", ("draft", "kv_indptr")),
        ('a.b["c.d"][0]', ("a", "b", "c.d", "[0]")),
        ("attn['kv']", ("attn", "kv")),
        ("attn[kv]", ("attn", "kv")),
        ('t["a\\"b"]', ("t", 'a"b')),
        ("seen{3}.k", ("seen", "{3}", "k")),
        ("f.<locals>.table", ("f", "<locals>", "table")),
        ("cache[(1, 2)]", ("cache", "(1, 2)")),
        ("a[", ("a",)),
        ("", ()),
    ],
)
def test_parts(path: str, parts: tuple[str, ...]) -> None:
    assert parts_of(path) == parts


@pytest.mark.parametrize(
    ("text", "path", "fits"),
    [
        ("kv_indptr", 'attn["kv_indptr"]', True),
        ("kv_indptr", "attn.kv_indptr", True),
        ('["kv_indptr"]', "attn.kv_indptr", True),
        ("attn[kv_indptr]", 'model.attn["kv_indptr"]', True),
        ("[0]", "tables[0]", True),
        ("tables[0]", "model.tables[0]", True),
        ("indptr", 'attn["kv_indptr"]', False),
        ("kv", 'attn["kv"][0]', False),
        ("0", "tables[0]", False),
        ("", "tables[0]", False),
    ],
)
def test_the_end_of_a_path(text: str, path: str, fits: bool) -> None:
    assert is_end(text, path) is fits


def test_the_first_path_of_each_last_part() -> None:
    assert ends_of(["a.x", 'b["x"]', "c[0]", ""]) == {"x": "a.x", "[0]": "c[0]"}
