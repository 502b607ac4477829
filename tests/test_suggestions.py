from __future__ import annotations

import pytest

from shadowgraph.common.suggestions import did_you_mean, nearest

_OPTIONS = ("every", "layout", "locate", "near_guard", "far_guard")


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("evry", " (did you mean every?)"),
        ("LAYUOT", " (did you mean layout?)"),
        ("guard", " (did you mean far_guard or near_guard?)"),
        ("colour", ""),
        ("", ""),
    ],
)
def test_words_that_are_close(word: str, said: str) -> None:
    assert did_you_mean(word, _OPTIONS) == said


def test_a_second_word_is_suggested_only_where_it_is_about_as_close() -> None:
    assert nearest("layuot", ["locate", "layout"]) == ["layout"]
    assert nearest("ab", []) == []
