"""SG111, host write in flight: pinned memory was rewritten before an asynchronous copy from it had run."""

CODE = "SG111"
