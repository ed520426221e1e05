"""Components of variance from tables: what counts, what is said where there are none, and nested seeds."""

import numpy as np
import pandas as pd
import pytest

from accum_sweeps.analysis.component_tables import SetupComponents, components
from accum_sweeps.analysis.components import seed_components
from tests.analysis.roots import table

DRAWN = np.random.default_rng(7)
Y = {k: (2 + 0.1 * DRAWN.standard_normal(6)).tolist() for k in (1, 2, 4)}


def only(frame: pd.DataFrame, **options: str) -> SetupComponents:
    [found] = components(frame, **options)
    return found


def test_a_balanced_table_gives_the_closed_forms_of_its_values() -> None:
    found = only(table(Y))
    seed, k = np.indices((6, 3))
    expected = seed_components(np.array(list(Y.values())).T.ravel(), seed.ravel(), k.ravel())
    assert found.found is not None and (found.found.seed, found.found.seed_k, found.found.total) == (
        *(expected.seed, expected.seed_k, expected.total),
    )
    frame = found.to_frame().set_index("component")
    assert list(frame.index) == ["seed", "seed:k", "total", "seed:k / seed"] and found.reruns == (0, 0) and found.nested is None
    assert frame["share"].sum() == pytest.approx(1)
    assert frame["unit"].to_dict()["seed"] == "(nats)^2" and frame["unit"].to_dict()["seed:k / seed"] == "1"


def test_controls_and_unfinished_runs_are_no_values() -> None:
    more = pd.concat([table(Y, control="none"), table({2: [9.0] * 6}, control="regroup"), table({4: ["running"]}, control="none")])
    pd.testing.assert_frame_equal(only(more).to_frame(), only(table(Y)).to_frame())


def test_reruns_of_some_seeds_that_repeat_every_bit_leave_the_closed_forms_as_they_are() -> None:
    again = pd.concat([table(Y, replicate=0), table({k: y[:2] for k, y in Y.items()}, replicate=1)])
    found = only(again)
    assert found.reruns == (6, 6) and found.found is not None and found.found.method == "closed forms"
    frame = found.to_frame().set_index("component")
    assert frame["estimate"].to_dict()["rerun"] == 0
    pd.testing.assert_frame_equal(frame.drop("rerun"), only(table(Y)).to_frame().set_index("component"))


def test_reruns_that_differ_are_a_component_of_their_own() -> None:
    again = pd.concat([table(Y, replicate=0), table({k: (np.array(y) + 0.03).tolist() for k, y in Y.items()}, replicate=1)])
    found = only(again)
    assert found.reruns == (18, 0) and found.found is not None and found.found.rerun is not None
    assert found.found.rerun.estimate == pytest.approx(0.03**2 / 2)


def test_a_perplexity_has_the_components_of_its_logarithm() -> None:
    frame = table(Y)
    exponential = frame.assign(eval_perplexity_final=np.exp(frame["eval_loss_final"]))
    ours = only(exponential, response="eval_perplexity_final").to_frame()
    np.testing.assert_allclose(ours["estimate"], only(frame).to_frame()["estimate"], rtol=1e-10)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({1: [1.0, 2.0], 2: ["failed", "failed"]}, "2 seeds and 1 factor have a finite value: two of each are needed"),
        ({1: [1.0], 2: [2.0]}, "1 seed and 2 factors"),
        ({1: ["diverged"] * 3, 2: ["diverged"] * 3}, "0 seeds and 0 factors"),
    ],
)
def test_where_there_are_no_components_it_is_said_why(values: dict[int, list[float | str]], words: str) -> None:
    found = only(table(values))
    assert found.found is None and found.why_not.startswith(words) and found.to_frame().empty


def test_nested_initial_weights_split_the_variance_over_seeds() -> None:
    """Three data seeds of two initial weights each: by hand from the means and the differences within data seeds."""
    values = np.array([[1.0, 1.2], [2.0, 2.6], [1.4, 1.4]])
    frames = [
        table({1: [values[d, i]], 2: [values[d, i]]}, seed=2 * d + i, seed_init=2 * d + i, seed_dropout=2 * d + i, seed_data=d)
        for d in range(3)
        for i in range(2)
    ]
    found = only(pd.concat(frames))
    within = float(np.mean(np.var(values, axis=1, ddof=1)))
    between = float(np.var(values.mean(axis=1), ddof=1) - within / 2)
    assert found.nested is not None
    assert (found.nested.init.estimate, found.nested.data.estimate) == (pytest.approx(within), pytest.approx(between))
    assert found.to_frame()["component"].tolist()[-2:] == ["data seed", "init seed in data seed"]


def test_two_setups_keep_the_order_of_the_table() -> None:
    frame = components(pd.concat([table(Y, setup="z"), table(Y, setup="a")])).to_frame()
    assert frame["setup"].unique().tolist() == ["z", "a"]


def test_printed_components_are_a_table_of_standard_deviations() -> None:
    found = components(pd.concat([table(Y, setup="a"), table({1: [1.0], 2: [2.0]}, setup="b")]))
    first, *rows, blank, last = str(found).splitlines()
    assert first == "a: components of variance of eval_loss_final (closed forms)" and blank == ""
    assert rows[0].split() == ["SD", "(nats)", "95", "%", "interval", "share"]
    assert [row.split()[0] for row in rows[1:]] == ["seed", "seed:k", "total"]
    record = found[0].to_frame().iloc[0]
    assert rows[1].split()[1] == f"{record['sd']:.3g}" and f"[{record['low'] ** 0.5:.3g}, {record['high'] ** 0.5:.3g}]" in rows[1]
    assert last.startswith("b: no components of variance of eval_loss_final: 1 seed and 2 factors")


def test_printed_components_say_how_many_reruns_were_equal() -> None:
    again = pd.concat([table(Y, replicate=0), table({1: Y[1][:1]}, replicate=1)])
    assert "reruns identical in 1 of 1 cell)" in str(only(again)).splitlines()[0]
