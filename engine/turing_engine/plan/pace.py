"""How long a step takes, learnt from measured ones, and how much prefill that allows.

A step costs a base, something per prompt row, per decode row and per position attended to. The four
prices are a least-squares fit with forgetting, none of them negative; Sarathi-Serve (OSDI 24) takes
such a budget from a profile, here it follows the machine and its other users.
"""

from math import inf

import msgspec

from turing_protocol.prefix import PAGE

HEADROOM = 0.9
"""Part of the limit that is planned for: half of all steps take longer than predicted."""
FORGET = 0.98
"""Weight of a step against the next one: about the last 50 steps count."""
FADED = 1e-100
"""Evidence below this is too old to be told from rounding: its price stays as it is."""
SWEEPS = 2
"""Rounds of descent per measured step; the fit goes on where the last one ended."""


class Load(msgspec.Struct):
    """What one step computes, in rows and in positions that those rows attend to."""

    prefill: int = 0
    decodes: int = 0
    attended: int = 0

    def add(self, start: int, size: int, sign: int = 1) -> None:
        """Count a chunk of ``size`` rows behind ``start`` others; ``sign`` -1 takes it out again.

        A single row costs what a decode costs, whatever it is.
        """
        if size == 1:
            self.decodes += sign
        else:
            self.prefill += sign * size
        self.attended += sign * attended(start, size)


def attended(start: int, size: int) -> int:
    """Return the positions that ``size`` rows behind ``start`` others attend to in all."""
    return size * start + size * (size + 1) // 2


class Pace:
    """Predicts steps. ``limit`` is the longest step in seconds that running streams may see."""

    def __init__(self, limit: float) -> None:
        self._limit = limit * HEADROOM
        self._prices = [0.0] * 4
        self._squares = [[0.0] * 4 for _ in range(4)]
        self._products = [0.0] * 4

    def measured(self, load: Load, seconds: float) -> None:
        """Learn from a step that took ``seconds``; one without a duration teaches nothing."""
        if seconds <= 0:
            return
        # Errors count relative to the step, or the long ones would drown what a decode costs.
        row = [value / seconds for value in _row(load)]
        for i, value in enumerate(row):
            self._products[i] = FORGET * self._products[i] + value
            for j, other in enumerate(row):
                self._squares[i][j] = FORGET * self._squares[i][j] + value * other
        for _ in range(SWEEPS):
            self._descend()

    def seconds(self, load: Load) -> float:
        """Return the predicted duration of a step; 0 before anything was measured."""
        return sum(price * value for price, value in zip(self._prices, _row(load), strict=True))

    def fit(self, load: Load, start: int, most: int) -> int:
        """Return how many of the next ``most`` prompt rows, behind ``start`` others, fit ``load``.

        ``most``, or a multiple of 64 below it, so that the step stays within the limit; 0 if not
        even that many do.
        """
        left = self._limit - self.seconds(load)
        if not self._squares[1][1] and left < inf:
            return 0 if load.prefill else min(most, PAGE)  # their cost is to be found out first
        _, prefill, _, position = self._prices
        rows = most
        while rows > 0 and rows * prefill + attended(start, rows) * position > left:
            rows = (rows - 1) // PAGE * PAGE
        return rows

    def _descend(self) -> None:
        """Move each price to its best value, the others held."""
        for i, squares in enumerate(self._squares):
            if squares[i] > FADED:
                rest = sum(map(float.__mul__, squares, self._prices)) - squares[i] * self._prices[i]
                self._prices[i] = max(0.0, (self._products[i] - rest) / squares[i])


def _row(load: Load) -> tuple[float, float, float, float]:
    return 1.0, float(load.prefill), float(load.decodes), float(load.attended)
