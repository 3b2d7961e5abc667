"""PrefixCache: what is found, what is evicted first, and what is told about it."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from turing_engine.plan.pages import PagePool
from turing_engine.plan.prefix import PrefixCache

ROOT = b"root"


def chain(name: str) -> list[bytes]:
    """Return keys of the pages ``name[0]``, ``name[:2]``, …, as page hashes would nest."""
    return [name[: end + 1].encode() for end in range(len(name))]


def fill(cache: PrefixCache, keys: list[bytes]) -> list[int]:
    """Hold new pages for ``keys`` and make them known."""
    pages: list[int] = []
    for index, key in enumerate(keys):
        parent = keys[index - 1] if index else ROOT
        pages.append(cache.store(key, parent, cache.take()))
    return pages


def test_longest_known_run_is_acquired_and_held() -> None:
    pool = PagePool(8)
    cache = PrefixCache(pool)
    pages = fill(cache, chain("abc"))
    cache.release(pages)
    assert cache.acquire(chain("abx"), 9) == pages[:2]
    assert (pool.used, pool.cached) == (2, 1)


def test_at_most_the_asked_number_is_acquired() -> None:
    cache = PrefixCache(PagePool(8))
    pages = fill(cache, chain("abc"))
    assert cache.acquire(chain("abc"), 1) == pages[:1]
    assert cache.acquire(chain("abc"), 0) == []


def test_unknown_pages_do_not_stay_after_release() -> None:
    pool = PagePool(2)
    cache = PrefixCache(pool)
    cache.release([cache.take()])
    assert (pool.free, pool.cached, len(cache)) == (2, 0, 0)


def test_tail_is_evicted_before_its_parents() -> None:
    cache = PrefixCache(PagePool(3))
    cache.release(fill(cache, chain("abc")))
    cache.take()
    assert [key in cache for key in chain("abc")] == [True, True, False]
    cache.take()
    assert [key in cache for key in chain("abc")] == [True, False, False]


def test_least_recently_released_chain_goes_first() -> None:
    cache = PrefixCache(PagePool(2))
    a, b = fill(cache, chain("a")), fill(cache, chain("b"))
    cache.release(a)
    cache.release(b)
    cache.release(cache.acquire(chain("a"), 1))
    cache.take()
    assert b"a" in cache
    assert b"b" not in cache


def test_taking_from_a_pool_that_is_all_held_fails() -> None:
    cache = PrefixCache(PagePool(1))
    cache.take()
    with pytest.raises(StopIteration):
        cache.take()


def test_second_page_of_equal_contents_is_replaced_by_the_first() -> None:
    pool = PagePool(4)
    cache = PrefixCache(pool)
    [first] = fill(cache, chain("a"))
    second = cache.take()
    assert cache.store(b"a", ROOT, second) == first
    assert (pool.refs(first), pool.refs(second), pool.free) == (2, 0, 3)
    assert cache.drain_events() == ([(b"a", ROOT)], [])


def test_storing_the_same_page_again_changes_nothing() -> None:
    pool = PagePool(1)
    cache = PrefixCache(pool)
    [page] = fill(cache, chain("a"))
    assert cache.store(b"a", ROOT, page) == page
    assert pool.refs(page) == 1


def test_events_are_drained_once_with_parents_first() -> None:
    cache = PrefixCache(PagePool(4))
    cache.release(fill(cache, chain("ab")))
    assert cache.drain_events() == ([(b"a", ROOT), (b"ab", b"a")], [])
    assert cache.drain_events() == ([], [])


def test_events_between_two_drains_cancel_out() -> None:
    cache = PrefixCache(PagePool(1))
    cache.release(fill(cache, chain("a")))
    cache.drain_events()
    cache.release(fill(cache, chain("b")))
    cache.release(fill(cache, chain("a")))
    assert cache.drain_events() == ([], [])
    cache.release(fill(cache, chain("b")))
    assert cache.drain_events() == ([(b"b", ROOT)], [b"a"])


class CacheMachine(RuleBasedStateMachine):
    """Holders compute chains over a two-letter alphabet; a mirror follows the events."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(7)
        self.cache = PrefixCache(self.pool)
        self.holders: list[tuple[list[bytes], list[int]]] = []
        self.mirror: dict[bytes, bytes] = {}

    @precondition(lambda self: self.pool.available)
    @rule(name=st.text("ab", min_size=1, max_size=4))
    def begin(self, name: str) -> None:
        """A sequence reuses what is known, and computes no further page yet."""
        keys = chain(name)
        pages = self.cache.acquire(keys, len(keys))
        assert all(key in self.cache for key in keys[: len(pages)])
        assert len(pages) == len(keys) or keys[len(pages)] not in self.cache
        self.holders.append((keys, pages))

    @precondition(lambda self: self.holders and self.pool.available)
    @rule(data=st.data())
    def compute(self, data: st.DataObject) -> None:
        """A sequence fills its next page; another may have filled its twin meanwhile."""
        keys, pages = data.draw(st.sampled_from(self.holders))
        if len(pages) < len(keys):
            index = len(pages)
            parent = keys[index - 1] if index else ROOT
            pages.append(self.cache.store(keys[index], parent, self.cache.take()))

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.holders) - 1))
        self.cache.release(self.holders.pop(index)[1])

    @precondition(lambda self: self.pool.available)
    @rule()
    def churn(self) -> None:
        """Someone needs a page for a moment, which may evict one."""
        self.cache.release([self.cache.take()])

    @rule()
    def drain(self) -> None:
        stored, removed = self.cache.drain_events()
        for key in removed:
            del self.mirror[key]
        for key, parent in stored:
            assert key not in self.mirror
            assert parent == ROOT or parent in self.mirror, "a child is told before its parent"
            self.mirror[key] = parent
        assert len(self.mirror) == len(self.cache)
        assert all(key in self.cache for key in self.mirror)

    @invariant()
    def parents_outlive_children(self) -> None:
        for keys, _ in self.holders:
            known = [key in self.cache for key in keys]
            assert known == sorted(known, reverse=True)
        assert all(
            parent == ROOT or parent in self.cache
            for key, parent in self.mirror.items()
            if key in self.cache
        )

    @invariant()
    def holds_add_up(self) -> None:
        held = [page for _, pages in self.holders for page in pages]
        assert self.pool.used == len(set(held))
        assert all(self.pool.refs(page) == held.count(page) for page in range(self.pool.total))
        assert len(self.cache) == self.pool.used + self.pool.cached


TestCache = CacheMachine.TestCase
TestCache.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)
