"""Names and order of the QoS lanes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turing_protocol.errors import Code, TuringError
from turing_protocol.lanes import CHUNK, Lane, parse_lane


@pytest.mark.parametrize("lane", Lane)
def test_every_lane_parses_from_its_name_in_any_case(lane: Lane) -> None:
    assert parse_lane(lane.name.lower()) is lane
    assert parse_lane(f" {lane.name.title()}\t") is lane


def test_lanes_are_ordered_by_service_and_each_has_a_chunk() -> None:
    assert sorted(Lane) == [Lane.INTERACTIVE, Lane.BATCH, Lane.BACKGROUND]
    assert [CHUNK[lane] for lane in Lane] == [512, 256, 128]


@given(st.text().filter(lambda text: text.strip().upper() not in Lane.__members__))
def test_an_unknown_lane_names_its_field_and_the_known_ones(text: str) -> None:
    with pytest.raises(TuringError) as caught:
        parse_lane(text, param="X-Turing-Lane")
    assert caught.value.code is Code.INVALID
    assert caught.value.param == "X-Turing-Lane"
    assert "interactive, batch, background" in caught.value.message
    assert len(caught.value.message) < 300
