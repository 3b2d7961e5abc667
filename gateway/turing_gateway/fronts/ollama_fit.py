"""Making a chat fit: tools that take too much room, and old turns that the context cannot hold."""

import logging
from collections.abc import Sequence

from msgspec.structs import replace

from turing_gateway.call import Call, Message
from turing_gateway.fronts.base import Generator
from turing_gateway.fronts.ollama_call import Notes

TOOLS_SHARE = 4
"""Tools may take one part in this many of the context."""

_log = logging.getLogger(__name__)


async def fit_tools(generator: Generator, call: Call, context: int, notes: Notes) -> Call:
    """Return ``call`` with its tools, or without them where they take too much of ``context``.

    Clients send tools to every chat model, so that alone is never an error; it is noted.
    """
    if not call.tools:
        return call
    bare = replace(call, tools=())
    taken = len(await generator.render(call)) - len(await generator.render(bare))
    if taken <= context // TOOLS_SHARE:
        return call
    reason = f"they take {taken} of {context} tokens of context"
    _log.info("request %s: %d tools left out: %s", call.request_id, len(call.tools), reason)
    notes.add("tools", f"left out, {reason}")
    return bare


async def drop_old_turns(
    generator: Generator, call: Call, context: int, notes: Notes
) -> Call | None:
    """Return ``call`` from the earliest turn of the user on that fits ``context``, or ``None``.

    System messages stay. One token is left for the answer.
    """
    messages = call.messages
    cuts = [i for i, message in enumerate(messages) if message.role == "user" and i > 0]
    low, high = 0, len(cuts)
    while low < high:
        middle = (low + high) // 2
        ids = await generator.render(replace(call, messages=_from(messages, cuts[middle])))
        if len(ids) < context:
            high = middle
        else:
            low = middle + 1
    if low == len(cuts):
        return None
    kept = _from(messages, cuts[low])
    dropped = len(messages) - len(kept)
    notes.add("messages", f"the oldest {dropped} were dropped to fit {context} tokens of context")
    return replace(call, messages=kept)


def _from(messages: Sequence[Message], start: int) -> tuple[Message, ...]:
    system = [message for message in messages[:start] if message.role == "system"]
    return (*system, *messages[start:])
