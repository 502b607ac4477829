"""Small ELF files with a section of fat binaries, as a compiler for CUDA lays them out."""

from __future__ import annotations

import struct

PTX, CUBIN = 1, 2


def image(kind: int, architecture: int, code: bytes) -> bytes:
    """One image: a head of 64 bytes, and code that fills up to eight."""
    payload = code.ljust(-(-len(code) // 8) * 8, b"\0")
    head = struct.pack("<HHIQIIHHI", kind, 1, 64, len(payload), 0, 64, 0, 0, architecture)
    return head.ljust(64, b"\x11") + payload


def fat_binary(*images: bytes) -> bytes:
    """Images behind their common head."""
    body = b"".join(images)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def library(*fat_binaries: bytes, section: bytes = b".nv_fatbin") -> bytes:
    """An ELF file with code, a section of these, eight zeros between two, and the table of sections behind them."""
    names = b"\0.shstrtab\0" + section + b"\0"
    text = b"machine code"
    held = bytes(8).join(fat_binaries)
    start = 64 + len(text)
    table = start + len(held) + len(names)

    def head(name: int, offset: int, size: int) -> bytes:
        return struct.pack("<IIQQQQ", name, 1, 0, 0, offset, size).ljust(64, b"\0")

    heads = head(0, 0, 0) + head(1, start + len(held), len(names)) + head(11, start, len(held))
    elf = b"\x7fELF\x02\x01\x01".ljust(40, b"\0") + struct.pack("<Q", table)
    elf = elf.ljust(58, b"\0") + struct.pack("<HHH", 64, 3, 1)
    return elf + text + held + names + heads
