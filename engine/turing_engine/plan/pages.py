"""Page ids, who holds them, and which released ones still have contents worth keeping."""


class PagePool:
    """Reference counts over the pages ``0 … total - 1`` of the KV memory.

    A page is free, used (held by one sequence or more) or cached (held by nobody, contents kept);
    ``free + cached + used == total`` always. Every operation is O(1).
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self._free = list(range(total - 1, -1, -1))
        self._refs = [0] * total
        self._cached: dict[int, None] = {}
        """Released pages with contents, longest released first."""

    @property
    def free(self) -> int:
        """Pages without contents."""
        return len(self._free)

    @property
    def cached(self) -> int:
        """Pages that nobody holds but whose contents are kept."""
        return len(self._cached)

    @property
    def used(self) -> int:
        """Pages held by sequences, each counted once."""
        return self.total - len(self._free) - len(self._cached)

    @property
    def available(self) -> int:
        """Pages that can be had without taking one from a sequence."""
        return len(self._free) + len(self._cached)

    def refs(self, page: int) -> int:
        """Return how many hold ``page``."""
        return self._refs[page]

    def take(self) -> int:
        """Return a free page, now held once; ``IndexError`` when there is none."""
        page = self._free.pop()
        self._refs[page] = 1
        return page

    def share(self, page: int) -> None:
        """Hold a used or cached page once more; ``KeyError`` when it is free."""
        if self._refs[page] == 0:
            del self._cached[page]
        self._refs[page] += 1

    def release(self, page: int, *, keep: bool) -> None:
        """Give back one hold; the last one leaves the page cached with ``keep``, else free."""
        if self._refs[page] == 0:
            raise ValueError(f"page {page} is not held")
        self._refs[page] -= 1
        if self._refs[page]:
            return
        if keep:
            self._cached[page] = None
        else:
            self._free.append(page)

    def evict(self) -> int:
        """Free the page that was released longest ago; ``StopIteration`` when none is cached."""
        page = next(iter(self._cached))
        del self._cached[page]
        self._free.append(page)
        return page
