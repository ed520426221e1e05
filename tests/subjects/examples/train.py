"""A recurrent network that reads Python source code byte by byte; run as: python train.py SPEC.json"""

import inspect
import json
import sys
import typing
from pathlib import Path

import torch
from torch import nn

spec = json.loads(Path(sys.argv[1]).read_text())
checkpoint = Path(spec["checkpoint_dir"]) / "last.pt"
text = torch.tensor(list(inspect.getsource(typing).encode()))
rows = text.unfold(0, 33, 1)  # shape (rows, 33): 32 bytes and, one further, the bytes to guess
train, held_out = rows[:-2048], rows[-2048::16]


class Reader(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.embedding, self.cell, self.head = nn.Embedding(256, 16), nn.GRU(16, width, batch_first=True), nn.Linear(width, 256)

    def forward(self, rows):
        guesses = self.head(self.cell(self.embedding(rows[:, :-1]))[0])
        losses = nn.functional.cross_entropy(guesses.flatten(0, 1), rows[:, 1:].flatten(), reduction="none")
        return losses.double().mean()  # a float32 mean would hide small differences


torch.manual_seed(spec["seed_init"])
model = Reader(spec["subject"]["args"].get("width", 32))
optimizer = torch.optim.AdamW(model.parameters(), lr=spec["optimizer"]["lr"])
done = 0
if checkpoint.exists():
    state = torch.load(checkpoint)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    done = state["step"]

with Path(spec["metrics_path"]).open("a") as metrics:

    def log(step, key, value):
        print(json.dumps({"step": step, "key": key, "value": value}), file=metrics, flush=True)

    for step in range(done + 1, spec["steps"] + 1):
        generator = torch.Generator().manual_seed(1_000_003 * spec["seed_data"] + step)
        batch = train[torch.randint(len(train), (spec["global_batch"],), generator=generator)]
        optimizer.zero_grad()
        total = 0.0
        for micro_batch in batch.chunk(spec["accum"]):
            loss = model(micro_batch) / spec["accum"]
            loss.backward()
            total += loss.item()
        optimizer.step()
        log(step, "train_loss", total)
        if step % 10 == 0 and step < spec["steps"]:
            beside = checkpoint.with_suffix(".part")
            torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, beside)
            beside.replace(checkpoint)
            log(step, "checkpoint", 1)

    with torch.no_grad():
        log(spec["steps"], "eval_loss", model(held_out).item())
