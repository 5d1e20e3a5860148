"""Training steps of others, for scripts/bench_peers.py, which starts this file with a Python that has torch.

    peer_steps.py DATA.npz THREADS

DATA holds the very batches of our side. Prints `READY [names]`, then answers each line `NAME<tab>COUNT` with `SECONDS wall cpu` a
step. It uses nothing of Phoenix: its Python needs torch, numpy and fbgemm-gpu alone.
"""

import json
import sys
import time
from collections.abc import Callable
from itertools import cycle

Steps = dict[str, Callable[[], None]]


def serve(steps: Steps) -> None:
    """Time what stdin asks for, until it ends."""
    print("READY " + json.dumps(list(steps)), flush=True)
    for line in sys.stdin:
        name, count = line.rstrip("\n").rsplit("\t", 1)
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(int(count)):
            steps[name]()
        wall, cpu = (time.perf_counter() - wall) / int(count), (time.process_time() - cpu) / int(count)
        print(f"SECONDS {wall:.9f} {cpu:.9f}", flush=True)


def embedding_steps(torch, data) -> Steps:
    """One table of the data's rows: fbgemm's exact row-wise Adagrad, torch's sparse Adagrad, and the loss without a table."""
    ids = cycle([torch.from_numpy(batch).long() for batch in data["ids"]])
    weights, rows = torch.from_numpy(data["weights"]), int(data["num_rows"])
    count, dim = weights.shape

    def loss_of(embedded):
        return ((embedded * weights).sum(-1) ** 2).mean()

    fused, offsets = fused_table(rows, dim), torch.arange(count + 1)  # bags of one row

    def fbgemm():
        loss_of(fused(next(ids), offsets)).backward()

    plain = torch.nn.Embedding(rows, dim, sparse=True, _weight=torch.full((rows, dim), 0.01))
    adagrad = torch.optim.Adagrad(plain.parameters(), 0.01)

    def torch_sparse():
        adagrad.zero_grad()
        loss_of(plain(next(ids))).backward()
        adagrad.step()

    fixed = torch.full((count, dim), 0.01, requires_grad=True)
    return {"fbgemm": fbgemm, "torch sparse Adagrad": torch_sparse, "loss": lambda: loss_of(fixed).backward()}


def fused_table(rows: int, dim: int):
    """fbgemm's table with row-wise Adagrad inside its backward pass, rows of a bag summed."""
    from fbgemm_gpu.split_embedding_configs import EmbOptimType  # pyright: ignore[reportMissingImports]
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import (  # pyright: ignore[reportMissingImports]
        EmbeddingLocation,
        PoolingMode,
    )
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (  # pyright: ignore[reportMissingImports]
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    return SplitTableBatchedEmbeddingBagsCodegen(
        [(rows, dim, EmbeddingLocation.HOST, ComputeDevice.CPU)],
        optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
        learning_rate=0.05,
        eps=1e-8,
        pooling_mode=PoolingMode.SUM,
    )


def ranker_steps(torch, data) -> Steps:
    """The ranker of the same sizes on the same batches, eager and compiled; fbgemm holds its rows, AdamW is the fused one."""
    batches = []
    for ids, labels, lengths in zip(data["ids"], data["labels"], data["lengths"], strict=True):
        batches.append((torch.from_numpy(ids).long(), torch.from_numpy(labels), torch.from_numpy(lengths).long()))
    places, bag = batches[0][0].shape[1:]
    rows_of_batch, candidates, actions = batches[0][1].shape
    width, layers, heads, rows = (int(data[name]) for name in ("width", "layers", "heads", "num_rows"))

    def step_of(compiled: bool) -> Callable[[], None]:
        model = ranker(torch, places, candidates, actions, width, layers, heads)
        table, upcoming = fused_table(rows, width), cycle(batches)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3, betas=(0.9, 0.99), weight_decay=0.0, fused=True)
        offsets = torch.arange(rows_of_batch * places + 1) * bag

        def loss_of(embedded, labels, lengths):
            return torch.nn.functional.binary_cross_entropy_with_logits(model(embedded, lengths), labels)

        forward = torch.compile(loss_of) if compiled else loss_of

        def step():
            ids, labels, lengths = next(upcoming)
            optimizer.zero_grad(set_to_none=True)
            embedded = table(ids.reshape(-1), offsets).view(rows_of_batch, places, width)
            forward(embedded, labels, lengths).backward()
            optimizer.step()

        return step

    return {"torch eager": step_of(False), "torch.compile": step_of(True)}


