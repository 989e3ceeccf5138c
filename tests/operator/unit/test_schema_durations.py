"""Durations: reading, writing, and agreement of the pattern in the CRDs with the reader."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamhold_operator.api import duration


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("250ms", 250), ("30s", 30_000), ("15m", 900_000), ("1h30m", 5_400_000), ("1h2m3s4ms", 3_723_004), ("0s", 0)],
)
def test_a_duration_is_read_as_milliseconds(text: str, milliseconds: int) -> None:
    assert duration.to_ms(text) == milliseconds
    assert duration.to_seconds(text) == milliseconds / 1000


@pytest.mark.parametrize(
    "text", ["", "30", "1d", "1.5h", "-1s", "s", "1s1h", "1 s", "1s ", "1S", "٣s", "1us", "100000h", "1s\n"]
)
def test_what_is_no_duration_is_refused_with_an_example_of_one(text: str) -> None:
    with pytest.raises(ValueError, match="such as 250ms, 30s or 1h30m"):
        duration.to_ms(text)


def test_a_negative_number_has_no_text() -> None:
    with pytest.raises(ValueError, match="-1 ms is negative"):
        duration.format_ms(-1)


@given(st.integers(min_value=0, max_value=99_999 * 3_600_000))
def test_what_is_written_is_read_back(milliseconds: int) -> None:
    text = duration.format_ms(milliseconds)
    assert duration.to_ms(text) == milliseconds
    assert len(text) <= duration.MAX_LENGTH


@given(st.text(alphabet="0123456789hms. -", max_size=12))
def test_the_pattern_of_the_crds_and_the_reader_agree(text: str) -> None:
    matches = text != "" and re.search(duration.PATTERN.replace("$", r"\Z"), text, re.ASCII) is not None
    try:
        duration.to_ms(text)
    except ValueError:
        assert not matches
    else:
        assert matches
