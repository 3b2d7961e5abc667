"""The life of one engine connection as a pure state machine; ``sockets`` does what it says.

DIALING → GREETING (Hello sent) → READY (only a Welcome leads here) → DRAINING | LOST → DIALING.
Every method takes the monotonic time where it matters and returns the actions to perform, in order.
"""

from collections.abc import Sequence

import msgspec

from turing_gateway.fleet.view import EngineView, LinkState
from turing_protocol.codec import compatible
from turing_protocol.errors import Code
from turing_protocol.messages import (
    MAJOR,
    MINOR,
    Abort,
    Asset,
    Done,
    Failed,
    Finished,
    FromEngine,
    Hello,
    Ping,
    Pong,
    Refused,
    State,
    Stats,
    Step,
    StreamEvent,
    Submit,
    ToEngine,
    Welcome,
)

TICK = 0.1
"""Seconds between two calls of ``Link.tick``."""
SILENCE = 1.0
"""Seconds without Stats after which an engine counts as dead or hung."""
PING = 1.0
PONG_TIMEOUT = 5.0
"""Seconds without a Pong: state still arrives, but the request socket is dead."""
WELCOME_TIMEOUT = 5.0
BACKOFF_FIRST = 0.05
BACKOFF_MOST = 1.0
BACKOFF_REFUSED = 10.0
"""Seconds until an engine that refused us, or speaks another version, is asked again."""


ENDS = (Finished, Failed)
"""The events that end a stream."""


class Dial(msgspec.Struct, frozen=True):
    """Open a request socket to the endpoint."""


class Hangup(msgspec.Struct, frozen=True):
    """Close every socket and forget what was asked through them."""


class Send(msgspec.Struct, frozen=True):
    """Send ``message`` on the request socket."""

    message: ToEngine


class Subscribe(msgspec.Struct, frozen=True):
    """Listen to the state socket that the engine named."""

    endpoint: str


class Deliver(msgspec.Struct, frozen=True):
    """Hand each event to the stream of its rid."""

    events: Sequence[StreamEvent]


class Answer(msgspec.Struct, frozen=True):
    """Settle the control operation that ``message`` answers."""

    message: Done | Asset


Action = Dial | Hangup | Send | Subscribe | Deliver | Answer


