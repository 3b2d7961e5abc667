"""How many pages a request may come to need, and how many are promised in all."""

from turing_protocol.admission import pages_needed
from turing_protocol.errors import Code, TuringError
from turing_protocol.prefix import PAGE


class Budget:
    """Whole footprints, prompt + max_tokens, of all accepted sequences. Every operation is O(1)."""

    def __init__(self, pages: int, context: int) -> None:
        self._pages = pages
        self._context = context
        self.reserved = 0
        """Pages that accepted sequences may grow to; more than the pool holds is legal."""

    def need(self, limit: int) -> int:
        """Return the pages of ``limit`` tokens; ``Code.NEVER_FITS`` if they can never be had."""
        if limit > self._context:
            raise TuringError(
                Code.NEVER_FITS,
                f"prompt and max_tokens are {limit} tokens; this engine's context is "
                f"{self._context}",
                param="max_tokens",
            )
        if pages_needed(limit) > self._pages:
            raise TuringError(
                Code.NEVER_FITS,
                f"prompt and max_tokens are {limit} tokens; this engine's KV memory holds "
                f"{self._pages * PAGE}",
                param="max_tokens",
            )
        return pages_needed(limit)

    def reserve(self, limit: int) -> None:
        """Book a sequence of at most ``limit`` tokens; errors as in ``need``."""
        self.reserved += self.need(limit)

    def release(self, limit: int) -> None:
        """Cancel one booking of ``limit`` tokens."""
        self.reserved -= pages_needed(limit)
