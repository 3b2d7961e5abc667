"""Whether running interactive streams are fluid enough for more work of other lanes to start."""

from collections import deque

GAPS = 256
"""Newest gaps that are looked at."""
SECONDS = 10.0
"""Age at which a gap stops to count."""


class Gate:
    """The 99th percentile of recent gaps between interactive tokens against ``limit`` seconds."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._gaps: deque[tuple[float, float]] = deque(maxlen=GAPS)

    def add(self, now: float, gap: float) -> None:
        """Count a gap that ended ``now``."""
        self._gaps.append((now, gap))

    def open(self, now: float) -> bool:
        """Whether the percentile (nearest rank) is within the limit; so it is without gaps."""
        while self._gaps and now - self._gaps[0][0] > SECONDS:
            self._gaps.popleft()
        late = sum(gap > self._limit for _, gap in self._gaps)
        return late * 100 <= len(self._gaps)
