"""Fat binaries inside of a compiled library: which images of device code they hold, and a library cut to one GPU's.

`tools/pack_gpu.py` cuts the libraries that it packs. A library keeps its size and all of its offsets: images that go
leave zeros, which a compressed archive holds for nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

SECTION = b".nv_fatbin"
MAGIC = 0xBA55ED50
CUBIN = 2  # kind of an image that a device loads as it is; PTX has 1
HEAD = struct.Struct("<IHHQ")  # of a fat binary: magic, version, bytes of this head, bytes of all images
IMAGE = struct.Struct("<HHIQ12xI")  # head of an image: kind, version, bytes of this head, bytes behind it, architecture
ALIGNED = 8  # bytes to which a fat binary in the section is


class Image(NamedTuple):
    """One image: device code for one architecture.

    Attributes
    ----------
    kind
        `CUBIN`, or 1 for PTX.
    architecture
        Such as 90, for sm_90 and for sm_90a.
    start, end
        Its bytes in the library, head included.
    """

    kind: int
    architecture: int
    start: int
    end: int


class FatBinary(NamedTuple):
    """Images that are loaded together, as one translation unit was compiled for several architectures.

    Attributes
    ----------
    start
        Of its head, in the library.
    body, end
        The bytes of its images.
    images
        In order.
    """

    start: int
    body: int
    end: int
    images: list[Image]


def section(data: bytes | bytearray) -> tuple[int, int]:
    """Where a library's fat binaries begin and end; (0, 0) where it has none, or is no 64-bit ELF file."""
    if data[:5] != b"\x7fELF\x02":
        return 0, 0
    (table,) = struct.unpack_from("<Q", data, 40)
    size, count, of_names = struct.unpack_from("<HHH", data, 58)
    heads = [struct.unpack_from("<IIQQQQ", data, table + at * size) for at in range(count)]
    for name, _, _, _, offset, length in heads:
        text = heads[of_names][4] + name
        if data[text : text + len(SECTION) + 1] == SECTION + b"\0":
            return offset, offset + length
    return 0, 0


def fat_binaries(data: bytes | bytearray) -> Iterator[FatBinary]:
    """All fat binaries of a library.

    Raises
    ------
    ValueError
        An image reaches past its fat binary, or that past the section: the format is another one.
    """
    at, stop = section(data)
    while at + HEAD.size <= stop:
        magic, _, head, size = HEAD.unpack_from(data, at)
        if magic != MAGIC:
            at += ALIGNED
            continue
        end = at + head + size
        if end > stop:
            raise ValueError(f"the fat binary at {at} ends at {end}, behind its section, which ends at {stop}")
        yield FatBinary(at, at + head, end, list(_images(data, at + head, end)))
        at = end


def _images(data: bytes | bytearray, at: int, stop: int) -> Iterator[Image]:
    while at < stop:
        if at + IMAGE.size > stop:
            raise ValueError(f"the image at {at} has no whole head before its fat binary ends at {stop}")
        kind, _, head, size, architecture = IMAGE.unpack_from(data, at)
        end = at + head + size
        if head < IMAGE.size or end > stop:
            raise ValueError(f"the image at {at} ends at {end}, behind its fat binary, which ends at {stop}")
        yield Image(kind, architecture, at, end)
        at = end


def cut(data: bytes, architecture: int) -> bytes:
    """A library with the images for one architecture only.

    Kept images move to the front of their fat binary, whose head then says that there are no others. A fat binary
    without any for that architecture keeps its smallest image: it stays well-formed for the driver, which cannot load
    it, as before.

    Parameters
    ----------
    data
        The library. Without fat binaries it is returned as it is.
    architecture
        Such as 90.

    Returns
    -------
    bytes
        As many as before.

    Raises
    ------
    ValueError
        The format is another one.
    """
    made = bytearray(data)
    for each in fat_binaries(data):
        if not each.images:
            continue
        kept = [image for image in each.images if (image.kind, image.architecture) == (CUBIN, architecture)]
        kept = kept or [min(each.images, key=lambda image: image.end - image.start)]
        body = b"".join(data[image.start : image.end] for image in kept)
        made[each.body : each.end] = body.ljust(each.end - each.body, b"\0")
        magic, version, head, _ = HEAD.unpack_from(data, each.start)
        HEAD.pack_into(made, each.start, magic, version, head, len(body))
    return bytes(made)


def architectures(data: bytes) -> dict[int, int]:
    """How many images a device could load as they are, by architecture."""
    found: dict[int, int] = {}
    for each in fat_binaries(data):
        for image in each.images:
            if image.kind == CUBIN:
                found[image.architecture] = found.get(image.architecture, 0) + 1
    return dict(sorted(found.items()))
