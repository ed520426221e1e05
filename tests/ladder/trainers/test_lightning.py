"""Lightning's own Trainer: right where all rows and windows are equal, and found out where they are not."""

import pytest

from tests.ladder.trainers.hooks import audited, words

pytest.importorskip("lightning")
loops = pytest.importorskip("tests.ladder.trainers.lightning_loops")
ANSWERS = {
    "EqualAndFullByLightning": "rounding",
    "ClippedByLightning": "rounding",
    "EqualByLightning": "short_window",  # Lightning#19987: divided by k, of which only the half is there
    "RaggedAndFullByLightning": "mean_of_means",  # Lightning#20350
    "RaggedByLightning": "mean_of_means+short_window",
}
pytestmark = [
    pytest.mark.filterwarnings(f"ignore:{words}")
    for words in (
        "The 'train_dataloader' does not have many workers",
        "`isinstance\\(treespec, LeafSpec\\)` is deprecated",
        "The number of training batches",
        "The `srun` command is available on your system",
    )
]


@pytest.mark.parametrize("name", ANSWERS)
def test_lightning_is_called_what_it_is(name: str) -> None:
    found = audited(getattr(loops, name)())
    assert found.answer == ANSWERS[name], words(found)


def test_the_last_micro_batch_inside_the_closure_is_part_of_the_gradient() -> None:
    """It is run while the optimizer is called: an audit that reads the gradient before that calls it lost."""
    found = audited(loops.EqualAndFullByLightning())
    gradient = next(rung for rung in found.rungs if rung.name == "gradient")
    assert gradient.value is not None and gradient.value < 1e-6 and not gradient.is_above
