"""Format of the launch log: sizes, offsets, structs, kinds of rows and of texts. Little endian.

- `HEADER` in the first `HEADER_NBYTES` bytes: magic, version, numbers and sizes, process id; at `LATEST_AT` the number
  of the row written last, as far as its writer has come to note it;
- `ROWS` rows of `ROW` bytes, a ring: the addresses and sizes of up to `POINTERS` pointers, then the fields of `TAIL`; a
  row's number is its last field and is written last;
- the text table of `TABLE` bytes, only ever appended to; an entry's head is written last;
- `SLOTS` slots of `SLOT` bytes, a ring, for texts of batches and plans. Rows may share one and differ in their
  numbers, up to `NUMBERS` in the place of the other pointers. These stand for the `OPEN` characters of the text: one
  each, and all that are left, with commas between them, for the last;
- `OPERATORS` rows of the same size, a ring of its own for operators that were noted in C++: their names are in the text
  table, the first two words of the grid are the number of the latest row before them, and the stream is torch's number.
"""

from __future__ import annotations

import struct
from enum import IntEnum

MAGIC, VERSION = b"SGLAUNCH", 3
HEADER = struct.Struct("<8sIIIIIIQ")  # magic, version, rows, row, table, slots, slot, pid
HEADER_NBYTES, LATEST_AT = 4096, 64
ROWS, ROW, POINTERS = 8192, 144, 6
NUMBERS, OPEN = 10, "\0"
TABLE = 512 << 10
SLOTS, SLOT = 128, 4096
ROWS_AT = HEADER_NBYTES
TABLE_AT = ROWS_AT + ROWS * ROW
SLOTS_AT = TABLE_AT + TABLE
OPERATORS, OPERATORS_AT = 2048, SLOTS_AT + SLOTS * SLOT
NBYTES = OPERATORS_AT + OPERATORS * ROW

# Stream (or time, of an event), thread, kernel, site, grid, kind (and the number of pointers << 8), row number. Events
# have graph and replay in the place of the first pointer, the slot of their text in that of the kernel, and in that of
# the site how many numbers follow the replay.
TAIL = struct.Struct("<QQIIIIIIQ")
EVENT_ROW = struct.Struct("<QQ80xdQIIIIIIQ")  # the whole row
ENTRY = struct.Struct("<IIQ")  # kind and length of a text, its key; the first two are not 0 in a complete entry
SLOT_HEAD = struct.Struct("<QI4x")
TAIL_AT = ROW - TAIL.size
LONGEST_TEXT = 480  # bytes of a text in the table


class RowKind(IntEnum):
    """What a row notes."""

    LAUNCH = 1
    REPLAY_BEGINS = 2
    REPLAY_ENDED = 3
    CAPTURE_BEGINS = 4
    CAPTURE_ENDED = 5
    BATCH = 6
    PLAN = 7
    PHASE = 8
    REPLAY_FAILED = 9


class TextKind(IntEnum):
    """What an entry of the text table names; its key is 0, the line of a site, the serial of a graph or the address of
    a buffer."""

    KERNEL = 1
    SITE = 2
    GRAPH = 3
    BUFFER = 4
