"""An exponential moving average of the weights, by torch's own AveragedModel.

It is kept in the dtype of the weights: in bfloat16 a decay of .999 rounds most of its changes away. Buffers, such as
BatchNorm's running statistics, are those of the newest weights.
"""

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


def moving_average(model: torch.nn.Module, decay: float | None) -> AveragedModel | None:
    """average <- decay * average + (1 - decay) * weights at each update, beginning with the first update's weights; None without decay."""
    if decay is None:
        return None
    return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))  # type: ignore[no-untyped-call]
