"""Finds its bug, then dies: dies.py exception|SIGKILL|SIGTERM|_exit|exit3."""

import os
import signal
import sys

from overrun import run

run(8)
how = sys.argv[1]
if how == "exception":
    raise ValueError("the program's own")
if how == "_exit":
    os._exit(5)
if how == "exit3":
    sys.exit(3)
os.kill(os.getpid(), getattr(signal, how))
signal.pause()
