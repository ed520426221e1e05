"""The samples that a user's ``batch`` returns: counted, compared, cut into micro-batches, moved to a device.

A list holds samples; a tensor or array counts them in its first dimension; a tuple or dict holds several such columns.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from accum_sweeps.training.task import Rows


def count(samples: Any) -> int:
    """Number of samples; 0 when there is no telling or the columns disagree."""
    if isinstance(samples, list):
        return len(samples)
    if isinstance(samples, Tensor | np.ndarray):
        return len(samples) if samples.ndim else 0
    columns = samples.values() if isinstance(samples, dict) else samples if isinstance(samples, tuple) else ()
    counts = {count(column) for column in columns}
    return counts.pop() if len(counts) == 1 else 0


def selected(samples: Any, rows: Rows) -> Any:
    """The samples with these row numbers, in this order, in the same form."""
    if isinstance(samples, list):
        return [samples[row] for row in rows]
    if isinstance(samples, dict | tuple):
        return _rebuilt(samples, lambda column: selected(column, rows))
    return samples[torch.from_numpy(rows).to(samples.device)] if isinstance(samples, Tensor) else samples[rows]


def placed(samples: Any, device: str, dtype: torch.dtype) -> Any:
    """All tensors and arrays in ``samples`` as tensors on ``device``; floating-point ones in ``dtype``."""
    if isinstance(samples, dict | tuple | list):
        return _rebuilt(samples, lambda column: placed(column, device, dtype))
    if isinstance(samples, Tensor | np.ndarray):
        tensor = torch.as_tensor(samples)
        return tensor.to(device, dtype if tensor.is_floating_point() else tensor.dtype)
    return samples


def are_equal(first: Any, second: Any) -> bool:
    """Whether all tensors, arrays, numbers and texts in both are the same; other objects are not compared."""
    if type(first) is not type(second):
        return False
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(are_equal(value, second[key]) for key, value in first.items())
    if isinstance(first, tuple | list):
        return len(first) == len(second) and all(map(are_equal, first, second))
    if isinstance(first, Tensor):
        return first.shape == second.shape and torch.allclose(first, second, rtol=0, atol=0, equal_nan=True)
    if isinstance(first, np.ndarray):
        return np.array_equal(first, second, equal_nan=first.dtype.kind in "fc")
    return bool(first == second) if isinstance(first, bool | int | float | str | bytes) else True


def _rebuilt(group: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(group, dict):
        return {key: change(value) for key, value in group.items()}
    changed = [change(value) for value in group]
    make = getattr(group, "_make", type(group))  # a named tuple is made from its fields
    return make(changed)
