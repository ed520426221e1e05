"""subject=clip through the real command: a sweep with both ways to accumulate, and the user's own images and weights."""

from pathlib import Path

from PIL import Image

import accum_sweeps as acs
from accum_sweeps.training.models import dual_encoder
from tests.contrastive import encoder
from tests.product.commands import Place

SMALL = ("subject=clip", "steps=2", "eval_every=0", "global_batch=8", "tracking=none", "launcher=inline", "dtype=fp64")


def test_a_sweep_over_both_accumulations_ends_with_the_usual_tables(tmp_path: Path) -> None:
    place = Place(tmp_path)
    output = place.type(*SMALL, "axes={subject.accumulation:[plain,cached],accum:[1,2],seed:{range:2}}")
    assert "10 finished" in output and "clip-clip_tiny adamw fp64 accumulation=cached" in output and "results.parquet" in output
    table = acs.load(place.root.path)
    ladders = acs.ladders(table).set_index("setup")["detail"]
    assert ladders[ladders.index.str.contains("plain")].tolist() == ["in_batch_negatives"]
    table = table[table["measure"] == "training"]
    assert len(table) == 8 and set(table["status"]) == {"finished"} and set(table["tokens"]) == {16}
    losses = table.set_index(["subject.accumulation", "seed", "accum"])["eval_loss_final"].unstack()
    difference = (losses[2] - losses[1]).abs()
    assert difference["cached"].max() < 1e-9  # rounding in float64, after an AdamW step
    assert difference["plain"].min() > 1e-6
    assert losses[1]["plain"].equals(losses[1]["cached"])  # one micro-batch: nothing to cache


def test_own_images_and_weights_are_used_and_mistakes_refused_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    for number in range(12):
        Image.new("RGB", (20, 20), (20 * number, 0, 0)).save(tmp_path / "images" / f"{number}.png")
    lines = [f"{number}.png\tred of shade {number}\n" for number in range(12)]
    (tmp_path / "captions.tsv").write_text("".join(lines))
    dual_encoder.build(encoder(), 9).save_pretrained(tmp_path / "weights")
    place, own = Place(tmp_path), ["data=image_text", "data.path=images", "data.captions=captions.tsv", "model.weights=weights"]
    own += [*SMALL, "data.eval_rows=4", "optimizer.lr=0", "axes={seed:[0,1]}"]
    assert "2 finished" in place.type(*own)
    assert acs.load(place.root.path)["eval_loss_final"].nunique() == 1  # the same weights whatever the seed, and none was moved
    (tmp_path / "captions.tsv").write_text("".join(lines) + "12.png\tmissing\n")
    assert "captions.tsv': line 13: the image" in place.type(*own, "action=plan", code=2)
