"""The one-page answer to "is my accumulation right?": what it says in each case, as text and as HTML."""

import html
import json
import math
import re
from collections.abc import Callable, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import accum_sweeps as acs
from accum_sweeps.analysis.audit_html import MOST, write_audits
from accum_sweeps.analysis.audit_page import ANSWERS, MECHANISMS, render, rung_rows
from accum_sweeps.analysis.words import WIDTH
from accum_sweeps.ladder import amplified
from accum_sweeps.ladder.dependence import KINDS
from accum_sweeps.plan.faults import CLASSES, DEPENDENCES, REMEDIES, SINGLE
from tests.faults.subjects import lm_spec
from tests.specs import BASE

# --- what is audited -------------------------------------------------------------------------------------------------------


class Own:
    """Eight rows of a regression, each of them one term, and the loss ``factor`` times as large; by the product's own step."""

    factor = 1.0

    def build(self, config: Any, seeds: Any) -> nn.Module:
        return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))

    def batch(self, step: int, seed: int) -> Any:
        return torch.randn(8, 4, generator=torch.Generator().manual_seed(1000 * seed + step))

    def given(self, rows: Tensor) -> Tensor:
        """What the network is given."""
        return rows[:, :3]

    def loss(self, model: Any, samples: Any) -> tuple[Tensor, Any]:
        return self.factor * (model(self.given(samples)) - samples[:, 3:]).square().sum(), len(samples)


class Odd(Own):
    """Micro-batches count 1, 1.7, 0.6 and 1.2 times: no way to be wrong that has a name."""

    def step(self, model: Any, optimizer: Any, micro_batches: list[Any]) -> tuple[float, float]:
        optimizer.zero_grad()
        losses, terms = 0.0, float(sum(len(samples) for samples in micro_batches))
        for weight, samples in zip((1.0, 1.7, 0.6, 1.2), micro_batches, strict=False):
            total, _ = self.loss(model, samples)
            scaled: Any = weight * total / terms
            scaled.backward()
            losses += float(total.detach())
        optimizer.step()
        return losses, terms


class Coarse(Own):
    """It gives its network bfloat16 whatever the settings say, so float64 is not possible."""

    def given(self, rows: Tensor) -> Tensor:
        return super().given(rows).bfloat16()


class NotFinite(Own):
    factor = math.inf


class Overflowing(Own):
    """Its gradients are finite, but not at a loss scale in half precision."""

    factor = 1e4


class OverflowingFloat32(Overflowing):
    def given(self, rows: Tensor) -> Tensor:
        return super().given(rows).float()


ADAMW: dict[str, Any] = {"optimizer": BASE["optimizer"]}
NOT_FINITE = "The gradient of the right step is not finite: there is nothing to compare"
Case = tuple[Callable[[], Any], dict[str, Any]]
CASES: dict[str, Case] = {
    "right": (lambda: lm_spec("none", dtype="fp32"), {}),
    "amplified": (lambda: lm_spec("none", dtype="fp32", **ADAMW, **{"data.seq_len": 16}), {}),
    "dependent": (lambda: lm_spec("none", **{"model.norm": "batchnorm"}), {}),
    "mean": (lambda: lm_spec("mean_of_means", dtype="fp32"), {}),
    "pair": (lambda: lm_spec("missing_division+reporting"), {}),
    "odd": (Odd, {}),
    "coarse": (Coarse, {"dtype": "bf16"}),
    "not finite": (NotFinite, {}),
    "overflowing": (Overflowing, {"dtype": "amp_fp16"}),
    "overflowing, no float64": (OverflowingFloat32, {"dtype": "amp_fp16"}),
    "k=1": (Own, {"accum": 1}),
}
# Answer, what the page says of it, and the colour of the answer: that of the verdict that looks alike.
TOLD: dict[str, tuple[str, str, str]] = {
    "right": ("rounding", "Right. What differs from one batch is rounding.", "equivalent"),
    "amplified": ("amplified_rounding", "Right. What differs from one batch is rounding, which the optimizer makes large.", "equivalent"),
    "dependent": ("real_dependence", "The accumulation is right, but the subject depends on how a batch is cut", "inconclusive"),
    "mean": ("mean_of_means", "Wrong: mean_of_means.", "effect"),
    "pair": ("missing_division+reporting", "Wrong: missing_division and reporting.", "effect"),
    "odd": ("unknown_fault", "Wrong, in none of the ways that are known by name.", "effect"),
    "coarse": ("below_floor", "No fault is seen, but rounding is coarse here: a small one would not be seen.", "not_assessable"),
    "not finite": ("not_observable", f"Nothing can be said. {NOT_FINITE}.", "not_assessable"),
    "overflowing": ("rounding", "Right. What differs from one batch is rounding. In amp_fp16 the right gradient overflows", "equivalent"),
    "overflowing, no float64": ("not_observable", f"Nothing can be said. {NOT_FINITE}; a smaller loss_scale may help.", "not_assessable"),
    "k=1": ("rounding", "Right. What differs from one batch is rounding.", "equivalent"),
}
Found = Callable[[str], dict[str, Any]]


