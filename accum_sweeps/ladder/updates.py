"""An optimizer's updates seen from outside: the whole gradient just before it is used, whoever calls the optimizer and however."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

# Powers of two are exact. No limit on a gradient's length that is in use is reached by the one, every one by the other.
SHRINK, STRETCH = 2.0**-40, 2.0**20


@contextlib.contextmanager
def watched(optimizer: torch.optim.Optimizer, before: Callable[[], object], after: Callable[[], None] | None = None) -> Iterator[None]:
    """Meanwhile ``before()`` is called when an update's gradient is complete, ``after()`` when the weights have moved.

    Some trainers run their last micro-batch inside the optimizer's closure: there the gradient is complete when the closure returns,
    not when the optimizer is called.
    """

    def arrive(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            before()
            return None

        def completed() -> Any:
            value = closure()
            before()
            return value

        return (args[0], completed, *args[2:]) if len(args) > 1 else args, kwargs if len(args) > 1 else kwargs | {"closure": completed}

    def leave(*_: object) -> None:
        if after is not None:
            after()

    handles = [optimizer.register_step_pre_hook(arrive), optimizer.register_step_post_hook(leave)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class Scaled:
    """Every gradient that a backward pass brings is ``factor`` times as long meanwhile; ``passes`` counts backward passes.

    :meth:`restore` gives the gradients their own length, for the optimizer; :meth:`scale` takes it again, for what is left of them.
    In float16, where small numbers vanish, nothing is scaled.
    """

    def __init__(self, parameters: Sequence[Tensor], factor: float) -> None:
        self._parameters = parameters
        self._factor = 1.0 if any(p.dtype == torch.float16 for p in parameters) else factor
        self._calls = [0] * len(parameters)

    @property
    def passes(self) -> int:
        """Backward passes so far, of the parameter that had most of them."""
        return max(self._calls, default=0)

    def restore(self) -> None:
        """Give the gradients their own length."""
        self._multiply(1 / self._factor)

    def scale(self) -> None:
        """Take it again."""
        self._multiply(self._factor)

    def _multiply(self, factor: float) -> None:
        if factor == 1:
            return
        with torch.no_grad():
            for p in self._parameters:
                if p.grad is not None:
                    p.grad.mul_(factor)

    def _hook(self, place: int) -> Callable[[Tensor], Tensor]:
        def arrived(gradient: Tensor) -> Tensor:
            self._calls[place] += 1
            return gradient if self._factor == 1 else gradient * self._factor

        return arrived

    def __enter__(self) -> "Scaled":
        self._handles = [p.register_hook(self._hook(place)) for place, p in enumerate(self._parameters)]  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()
