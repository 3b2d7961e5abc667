"""PagePool: no page is lost, doubled, or taken from its holder."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from turing_engine.plan.pages import PagePool

TOTAL = 6


def test_take_hands_out_every_page_once() -> None:
    pool = PagePool(3)
    assert {pool.take() for _ in range(3)} == {0, 1, 2}
    assert (pool.free, pool.used, pool.cached) == (0, 3, 0)
    with pytest.raises(IndexError):
        pool.take()


def test_released_page_is_free_or_cached() -> None:
    pool = PagePool(2)
    kept, dropped = pool.take(), pool.take()
    pool.release(kept, keep=True)
    pool.release(dropped, keep=False)
    assert (pool.free, pool.used, pool.cached) == (1, 0, 1)
    assert pool.available == 2


def test_shared_page_stays_used_until_the_last_release() -> None:
    pool = PagePool(1)
    page = pool.take()
    pool.share(page)
    pool.release(page, keep=True)
    assert (pool.refs(page), pool.used) == (1, 1)
    pool.release(page, keep=True)
    assert (pool.refs(page), pool.cached) == (0, 1)


def test_sharing_a_cached_page_protects_it_from_eviction() -> None:
    pool = PagePool(2)
    first, second = pool.take(), pool.take()
    pool.release(first, keep=True)
    pool.release(second, keep=True)
    pool.share(first)
    assert pool.evict() == second
    with pytest.raises(StopIteration):
        pool.evict()


def test_eviction_takes_the_longest_released() -> None:
    pool = PagePool(3)
    pages = [pool.take() for _ in range(3)]
    for page in (pages[1], pages[2], pages[0]):
        pool.release(page, keep=True)
    assert [pool.evict() for _ in range(3)] == [pages[1], pages[2], pages[0]]


def test_misuse_is_refused() -> None:
    pool = PagePool(1)
    with pytest.raises(KeyError):
        pool.share(0)
    with pytest.raises(ValueError, match="page 0 is not held"):
        pool.release(0, keep=False)


class PoolMachine(RuleBasedStateMachine):
    """Compares the pool with a list of holds and an ordered list of cached pages."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(TOTAL)
        self.holds: list[int] = []
        self.cached: list[int] = []

    @precondition(lambda self: self.pool.free)
    @rule()
    def take(self) -> None:
        page = self.pool.take()
        assert page not in self.holds
        assert page not in self.cached
        self.holds.append(page)

    @precondition(lambda self: self.holds or self.cached)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(sorted({*self.holds, *self.cached})))
        self.pool.share(page)
        self.holds.append(page)
        if page in self.cached:
            self.cached.remove(page)

    @precondition(lambda self: self.holds)
    @rule(data=st.data(), keep=st.booleans())
    def release(self, data: st.DataObject, keep: bool) -> None:
        page = data.draw(st.sampled_from(self.holds))
        self.pool.release(page, keep=keep)
        self.holds.remove(page)
        if keep and page not in self.holds:
            self.cached.append(page)

    @precondition(lambda self: self.cached)
    @rule()
    def evict(self) -> None:
        assert self.pool.evict() == self.cached.pop(0)

    @invariant()
    def conserved(self) -> None:
        assert self.pool.used == len(set(self.holds))
        assert self.pool.cached == len(self.cached)
        assert self.pool.free + self.pool.cached + self.pool.used == TOTAL
        assert all(self.pool.refs(page) == self.holds.count(page) for page in range(TOTAL))


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
