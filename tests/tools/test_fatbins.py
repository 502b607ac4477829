"""`tools/fatbins.py`: what stays of a library's device code, and what is refused. The libraries are made here."""

from __future__ import annotations

import struct

import fatbins
import pytest
from elf_libraries import CUBIN, PTX, fat_binary, image, library

OLD, HERE, FEATURES = image(CUBIN, 80, b"old"), image(CUBIN, 90, b"here"), image(CUBIN, 90, b"with features")
NEWER, TEXT = image(CUBIN, 100, b"of a newer card"), image(PTX, 90, b"text")


def images(data: bytes) -> list[list[bytes]]:
    return [[data[each.start : each.end] for each in found.images] for found in fatbins.fat_binaries(data)]


def test_images_are_found_behind_zeros_and_over_several_fat_binaries() -> None:
    whole = library(fat_binary(OLD, HERE), fat_binary(TEXT, NEWER))
    assert images(whole) == [[OLD, HERE], [TEXT, NEWER]]
    assert fatbins.architectures(whole) == {80: 1, 90: 1, 100: 1}, "PTX is of no architecture"


def test_the_images_of_one_architecture_stay_at_the_front() -> None:
    whole = library(fat_binary(OLD, HERE, NEWER, FEATURES, TEXT), fat_binary(HERE))
    made = fatbins.cut(whole, 90)
    assert images(made) == [[HERE, FEATURES], [HERE]]
    first = next(iter(fatbins.fat_binaries(whole)))
    kept = first.body + len(HERE) + len(FEATURES)
    assert made[kept : first.end] == bytes(first.end - kept), "zeros, which pack well"


def test_nothing_outside_of_fat_binaries_changes() -> None:
    whole = library(fat_binary(OLD, HERE), fat_binary(NEWER, HERE))
    made = fatbins.cut(whole, 90)
    assert len(made) == len(whole)
    start, stop = fatbins.section(whole)
    assert (made[:start], made[stop:]) == (whole[:start], whole[stop:])
    assert fatbins.section(made) == (start, stop)


def test_a_fat_binary_for_other_cards_keeps_its_smallest_image() -> None:
    assert images(fatbins.cut(library(fat_binary(NEWER, OLD, TEXT), fat_binary(HERE)), 90)) == [[OLD], [HERE]]


@pytest.mark.parametrize("data", [b"", b"no library", library(), library(fat_binary(OLD), section=b".nv_other1")])
def test_what_holds_no_fat_binaries_stays_as_it_is(data: bytes) -> None:
    assert fatbins.cut(data, 90) == data


def test_an_empty_fat_binary_stays_as_it_is() -> None:
    whole = library(fat_binary(), fat_binary(OLD, HERE))
    assert images(fatbins.cut(whole, 90)) == [[], [HERE]]


def test_another_format_is_refused_and_not_cut() -> None:
    long = bytearray(HERE)
    struct.pack_into("<Q", long, 8, 1 << 20)
    with pytest.raises(ValueError, match="behind its fat binary"):
        fatbins.cut(library(fat_binary(OLD, bytes(long))), 90)
    cut_short = bytearray(fat_binary(HERE))
    struct.pack_into("<Q", cut_short, 8, 1 << 20)
    with pytest.raises(ValueError, match="behind its section"):
        fatbins.cut(library(bytes(cut_short)), 90)
    with pytest.raises(ValueError, match="no whole head"):
        fatbins.cut(library(fat_binary(HERE, b"remainder")), 90)
