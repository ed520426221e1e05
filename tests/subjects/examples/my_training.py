"""A network that guesses the next byte of Python source code from the eight bytes before it."""

import argparse
import inspect

import torch
from torch import nn

TEXT = torch.tensor(list(inspect.getsource(argparse).encode()))
WINDOWS = TEXT.unfold(0, 9, 1)  # shape (windows, 9): eight bytes and the one that follows
TRAIN, HELD_OUT = WINDOWS[:-4096], WINDOWS[-4096:]


class Setup:
    def __init__(self, width=64):
        self.width = width

    def build(self, config, seeds):
        self.rows = config["global_batch"]
        return nn.Sequential(nn.Embedding(256, 16), nn.Flatten(), nn.Linear(128, self.width), nn.ReLU(), nn.Linear(self.width, 256))

    def batch(self, step, seed):
        generator = torch.Generator().manual_seed(1_000_003 * seed + step)
        return TRAIN[torch.randint(len(TRAIN), (self.rows,), generator=generator)]

    def loss(self, model, samples):
        losses = nn.functional.cross_entropy(model(samples[:, :8]), samples[:, 8], reduction="none")
        return losses.double().sum(), len(losses)  # a float32 sum would hide small differences

    def evaluate(self, model):
        return self.loss(model, HELD_OUT)