class Link:
    """One engine connection. Starts LOST and due for dialling; the first ``tick`` dials."""

    def __init__(self, endpoint: str, gateway: str, *, silence: float = SILENCE) -> None:
        self.view = EngineView(endpoint=endpoint)
        self.unanswered = False
        """Whether the last loss is only that the engine did not greet: it may still be loading."""
        self._gateway = gateway
        self._silence = silence
        self._open: dict[int, int] = {}
        """Open rid → its pages."""
        self._fresh: set[int] = set()
        """Open rids that no Stats can have counted yet."""
        self._since = 0.0
        """When the state was entered."""
        self._ticked: float | None = None
        self._redial_at = float("-inf")
        self._backoff = BACKOFF_FIRST
        self._pinged = 0.0
        self._ponged = 0.0

    @property
    def done(self) -> bool:
        """Whether the link was retired and has nothing left to carry."""
        return self.view.leaving and not self._open

    def tick(self, now: float) -> list[Action]:
        """Let time pass: dial when due, ping, and notice silence."""
        self._forgive_own_stall(now)
        view = self.view
        if view.state == LinkState.LOST:
            return self._dial(now)
        if view.state == LinkState.GREETING and now - self._since > WELCOME_TIMEOUT:
            lost = self._lose(now, f"no Welcome for {WELCOME_TIMEOUT:g} s")
            self.unanswered = True
            return lost
        if not view.alive:
            return []
        if now - view.heard > self._silence:
            return self._lose(now, f"no Stats for {self._silence:g} s")
        if now - self._ponged > PONG_TIMEOUT:
            return self._lose(now, f"no Pong for {PONG_TIMEOUT:g} s")
        return self._ping(now)

    def connected(self, now: float) -> list[Action]:
        """The request socket is up: greet."""
        if self.view.state != LinkState.DIALING:
            return []
        self._enter(now, LinkState.GREETING)
        return [Send(Hello(MAJOR, MINOR, self._gateway))]

    def disconnected(self, now: float, why: str) -> list[Action]:
        """The request socket is down, or cannot be used any more for the reason ``why``."""
        if self.view.state == LinkState.LOST:
            return []
        return self._lose(now, why)

    def received(self, now: float, message: FromEngine) -> list[Action]:
        """Take one message of the request socket."""
        if isinstance(message, Step):
            return self._step(now, message.events)
        if isinstance(message, Pong):
            self._ponged, self.view.rtt = now, now - message.sent
            return []
        if isinstance(message, Welcome):
            return self._welcome(now, message)
        if isinstance(message, Refused):
            self._backoff = BACKOFF_REFUSED
            return self.disconnected(now, f"refused: {message.message}")
        return [Answer(message)]

    def published(self, now: float, stats: Stats) -> list[Action]:
        """Take one Stats of the state socket; it never revives a lost link."""
        view = self.view
        if not view.alive:
            return []
        if stats.epoch != view.epoch:
            return self._lose(now, "the engine restarted")
        view.stats, view.heard = stats, now
        self._fresh.clear()
        view.fresh_pages = view.fresh_streams = 0
        if stats.state == State.DRAINING and view.state == LinkState.READY:
            self._enter(now, LinkState.DRAINING)
        return []

    def submit(self, submit: Submit, pages: int) -> list[Action]:
        """Send a sequence whose footprint is ``pages``; ``submit.rid`` was never used before.

        Where that is not possible now, the stream fails at once instead.
        """
        view = self.view
        if view.state != LinkState.READY or view.leaving:
            return [Deliver([self._refusal(submit.rid)])]
        self._open[submit.rid] = pages
        self._fresh.add(submit.rid)
        view.own_streams += 1
        view.own_pages += pages
        view.fresh_streams += 1
        view.fresh_pages += pages
        return [Send(msgspec.structs.replace(submit, epoch=view.epoch))]

    def abort(self, rid: int) -> list[Action]:
        """Stop a sequence; nothing is delivered for it any more. Ended ones are no concern."""
        if rid not in self._open:
            return []
        self._close(rid)
        return [Send(Abort(rid))]

    def retire(self, now: float) -> None:
        """Take no new work; the link is ``done`` after its last stream."""
        self.view.leaving = True
        if self.view.state == LinkState.READY:
            self._enter(now, LinkState.DRAINING)

    def _enter(self, now: float, state: LinkState) -> None:
        self.view.state = state
        self._since = now

    def _dial(self, now: float) -> list[Action]:
        if now < self._redial_at or self.view.leaving:
            return []
        self._enter(now, LinkState.DIALING)
        return [Dial()]

    def _ping(self, now: float) -> list[Action]:
        if now - self._pinged < PING:
            return []
        self._pinged = now
        return [Send(Ping(now))]

    def _welcome(self, now: float, welcome: Welcome) -> list[Action]:
        view = self.view
        if view.alive and welcome.epoch != view.epoch:
            return self._lose(now, "the engine restarted")
        if view.state != LinkState.GREETING:
            return []
        if not compatible(welcome.major):
            self._backoff = BACKOFF_REFUSED
            return self._lose(now, f"speaks wire version {welcome.major}, not {MAJOR}")
        self._learn(welcome)
        view.heard = self._ponged = now
        self._backoff = BACKOFF_FIRST
        self._enter(now, LinkState.DRAINING if view.leaving else LinkState.READY)
        return [Subscribe(welcome.state_endpoint), *self._ping(now)]

    def _learn(self, welcome: Welcome) -> None:
        view = self.view
        view.why, view.stats = "", None
        view.name, view.epoch = welcome.engine, welcome.epoch
        view.info, view.limits = welcome.model, welcome.limits
        view.assets, view.adapters = welcome.assets, welcome.adapters

    def _lose(self, now: float, why: str) -> list[Action]:
        self.view.why = why
        self.unanswered = False
        self._redial_at = now + self._backoff
        self._backoff = max(self._backoff, min(self._backoff * 2, BACKOFF_MOST))
        self._enter(now, LinkState.LOST)
        failed = [self._refusal(rid) for rid in self._open]
        for event in failed:
            self._close(event.rid)
        return [Hangup(), Deliver(failed)] if failed else [Hangup()]

    def _refusal(self, rid: int) -> Failed:
        view = self.view
        name = view.name or view.endpoint
        if not view.alive:
            return Failed(rid, Code.ENGINE_LOST, f"engine {name} was lost: {view.why}")
        return Failed(rid, Code.DRAINING, f"engine {name} takes no new work")

    def _step(self, now: float, events: Sequence[StreamEvent]) -> list[Action]:
        """Pass on the events of open rids. A lost epoch leaves none open, so none of it slips by.

        An engine says ENGINE_LOST when it dropped what it held for us: greet it anew.
        """
        opened, passed, dropped = self._open, [], False
        for event in events:
            if event.rid in opened:
                passed.append(event)
                if isinstance(event, ENDS):
                    self._close(event.rid)
                    dropped |= isinstance(event, Failed) and event.code == Code.ENGINE_LOST
        actions: list[Action] = [Deliver(passed)] if passed else []
        return actions + self._lose(now, "the engine dropped this gateway") if dropped else actions

    def _close(self, rid: int) -> None:
        pages = self._open.pop(rid)
        view = self.view
        view.own_streams -= 1
        view.own_pages -= pages
        if rid in self._fresh:
            self._fresh.remove(rid)
            view.fresh_streams -= 1
            view.fresh_pages -= pages

    def _forgive_own_stall(self, now: float) -> None:
        """Silence counts only while this process was listening itself."""
        late = now - self._ticked - TICK if self._ticked is not None else 0.0
        if late > TICK:
            self.view.heard = min(now, self.view.heard + late)
            self._ponged = min(now, self._ponged + late)
        self._ticked = now
