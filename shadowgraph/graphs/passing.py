"""Whether replays pass unseen, with what prepares them: in most of a nap they do.

Who hooks something asks here before anything else, so that what passes costs a look at one attribute.
"""

from __future__ import annotations

on = False


def let(pass_: bool) -> None:
    """Let replays and launches pass from here on, in all threads, or have them told again."""
    global on
    on = pass_
