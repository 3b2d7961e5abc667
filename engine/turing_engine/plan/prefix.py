"""The prefix cache: full pages found again by the hash of everything up to their end."""

from collections.abc import Sequence

from turing_engine.plan.pages import PagePool


class PrefixCache:
    """Page key → page, over the keys of ``turing_protocol.prefix``.

    Who holds a page holds all its parents, and pages are released tail first, so the least
    recently released page never has a cached child: a parent outlives its children by itself.
    """

    def __init__(self, pool: PagePool) -> None:
        self._pool = pool
        self._page_of: dict[bytes, int] = {}
        self._key_of: dict[int, bytes] = {}
        self._stored: dict[bytes, bytes] = {}
        self._removed: dict[bytes, None] = {}

    def __len__(self) -> int:
        """Return how many pages can be found."""
        return len(self._page_of)

    def __contains__(self, key: bytes) -> bool:
        """Return whether a page is known under ``key``."""
        return key in self._page_of

    def acquire(self, keys: Sequence[bytes], most: int) -> list[int]:
        """Return the pages of the longest known run of ``keys``, ``most`` at most, each held."""
        pages: list[int] = []
        for key in keys[:most]:
            page = self._page_of.get(key)
            if page is None:
                break
            self._pool.share(page)
            pages.append(page)
        return pages

    def take(self) -> int:
        """Return an empty page, held once; the least recently released one is evicted if needed.

        ``StopIteration`` when sequences hold every page.
        """
        if not self._pool.free:
            key = self._key_of.pop(self._pool.evict())
            del self._page_of[key]
            self._note_removed(key)
        return self._pool.take()

    def store(self, key: bytes, parent: bytes, page: int) -> int:
        """Make a computed page known and return the page that the caller now holds for ``key``.

        When another page is known under ``key`` already, the contents are interchangeable: the
        caller's hold moves to that one and its own page becomes free.
        """
        known = self._page_of.get(key)
        if known == page:
            return page
        if known is not None:
            self._pool.share(known)
            self._pool.release(page, keep=False)
            return known
        self._page_of[key] = page
        self._key_of[page] = key
        self._note_stored(key, parent)
        return page

    def release(self, pages: Sequence[int]) -> None:
        """Give back a sequence's pages, tail first; known ones stay cached."""
        for page in reversed(pages):
            self._pool.release(page, keep=page in self._key_of)

    def drain_events(self) -> tuple[list[tuple[bytes, bytes]], list[bytes]]:
        """Return what changed since the last call: (key, parent) stored, and keys removed.

        Only net changes are told, so the two lists never share a key.
        """
        events = list(self._stored.items()), list(self._removed)
        self._stored, self._removed = {}, {}
        return events

    def _note_stored(self, key: bytes, parent: bytes) -> None:
        if key in self._removed:
            del self._removed[key]
        else:
            self._stored[key] = parent

    def _note_removed(self, key: bytes) -> None:
        if key in self._stored:
            del self._stored[key]
        else:
            self._removed[key] = None
