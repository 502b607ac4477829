"""Capture and replay of `torch.cuda.CUDAGraph`, its pools, and its nodes as the driver knows them."""
