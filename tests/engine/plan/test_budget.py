"""Budget: footprints in whole pages, refused when they can never fit."""

import pytest

from turing_engine.plan.budget import Budget
from turing_protocol.errors import Code, TuringError


def test_reserved_is_the_sum_of_footprints() -> None:
    budget = Budget(pages=10, context=640)
    budget.reserve(65)
    budget.reserve(640)
    assert budget.reserved == 12
    budget.release(65)
    assert budget.reserved == 10


def test_exactly_the_pool_fits_and_one_page_more_never_does() -> None:
    budget = Budget(pages=10, context=10_000)
    budget.reserve(640)
    with pytest.raises(TuringError, match="KV memory holds 640") as caught:
        budget.reserve(641)
    assert (caught.value.code, caught.value.param) == (Code.NEVER_FITS, "max_tokens")
    assert budget.reserved == 10


def test_longer_than_the_context_never_fits() -> None:
    budget = Budget(pages=10, context=100)
    budget.reserve(100)
    with pytest.raises(TuringError, match="context is 100") as caught:
        budget.reserve(101)
    assert (caught.value.code, caught.value.param) == (Code.NEVER_FITS, "max_tokens")
