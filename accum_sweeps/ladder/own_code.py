"""What of a step or a trainer of the user's own can be seen at all, in words."""

from typing import TYPE_CHECKING

import numpy as np

from accum_sweeps.ladder.oracle import Tampering
from accum_sweeps.ladder.recorder import NotSeenError
from accum_sweeps.ladder.shares import shares

MOST_OWN_NOISE = 0.05  # relative, at k=1: a trainer may compute in bfloat16 whatever the settings say; more is another loss

if TYPE_CHECKING:
    from accum_sweeps.ladder.bench import Bench

NO_UPDATE = {
    "train": "train changes no weight: there is no update to look into",
    "step": "the class's own step makes no update by the optimizer that it is given: there is no gradient to look into",
}
ORDERED = 3  # windows that are searched for the micro-batches of a trainer's first update
FINE = 1e-12  # relative: less is the rounding of float64
SOME = 0.1  # of the largest share, or of what is to be explained


def own_obstacle(bench: "Bench") -> str:
    """Why nothing can be seen; "" = something can."""
    if bench.has_train and bench.is_quiet and bench.draws(Tampering(keeps_all=True)):
        return "the loss draws random numbers in eval mode as well: no two passes of a trainer can be compared"
    try:
        if bench.has_train and (obstacle := _order_obstacle(bench)):
            return obstacle
        if not bench.code(bench.spec).observe().updates:
            return NO_UPDATE["train" if bench.has_train else "step"]
    except NotSeenError as problem:
        return str(problem)
    return _loss_obstacle(bench)


def _loss_obstacle(bench: "Bench") -> str:
    """Whether the code computes something else than the class's ``loss``, also where it accumulates nothing."""
    if bench.own_rest <= MOST_OWN_NOISE:
        return ""
    words = f"at k=1, where nothing is accumulated, {bench.own_rest:.2g} of its gradient is not of the batch and the method loss"
    return f"{words}: it minimizes another loss, computes in lower precision, or does more to gradients than accumulate them"


def _order_obstacle(bench: "Bench") -> str:
    """Whether a trainer shuffles: its first update is then made from micro-batches of later windows, too."""
    first = bench.history(bench.spec, 1, ORDERED)[0]
    if not first.seen.updates or not first.shares.rest > bench.tolerance(first):
        return ""
    later = [member for number in range(2, ORDERED + 1) for member in bench.members(bench.spec, first.state, number)]
    found, k = shares(first.seen.gradient, [*first.members, *later]), len(first.members)
    is_used = np.abs(found.values) > SOME * np.nanmax(np.abs(found.values))
    if not found.is_told or found.residual > SOME * first.shares.rest or not is_used[k:].any() or is_used.sum() > k:
        return ""
    places = ", ".join(str(place + 1) for place in np.flatnonzero(is_used))
    words = f"train takes the micro-batches in another order than it is given them: its first update is made from number {places}"
    return f"{words}\n  Hand them over as they come, without shuffling."


def remarks(bench: "Bench") -> list[str]:
    """What a reader should know of how the user's own code was looked into."""
    quiet = "dropout is off: in which order a trainer draws its masks is its own affair"
    one = "every gradient is given the same length: a division that is missing, wrong or made twice is not observable"
    trained = "the trainer is called once for several windows; a resume is not looked into"
    wide = f"parts of it are not float64: at k=1, where nothing is accumulated, {bench.own_noise:.2g} of its gradient is rounding"
    rates = "its learning rates are not those of the scheduler that it is given, and are not looked into"
    if not bench.has_settings_optimizer:
        rates = "the optimizer is the class's own: its learning rates are not looked into"
    told = (
        (bench.has_train, trained),
        (bench.is_quiet, quiet),
        (bench.hides_length, one),
        (bench.own_noise > FINE, wide),
        (not bench.follows_schedule, rates),
    )
    return [words for is_so, words in told if is_so]
