"""The CUDA backend: captures and replays of `torch.cuda.CUDAGraph`, its memory pools, and its nodes from the driver."""
