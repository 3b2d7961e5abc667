"""Page hashes: what shares a page, and what never may."""

import hashlib
import struct
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from turing_protocol.prefix import HOME_PAGES, PAGE, home_key, page_hashes, salt

TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=5 * PAGE)
ROOT = salt(model="sha256:0")


def common(left: list[int], right: list[int]) -> int:
    """Return the length of the common start."""
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return min(len(left), len(right))


def test_a_page_key_is_what_the_specification_says() -> None:
    tokens = list(range(2 * PAGE))
    first = hashlib.sha256(ROOT + struct.pack(f"<{PAGE}I", *tokens[:PAGE])).digest()[:16]
    second = hashlib.sha256(first + struct.pack(f"<{PAGE}I", *tokens[PAGE:])).digest()[:16]
    assert page_hashes(ROOT, tokens) == [first, second]


def test_keys_stay_the_same_from_release_to_release() -> None:
    assert salt(model="sha256:0").hex() == "bd1ea9d454f0e8473c487c7bc32b9295"
    assert page_hashes(ROOT, range(PAGE))[0].hex() == "31444498990398ba1f4b9b9205717f8d"
    assert home_key(ROOT, range(PAGE)).hex() == "31444498990398ba1f4b9b9205717f8d"


@given(TOKENS)
def test_there_is_one_key_per_full_page(tokens: list[int]) -> None:
    assert len(page_hashes(ROOT, tokens)) == len(tokens) // PAGE


@given(TOKENS, st.integers(0, 5))
def test_known_keys_are_continued(tokens: list[int], known: int) -> None:
    whole = page_hashes(ROOT, tokens)
    assert page_hashes(ROOT, tokens, known=whole[:known]) == whole


@given(TOKENS, TOKENS, st.integers(0, 5 * PAGE))
def test_two_prompts_share_exactly_the_pages_of_their_common_start(
    left: list[int], right: list[int], shared: int
) -> None:
    right = left[:shared] + right
    keys = zip(page_hashes(ROOT, left), page_hashes(ROOT, right), strict=False)
    assert sum(a == b for a, b in keys) == common(left, right) // PAGE


@given(st.lists(st.integers(0, 2**32 - 1), min_size=PAGE, max_size=3 * PAGE))
def test_all_pages_differ_under_another_salt(tokens: list[int]) -> None:
    roots = [
        salt(model="sha256:0"),
        salt(model="sha256:1"),
        salt(model="sha256:0", adapter="sha256:0"),
        salt(model="sha256:0", sparsity=0.5),
        salt(model="sha256:0", codec="int8"),
        salt(model="sha256:0", tenant="a"),
    ]
    keys = [key for root in roots for key in page_hashes(root, tokens)]
    assert len(set(keys)) == len(keys)


@given(st.lists(st.text(max_size=8), min_size=3, max_size=3))
def test_fields_of_the_salt_cannot_run_into_each_other(fields: list[str]) -> None:
    model, adapter, tenant = fields
    here = salt(model=model, adapter=adapter, tenant=tenant)
    moved = salt(model=model + adapter, tenant=tenant)
    assert (here == moved) == (adapter == "")


@given(TOKENS, TOKENS)
def test_home_depends_on_the_first_pages_alone(head: list[int], tail: list[int]) -> None:
    size = HOME_PAGES * PAGE
    head = (head * 5 + [7] * size)[:size]
    assert home_key(ROOT, head + tail) == home_key(ROOT, head)


def test_home_of_prompts_shorter_than_the_first_pages_differs() -> None:
    keys = [home_key(ROOT, list(range(length))) for length in range(0, HOME_PAGES * PAGE + 1, 16)]
    assert all(a != b for a, b in pairwise(keys))
