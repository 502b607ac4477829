"""A small server: decode steps without an end, each of which may write past an eager buffer; SIGTERM ends it."""

import signal
import sys
import time

import torch
from overrun import Decode

signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
decode = Decode()
past_end = int(sys.argv[1])
print("serving", flush=True)
for _ in range(100_000):
    decode.step(past_end)
    torch.add(decode.out, 1)
    time.sleep(0.005)
