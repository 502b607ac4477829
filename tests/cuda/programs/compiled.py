"""Programs compiled with ``reduce-overhead`` and a memory pool of the program's own; prints what they make."""

from __future__ import annotations

import hashlib

import torch


def shown(*tensors: torch.Tensor) -> str:
    return hashlib.sha256(b"".join(t.detach().cpu().contiguous().numpy().tobytes() for t in tensors)).hexdigest()[:16]


def infer() -> str:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)).cuda().eval()
    compiled = torch.compile(model, mode="reduce-overhead")
    words = []
    with torch.no_grad():
        for at in range(6):
            torch.compiler.cudagraph_mark_step_begin()
            words.append(shown(compiled(torch.full((4, 64), float(at), device="cuda"))))
    return " ".join(words)


def extern() -> str:
    """Operators that inductor calls from its code, which allocate in the pool of its trees."""

    @torch.compile(mode="reduce-overhead")
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.sort(x @ x, dim=0)[0].cumsum(0) + torch.zeros_like(x)

    words = []
    for at in range(6):
        torch.compiler.cudagraph_mark_step_begin()
        words.append(shown(program(torch.eye(32, device="cuda") * at)))
    return " ".join(words)


def train() -> str:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)).cuda()
    compiled, optimizer = torch.compile(model, mode="reduce-overhead"), torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(6):
        torch.compiler.cudagraph_mark_step_begin()
        optimizer.zero_grad()
        compiled(torch.ones(8, 32, device="cuda")).square().mean().backward()
        optimizer.step()
    return shown(*model.parameters())


def pooled() -> str:
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        inside = torch.zeros(1 << 20, dtype=torch.uint8, device="cuda")
    outside = torch.zeros(16, device="cuda")
    where = [(s["address"], s["address"] + s["total_size"]) for s in torch.cuda.memory_snapshot(pool.id)]
    held = [any(a <= t.data_ptr() < b for a, b in where) for t in (inside, outside)]
    return f"in the pool: {held}"


if __name__ == "__main__":
    for each in (infer, extern, train, pooled):
        print(each.__name__, each())