def ranker(torch, places: int, candidates: int, actions: int, width: int, layers: int, heads: int):
    """(embedded tokens [B, places, width], history lengths [B]) -> logits [B, candidates, actions]: a module of one user token, a
    history and candidates, which see the first two and themselves."""
    context = places - candidates
    functional, nn = torch.nn.functional, torch.nn

    def rotated(x, by, since=0):
        first, second = x.chunk(2, -1)
        cos, sin = (turn[:, :, since:] for turn in by)
        return torch.cat([first * cos - second * sin, first * sin + second * cos], -1)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.second_norm = nn.RMSNorm(width, eps=0.01), nn.RMSNorm(width, eps=0.01)
            self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width, bias=False)

        def heads_of(self, x):
            return x.view(*x.shape[:2], heads, width // heads).transpose(1, 2)

        def forward(self, x, by, mask, first=0):
            normed = self.norm(x)
            query = rotated(self.heads_of(self.query(normed[:, first:])), by, first)
            key, value = rotated(self.heads_of(self.key(normed)), by), self.heads_of(self.value(normed))
            found = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask[:, :, first:])
            x = x[:, first:] + self.out(found.transpose(1, 2).reshape(x.shape[0], -1, width))
            return x + self.down(functional.gelu(self.up(self.second_norm(x)), approximate="tanh"))

    class Ranker(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(Block() for _ in range(layers))
            self.norm, self.head = nn.RMSNorm(width, eps=0.01), nn.Linear(width, actions)
            self.interaction = nn.Parameter(torch.ones(width, actions))
            self.kinds = nn.Parameter(torch.zeros(2, width))
            half = width // heads // 2
            self.register_buffer("frequencies", 10_000.0 ** (-torch.arange(half) / half))

        def forward(self, tokens, lengths):
            user, history, asked = tokens[:, :1], tokens[:, 1:context], tokens[:, context:]
            event = torch.arange(context - 1)
            there = torch.cat([torch.ones(len(lengths), 1, dtype=torch.bool), event < lengths[:, None]], 1)
            position = torch.cat(
                [torch.ones(len(lengths), 1), event - lengths[:, None], torch.zeros(len(lengths), candidates)], 1
            )
            seen = torch.cat([there, torch.zeros(len(lengths), candidates, dtype=torch.bool)], 1)
            oneself = torch.zeros(places, places, dtype=torch.bool)
            oneself[context:, context:] = torch.eye(candidates, dtype=torch.bool)
            mask = (seen[:, None] | oneself)[:, None]
            angles = (position[:, :, None] * self.frequencies)[:, None]
            x = torch.cat([user, history + self.kinds[0], asked + self.kinds[1]], 1)
            by = angles.cos(), angles.sin()  # once for all layers, as ours
            for block in self.blocks[:-1]:
                x = block(x, by, mask)
            x = self.blocks[-1](x, by, mask, context)
            both = user + asked
            pairs = 0.5 * (both**2 - (user**2 + asked**2))
            return self.head(self.norm(x)) + pairs @ self.interaction

    return Ranker()


def main() -> None:
    """Build the steps that the data asks for, and serve them."""
    import numpy as np
    import torch  # pyright: ignore[reportMissingImports]

    path, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    data = np.load(path)
    serve((ranker_steps if "labels" in data else embedding_steps)(torch, data))


if __name__ == "__main__":
    main()
