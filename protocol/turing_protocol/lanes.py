"""The three QoS lanes and the prefill chunk each may add to one step."""

import enum

from turing_protocol.errors import Code, TuringError


class Lane(enum.IntEnum):
    """Service class of a request; a lower value is served first and shed last."""

    INTERACTIVE = 0
    BATCH = 1
    BACKGROUND = 2


CHUNK: dict[Lane, int] = {Lane.INTERACTIVE: 512, Lane.BATCH: 256, Lane.BACKGROUND: 128}
"""Prompt tokens that one sequence of a lane may add to one step beside running decodes."""


def parse_lane(text: str, *, param: str = "lane") -> Lane:
    """Return the lane named ``text``; an unknown name is ``Code.INVALID`` on ``param``."""
    try:
        return Lane[text.strip().upper()]
    except KeyError:
        known = ", ".join(lane.name.lower() for lane in Lane)
        raise TuringError(
            Code.INVALID, f"unknown lane {text[:40]!r}: use one of {known}", param=param
        ) from None
