"""Initial weights of the decoder: a function of seed, tensor name and shape alone, whatever else the model has."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from accum_sweeps.plan.parts import Decoder as DecoderPart
from accum_sweeps.training import seeding

CUT = 3.0  # standard deviations, where init=truncated cuts the normal distribution off


@torch.no_grad()
def initialize(model: nn.Module, part: DecoderPart, seed: int) -> None:
    """Fill the decoder's parameters (float32, on the CPU) from the stream ``init``, and its running statistics.

    Matrices have standard deviation 1/sqrt(inputs), embeddings 1/sqrt(width); gains are 1, biases 0. Matrices that write
    into the residual stream are divided once more: with ``init=normal`` by sqrt(2 layers), with ``truncated`` by
    sqrt(2 (i + 1)) in block i = 0, 1, ..., as open_lm does (Zhang et al. 2019); ``truncated`` draws nothing beyond CUT.
    """
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.reset_running_stats()
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            parameter.fill_(0.0 if name.endswith("bias") else 1.0)
            continue
        scale = parameter.shape[1] ** -0.5
        if name.endswith("output.weight"):
            scale *= (2 * _depth(name, part)) ** -0.5
        drawn = _drawn(part.init, seeding.generator("init", seed, name), tuple(parameter.shape))
        drawn *= scale
        parameter.copy_(torch.from_numpy(drawn))


def _depth(name: str, part: DecoderPart) -> int:
    """How many blocks a matrix that writes into the residual stream is scaled for; ``name`` is blocks.<number>.<...>."""
    return int(name.split(".")[1]) + 1 if part.init == "truncated" else part.layers


def _drawn(init: str, rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
    drawn = rng.standard_normal(shape)
    if init == "truncated":
        flat = drawn.reshape(-1)
        outside = np.flatnonzero(np.abs(flat) > CUT)
        while outside.size:
            flat[outside] = rng.standard_normal(outside.size)
            outside = outside[np.abs(flat[outside]) > CUT]
    return drawn
