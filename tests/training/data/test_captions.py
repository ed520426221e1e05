"""Captions as ids: words in alphabetical order between a start and an end that a text encoder finds in any vocabulary."""

import pytest

from accum_sweeps.plan.errors import ConfigError
from accum_sweeps.training.data.captions import tokenized


def test_words_are_numbered_alphabetically_between_start_and_end() -> None:
    made = tokenized(["A dog, a Cat", "dog"], vocabulary=256, longest=8)
    assert made.ids.tolist() == [[254, 2, 4, 1, 2, 3, 255], [254, 4, 255, 0, 0, 0, 0]]  # "," a cat dog
    assert made.lengths.tolist() == [7, 3]


def test_start_and_end_are_the_highest_ids_of_the_vocabulary() -> None:
    made = tokenized(["one"], vocabulary=49408, longest=77)
    assert made.ids.tolist() == [[49406, 1, 49407]]


def test_a_vocabulary_that_just_holds_the_words() -> None:
    assert tokenized(["b a"], vocabulary=5, longest=4).ids.tolist() == [[3, 2, 1, 4]]
    with pytest.raises(ConfigError, match=r"model\.vocabulary=4: the captions have 2 words: 5 or more is needed"):
        tokenized(["b a"], vocabulary=4, longest=4)


def test_a_caption_that_is_too_long_is_refused_with_its_text() -> None:
    with pytest.raises(ConfigError, match=r"model\.text_length=4: the longest caption needs 5 tokens with start and end: 'one two three'"):
        tokenized(["one", "one two three"], vocabulary=256, longest=4)
