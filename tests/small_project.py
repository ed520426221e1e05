"""A project of a user's with a class, a program and a module that both import, for tests that edit it."""

import sys
from pathlib import Path

HOOK = """
import time
import torch
from helper import FACTOR


class Slow:
    def build(self, config, seeds):
        torch.manual_seed(seeds.init)
        return torch.nn.Linear(3, 1)

    def batch(self, step, seed):
        return torch.randn(8, 4, generator=torch.Generator().manual_seed(1000 * seed + step))

    def loss(self, model, samples):
        time.sleep(0.02)
        return FACTOR * (model(samples[:, :3]) - samples[:, 3:]).square().sum(), len(samples)
"""
PROGRAM = """
import json
import sys
import time
from helper import FACTOR

spec = json.load(open(sys.argv[1]))
with open(spec["metrics_path"], "a") as file:
    for step in range(1, spec["steps"] + 1):
        time.sleep(0.05)
        file.write(json.dumps({"step": step, "key": "train_loss", "value": FACTOR * step}) + "\\n")
    file.write(json.dumps({"step": spec["steps"], "key": "eval_loss", "value": FACTOR}) + "\\n")
"""
SUBJECTS = {
    "python": ("subject=python", "subject.target=hook:Slow"),
    "command": ("subject=command", f"subject.argv=[{sys.executable},program.py,'{{spec}}']"),
}


def project(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "hook.py").write_text(HOOK)
    (folder / "program.py").write_text(PROGRAM)
    (folder / "helper.py").write_text("FACTOR = 1.0\n")
