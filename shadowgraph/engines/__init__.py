"""Engines: canary fills, guard checks, shadow copies and reads, on the host or a CUDA device, behind one protocol."""
