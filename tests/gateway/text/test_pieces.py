"""What is held back is exactly what may become a tag."""

from hypothesis import given
from hypothesis import strategies as st

from turing_gateway.text.pieces import held_back

AB = st.text("ab", max_size=8)


@given(AB, st.text("ab", min_size=1, max_size=6))
def test_the_longest_beginning_of_a_tag_at_the_end_is_held_back(text: str, tag: str) -> None:
    size = held_back(text, tag)
    assert size < len(tag)
    assert text.endswith(tag[:size])
    assert not any(text.endswith(tag[:more]) for more in range(size + 1, len(tag)))
