"""The waiting line: three lanes, deadline order within a lane, and ageing between lanes."""

import heapq
from math import isfinite

from turing_engine.plan.sequence import Sequence
from turing_protocol.lanes import Lane

AGE: dict[Lane, float] = {Lane.BATCH: 30.0, Lane.BACKGROUND: 120.0}
"""Seconds of waiting after which a sequence counts one lane higher."""

PATIENCE = 30.0
"""A sequence without a deadline is ordered as if it had one this many seconds after it came.

Otherwise an endless stream of sequences with deadlines would pass it by for ever.
"""

Key = tuple[float, ...]


class _Heap:
    """Sequences by key, smallest first. O(log n) push; removal is lazy and amortised O(1)."""

    def __init__(self) -> None:
        self._heap: list[tuple[Key, int, Sequence]] = []
        self._ticket_of: dict[Sequence, int] = {}
        self._tickets = 0

    def __len__(self) -> int:
        return len(self._ticket_of)

    def push(self, key: Key, sequence: Sequence) -> None:
        self._tickets += 1
        self._ticket_of[sequence] = self._tickets
        heapq.heappush(self._heap, (key, self._tickets, sequence))

    def peek(self) -> tuple[Key, Sequence] | None:
        while self._heap:
            key, ticket, sequence = self._heap[0]
            if self._ticket_of.get(sequence) == ticket:
                return key, sequence
            heapq.heappop(self._heap)
        return None

    def discard(self, sequence: Sequence) -> None:
        if self._ticket_of.pop(sequence, None) is None:
            return
        if len(self._heap) > 2 * len(self._ticket_of) + 64:
            # Dead entries keep prompts alive: sweep before they outnumber the living.
            live = self._ticket_of
            self._heap = [entry for entry in self._heap if live.get(entry[2]) == entry[1]]
            heapq.heapify(self._heap)


class LaneQueue:
    """Waiting sequences of all lanes.

    Order: level (the lane, raised by ageing), preempted ones before others, deadline, arrival.
    Time counts towards ageing only while a sequence waits, and what it has risen it keeps.
    """

    def __init__(self) -> None:
        self._levels = {lane: _Heap() for lane in Lane}
        self._ageing = {lane: _Heap() for lane in AGE}
        self._deadlines = _Heap()
        self._counts = dict.fromkeys(Lane, 0)
        self._members: set[Sequence] = set()
        self.tokens = 0
        """Tokens that the waiting sequences have to compute."""

    def __len__(self) -> int:
        """Return the number of waiting sequences."""
        return len(self._members)

    def counts(self) -> tuple[int, int, int]:
        """Return the waiting sequences of each lane, as they were submitted."""
        return (
            self._counts[Lane.INTERACTIVE],
            self._counts[Lane.BATCH],
            self._counts[Lane.BACKGROUND],
        )

    def push(self, sequence: Sequence, now: float) -> None:
        """Queue a sequence that came just now or was preempted."""
        self._members.add(sequence)
        self._counts[sequence.lane] += 1
        self.tokens += len(sequence.tokens)
        self._enter(sequence, now)
        if sequence.preemptions == 0 and isfinite(sequence.deadline):
            self._deadlines.push((sequence.deadline,), sequence)

    def remove(self, sequence: Sequence, now: float) -> bool:
        """Take a sequence out; ``False`` when it is not waiting here."""
        if sequence not in self._members:
            return False
        self._members.remove(sequence)
        self._counts[sequence.lane] -= 1
        self.tokens -= len(sequence.tokens)
        self._leave(sequence)
        self._deadlines.discard(sequence)
        sequence.waited += max(0.0, now - sequence.queued_at)
        return True

    def first(self, now: float) -> Sequence | None:
        """Return the sequence whose turn it is, leaving it in the queue."""
        self._promote(now)
        for level in Lane:
            head = self._levels[level].peek()
            if head is not None:
                return head[1]
        return None

    def expire(self, now: float) -> list[Sequence]:
        """Remove and return the sequences that have never run and whose deadline is over."""
        late: list[Sequence] = []
        while (head := self._deadlines.peek()) is not None and head[0][0] < now:
            self.remove(head[1], now)
            late.append(head[1])
        return late

    def _enter(self, sequence: Sequence, now: float) -> None:
        sequence.queued_at = now
        key = (float(sequence.preemptions == 0), sequence.due, sequence.order)
        self._levels[sequence.level].push(key, sequence)
        if sequence.level in AGE:
            rises_at = now + AGE[sequence.level] - sequence.waited
            self._ageing[sequence.level].push((rises_at,), sequence)

    def _leave(self, sequence: Sequence) -> None:
        self._levels[sequence.level].discard(sequence)
        if sequence.level in AGE:
            self._ageing[sequence.level].discard(sequence)

    def _promote(self, now: float) -> None:
        # Background first: one that has waited long enough for two levels rises twice.
        for level in sorted(AGE, reverse=True):
            while (head := self._ageing[level].peek()) is not None and head[0][0] <= now:
                (rises_at,), sequence = head
                self._leave(sequence)
                sequence.level = Lane(level - 1)
                sequence.waited = 0.0
                self._enter(sequence, rises_at)