@pytest.fixture(scope="module")
def found() -> Found:
    """What the audit of a case found, as it is read from its file; audited when it is first asked for."""
    known: dict[str, dict[str, Any]] = {}

    def of(case: str) -> dict[str, Any]:
        if case not in known:
            make, settings = CASES[case]
            [one] = acs.audit(make(), **settings).found
            known[case] = json.loads(json.dumps(one))
        return dict(known[case])

    return of


def one_line(text: str) -> str:
    return " ".join(text.split())


class Reader(HTMLParser):
    """The words of a page, and the cells of its tables, as a browser shows them."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.words, self.rows, self.tags, self._path = "", list[list[str]](), list[str](), list[str]()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        self._path.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self.words += " " if tag in ("li", "td", "th") else ""
        while self._path and self._path.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if "style" in self._path or "svg" in self._path:
            return
        self.words += data
        if self._path and self._path[-1] in ("td", "th"):
            self.rows[-1][-1] += data


def page_of(folder: Path, *audits: Mapping[str, Any], title: str = "demo") -> str:
    write_audits(folder / "audit.html", title, audits)
    return (folder / "audit.html").read_text()


# --- in every case ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_the_text_begins_with_what_was_audited_and_the_answer_in_a_sentence(found: Found, case: str) -> None:
    audit = found(case)
    answer, sentence, _ = TOLD[case]
    head, opening, *_ = render(audit).split("\n\n")
    assert head == f"{audit['label']}, k={audit['accum']} against one batch, {audit['dtype']}"
    assert opening.startswith(f"answer  {answer}\n") and one_line(opening).startswith(f"answer {answer} {sentence}")
    assert max(len(line) for line in opening.splitlines()) <= WIDTH


@pytest.mark.parametrize("case", CASES)
def test_the_page_in_html_says_the_same(found: Found, case: str, tmp_path: Path) -> None:
    audit = found(case)
    answer, sentence, code = TOLD[case]
    text = page_of(tmp_path, audit)
    assert f'<span class="code {code}">{answer}</span>' in text
    reader = Reader(text)
    assert f"{audit['label']}, k={audit['accum']}, {audit['dtype']} {answer} {sentence}" in one_line(reader.words)
    for rung in rung_rows(audit["rungs"]):
        assert list(rung) in reader.rows
        assert one_line(" ".join(rung)) in one_line(render(audit))
    for block in render(audit).split("\n\n")[2:]:  # the proofs, and what would not have been seen
        if block.startswith(("A fault that", "The gradient is")):
            assert one_line(block) in one_line(reader.words)


# --- by answer -------------------------------------------------------------------------------------------------------------


def above(audit: Mapping[str, Any]) -> set[str]:
    """Names of the rungs that the page marks."""
    return {row[1] for row in rung_rows(audit["rungs"]) if row[4] == "above"}


@pytest.mark.parametrize("case", ["right", "amplified", "coarse", "k=1"])
def test_of_right_code_no_rung_is_marked_and_no_reason_is_given(found: Found, case: str) -> None:
    text = render(found(case))
    assert above(found(case)) == set() and "above" not in text and "why " not in text and "Wrong" not in text
    assert {row[0] for row in rung_rows(found(case)["rungs"])} == {str(number) for number in range(10)}


def test_a_fault_is_told_with_its_reason_its_proof_and_where_it_shows(found: Found, tmp_path: Path) -> None:
    audit = found("mean")
    assert "why     mean_of_means, rung 4\n        each micro-batch's own mean counts 1/4 although" in render(audit)
    before, after = map(float, re.findall(r"all rows full: (\S+) becomes (\S+)", render(audit))[0])
    assert before > 0.01 and after < 1e-12
    assert above(audit) == {"loss", "gradient", "worst tensor", "bias", "clipped gradient", "update", "windows", "log"}
    proof = f"check: all rows full: {before:.3g} becomes {after:.3g}"
    assert f"mean_of_means, rung 4: each micro-batch's own mean counts 1/4 although their numbers of terms differ. {proof}" in one_line(
        Reader(page_of(tmp_path, audit)).words
    )


def test_a_fault_is_told_with_what_to_write_instead(found: Found, tmp_path: Path) -> None:
    assert set(CLASSES) <= set(REMEDIES) <= set(SINGLE) and set(DEPENDENCES) == set(KINDS)
    told = {"mean": ["mean_of_means"], "pair": ["missing_division", "reporting"], "odd": [], "dependent": ["batch_statistics"]}
    for case, names in told.items():
        remedies = [(REMEDIES | DEPENDENCES)[name] for name in names]
        assert re.findall(r"^do      (\S+)", render(found(case)), flags=re.MULTILINE) == [words.split()[0] for words in remedies]
        page = one_line(Reader(page_of(tmp_path, found(case))).words)
        assert page.count("What to do:") == len(names)
        for words in remedies:
            assert f"do {words}" in one_line(render(found(case))) and f"What to do: {words}" in page


def test_of_two_faults_each_has_its_reason(found: Found, tmp_path: Path) -> None:
    text = one_line(render(found("pair")))
    first, second = (
        text.index("why missing_division, rung 4 the gradient is 4 times as long"),
        text.index("why reporting, rung 9 the logged loss"),
    )
    assert first < second
    words = one_line(Reader(page_of(tmp_path, found("pair"))).words)
    assert 0 < words.index("missing_division, rung 4: the gradient is 4 times") < words.index("reporting, rung 9: the logged loss")


@pytest.mark.parametrize(("case", "least", "most"), [("right", 1.0, 1.0), ("odd", 1.05, 1.3), ("pair", 3.5, 5.0)])
def test_the_gradient_is_told_by_its_length_and_direction_too(found: Found, case: str, least: float, most: float) -> None:
    words = (
        r"The gradient is (\S+) times as long as that of one batch, at 1 - cosine (\S+); (\S+) of it is of no multiple of that gradient\."
    )
    [(length, angle, rest)] = re.findall(words, one_line(render(found(case))))
    assert least <= float(length) <= most
    assert (float(angle) < 1e-12) == (float(rest) < 1e-6) == (case == "right")
    # sin^2 + cos^2 = 1, of three digits each; of right code both are the rounding of float32, squared
    assert float(rest) ** 2 == pytest.approx(1 - (1 - float(angle)) ** 2, rel=0.02, abs=1e-12)


def test_a_variant_is_told_by_its_own_name_under_the_answer_of_its_class(found: Found) -> None:
    audit = found("pair")
    audit["diagnosis"] = audit["diagnosis"] | {
        "findings": [
            finding | {"variant": "reporting_scaled"} for finding in audit["diagnosis"]["findings"] if finding["name"] == "reporting"
        ]
    }
    assert "why     reporting_scaled, rung 9" in render(audit) and "Wrong: missing_division and reporting." in render(audit)


def test_a_real_dependence_is_no_fault_and_is_told_by_its_kind_and_proof(found: Found, tmp_path: Path) -> None:
    audit = found("dependent")
    text = render(audit)
    assert "Wrong" not in text and "why     batch_statistics, rung 4" in text
    before, after = map(float, re.findall(r"batch norm by its running statistics: (\S+) becomes (\S+)", text)[0])
    assert before > 0.1 and after < 1e-12
    assert {"outputs", "gradient"} <= above(audit), "it is as far from one batch as a fault"
    assert not {"worst tensor", "bias", "windows", "state", "log"} & above(audit), "and what it is made of is right"
    assert "Wrong" not in Reader(page_of(tmp_path, audit)).words


def test_amplified_rounding_is_told_with_how_much_and_by_what(found: Found, tmp_path: Path) -> None:
    audit = found("amplified")
    grown = audit["amplified"]
    words = f"amplified: an update differs {grown['gain']:.3g} times as much as its gradient, because {MECHANISMS[grown['mechanism']]}."
    proofs = [f"check: {proof['words']}: {proof['before']:.3g} becomes {proof['after']:.3g}" for proof in grown["experiments"]]
    assert grown["gain"] > 4 and len(proofs) == 3
    assert f"{words} {' '.join(proofs)}" in one_line(render(audit))
    assert f"{words} {' '.join(proofs)}" in one_line(Reader(page_of(tmp_path, audit)).words)
    assert "amplified:" not in render(found("right"))


def test_every_mechanism_that_the_ladder_names_has_words(found: Found) -> None:
    assert set(MECHANISMS) == set(amplified.MECHANISMS)
    for mechanism, words in MECHANISMS.items():
        audit = found("amplified")
        audit["amplified"] = audit["amplified"] | {"mechanism": mechanism}
        assert words in one_line(render(audit))


def test_a_fault_without_a_name_is_wrong_all_the_same(found: Found) -> None:
    text = one_line(render(found("odd")))
    assert "why unknown_fault, rung 4 the gradient is 0." in text and ANSWERS["unknown_fault"] in text
    assert above(found("odd")) >= {"gradient", "worst tensor", "windows"} and "log" not in above(found("odd"))


@pytest.mark.parametrize("case", ["not finite", "overflowing, no float64"])
def test_where_nothing_could_be_observed_the_page_is_the_reason_alone(found: Found, case: str, tmp_path: Path) -> None:
    assert len(render(found(case)).split("\n\n")) == 2, "the head and the answer"
    reader = Reader(page_of(tmp_path, found(case)))
    assert reader.rows == [] and not {"svg", "table", "li"} & set(reader.tags)


def test_it_is_told_what_would_not_have_been_seen_and_in_which_precision(found: Found) -> None:
    *_, exact = render(found("right")).split("\n\n")
    assert exact == "A fault that changes a gradient by less than 1e-13, relative, would not have been seen (float64)."
    *_, coarse = render(found("coarse")).split("\n\n")
    [least] = re.findall(r"by less than (\S+), relative, would not have been seen \(bf16\)\.", coarse)
    assert float(least) > 1e-3


# --- precisions and the picture ----------------------------------------------------------------------------------------------


def test_rounding_falls_with_the_unit_roundoff_and_a_fault_does_not(found: Found, tmp_path: Path) -> None:
    for case in ("right", "mean"):
        audit = found(case)
        reader = Reader(page_of(tmp_path, audit))
        arms = {}
        for each in audit["precisions"]:
            shown = [f"{each[key]:.3g}" for key in ("unit", "arm", "low", "high")]
            row = [each["dtype"], shown[0], shown[1], f"{shown[2]} to {shown[3]}"]
            assert row in [line[:4] for line in reader.rows] and one_line(" ".join(row)) in one_line(render(audit))
            arms[each["dtype"]] = each["arm"]
        assert list(arms) == ["fp64", "fp32", "amp_bf16"]
        assert (arms["fp64"] < 1e-8 * arms["fp32"] < 1e-11 * arms["amp_bf16"]) == (case == "right")
        assert (max(arms.values()) < 1.1 * min(arms.values())) == (case == "mean")


@pytest.mark.parametrize("case", ["right", "mean", "coarse", "k=1", "overflowing"])
def test_the_picture_has_every_precision_that_is_finite(found: Found, case: str, tmp_path: Path) -> None:
    audit = found(case)
    [svg] = re.findall(r"<svg .*?</svg>", page_of(tmp_path, audit), flags=re.DOTALL)
    finite = [each["dtype"] for each in audit["precisions"] if math.isfinite(each["arm"])]
    drawn = re.findall(r">((?:amp_)?(?:fp|bf)\d+)<", svg)
    assert drawn == finite and "NaN" not in svg and "nan" not in svg.split()
    assert 'role="img" aria-label="Relative difference of the gradient over unit roundoff"' in svg


def test_half_precision_that_overflows_is_told_as_not_finite_and_not_as_a_fault(found: Found) -> None:
    audit = found("overflowing")
    assert [each["dtype"] for each in audit["precisions"] if math.isnan(each["arm"])] == ["amp_fp16"]
    marks = {row[1]: row[4] for row in rung_rows(audit["rungs"])}
    assert marks["gradient"] == marks["rerun"] == "not finite" and above(audit) == set()
    assert "overflows at a loss scale of 16: nothing can be compared in it" in one_line(render(audit))


def test_a_file_of_an_earlier_release_has_a_page_too(found: Found, tmp_path: Path) -> None:
    audit = found("mean")
    del audit["geometry"]
    audit["precisions"] = [{key: each[key] for key in ("dtype", "unit", "arm", "low", "high")} for each in audit["precisions"]]
    assert "Wrong: mean_of_means." in render(audit) and "times as long as that of one batch" not in render(audit)
    assert "Wrong: mean_of_means." in page_of(tmp_path, audit)


# --- the file in HTML --------------------------------------------------------------------------------------------------------


def test_what_a_user_named_is_text_on_the_page_and_no_markup(found: Found, tmp_path: Path) -> None:
    bad = '<script>alert("1 & 2")</script>'
    audit = found("mean")
    audit |= {"label": f"label {bad}", "remark": f"Remark {bad}"}
    audit["rungs"] = [rung | {"measure": f"measure {bad}"} for rung in audit["rungs"]]
    findings = [finding | {"words": f"words {bad}"} for finding in audit["diagnosis"]["findings"]]
    audit["diagnosis"] = audit["diagnosis"] | {"findings": findings}
    text = page_of(tmp_path, audit, title=f"title {bad}")
    assert "<script" not in text and "script" not in Reader(text).tags
    for name in ("label", "Remark", "measure", "words", "title"):
        assert f"{name} {bad}" in Reader(text).words and f"{name} {bad}" not in text
    assert html.escape("<script>", quote=False) in text


def test_the_page_stands_for_itself(found: Found, tmp_path: Path) -> None:
    text = page_of(tmp_path, found("mean"), found("right"))
    addresses = set(re.findall(r"https?://[^\s\"'<)]+", text))
    assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert not {"link", "script", "img", "iframe"} & set(Reader(text).tags) and "@import" not in text
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert ids and len(ids) == len(set(ids)), "two pictures do not share a clipping path"
    for name in re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', text):
        assert "".join(name) in ids


def test_faults_come_first_and_the_rest_keeps_its_order(found: Found, tmp_path: Path) -> None:
    cases = ["right", "not finite", "mean", "dependent", "odd"]
    text = page_of(tmp_path, *(found(case) for case in cases))
    assert re.findall(r'<span class="code \w+">(\w+)</span>', text) == [
        "mean_of_means",
        "unknown_fault",
        "rounding",
        "not_observable",
        "real_dependence",
    ]
    assert "ladders are shown" not in text


def test_of_very_many_the_first_are_shown_and_it_is_said_that_there_are_more(found: Found, tmp_path: Path) -> None:
    many = [found("not finite") | {"label": f"number {number}"} for number in range(MOST + 2)]
    mean = found("mean")
    mean["precisions"] = []
    text = Reader(page_of(tmp_path, *many, mean))
    assert text.tags.count("section") == MOST
    assert f"{MOST} of {MOST + 3} ladders are shown, those that found a fault before others." in text.words
    assert "Wrong: mean_of_means." in text.words and f"number {MOST - 2}," in text.words and f"number {MOST - 1}," not in text.words


def test_without_any_audit_the_page_has_its_title_alone(tmp_path: Path) -> None:
    reader = Reader(page_of(tmp_path, title="nothing yet"))
    assert "section" not in reader.tags and reader.words.count("nothing yet") == 2


def test_a_page_that_cannot_be_written_leaves_the_one_before(found: Found, tmp_path: Path) -> None:
    before = page_of(tmp_path, found("right"))
    with pytest.raises(OSError, match="No such file"):
        write_audits(tmp_path / "gone" / "audit.html", "demo", [found("mean")])
    broken = found("mean")
    del broken["rungs"]
    with pytest.raises(KeyError):
        write_audits(tmp_path / "audit.html", "demo", [broken])
    assert [path.name for path in tmp_path.iterdir()] == ["audit.html"] and (tmp_path / "audit.html").read_text() == before
