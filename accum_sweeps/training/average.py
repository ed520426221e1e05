"""An exponential moving average of the weights, by torch's own AveragedModel."""

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


def moving_average(model: torch.nn.Module, decay: float | None) -> AveragedModel | None:
    """average <- decay * average + (1 - decay) * weights at each update, beginning with the first update's weights; None without decay."""
    if decay is None:
        return None
    return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))  # type: ignore[no-untyped-call]
