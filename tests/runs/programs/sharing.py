"""Tensors handed between processes, with every allocation guarded: sharing.py queue|pool|loader."""

import sys

import torch
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, TensorDataset


def double(tensor: torch.Tensor) -> torch.Tensor:
    return tensor * 2


def serve(inbox: mp.Queue, outbox: mp.Queue) -> None:
    shared = inbox.get()
    shared.add_(1)
    outbox.put(shared * 10)
    inbox.get()


def by_queue(how: str) -> None:
    context = mp.get_context(how)
    inbox, outbox = context.Queue(), context.Queue()
    child = context.Process(target=serve, args=(inbox, outbox))
    child.start()
    x = torch.arange(4.0)
    inbox.put(x)
    assert outbox.get(timeout=120).tolist() == [10, 20, 30, 40]
    assert x.tolist() == [1, 2, 3, 4]  # one memory in both
    inbox.put(None)
    child.join()
    assert child.exitcode == 0


def main(what: str) -> None:
    if what == "queue":
        by_queue("spawn")
        by_queue("fork")
    elif what == "pool":
        with mp.get_context("spawn").Pool(2) as pool:
            assert [t.tolist() for t in pool.map(double, [torch.ones(3), torch.zeros(2)])] == [[2] * 3, [0] * 2]
    else:
        data = TensorDataset(torch.arange(32.0).view(16, 2), torch.arange(16))
        for workers in (0, 2):
            batches = list(DataLoader(data, batch_size=4, num_workers=workers))
            assert torch.equal(torch.cat([x for x, _ in batches]), torch.arange(32.0).view(16, 2))
    print("shared")


if __name__ == "__main__":
    main(sys.argv[1])
