"""The scheduler: waiting and running sequences → ``Plan``; ``Result`` → what changed.

Continuous batching with chunked prefill (Sarathi-Serve, OSDI 24): every step holds one token of
each running decode, then prefills that have begun, then new ones. When KV pages or slots run out, a
sequence of the lowest lane, among those the newest, is preempted and recomputed later.
"""

from math import isfinite

import msgspec

from turing_engine.plan.budget import Budget
from turing_engine.plan.gate import Gate
from turing_engine.plan.grammar import Grammar, Verdict
from turing_engine.plan.lanes import PATIENCE, LaneQueue
from turing_engine.plan.pace import Load, Pace
from turing_engine.plan.pages import PagePool
from turing_engine.plan.plan import Chunk, Plan, Result, Sampled, Start
from turing_engine.plan.prefix import PrefixCache
from turing_engine.plan.sequence import Sequence, Status
from turing_protocol.admission import Room, decide, pages_needed
from turing_protocol.errors import Code, TuringError
from turing_protocol.lanes import Lane
from turing_protocol.messages import Reason, TokenLogprobs
from turing_protocol.prefix import PAGE, page_hashes


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of the engine. Values that could stop progress are a ``ValueError``."""

    pages: int
    max_running: int
    """Slots: sequences that run at the same time."""
    max_waiting: int
    """A new sequence is refused while this many wait."""
    max_step_tokens: int
    chunk: dict[Lane, int]
    """Prefill tokens that one sequence of a lane may add to one step."""
    context: int
    """Longest prompt + output in tokens."""
    slo_itl: float = float("inf")
    """Seconds that a step may take while interactive sequences decode; prefill is cut to fit."""

    def __post_init__(self) -> None:
        """Check the sizes against each other."""
        for name in ("pages", "max_running", "max_waiting", "context"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        if self.max_step_tokens < self.max_running:
            raise ValueError("max_step_tokens must be at least max_running: every decode must fit")
        if any(self.chunk.get(lane, 0) < 1 for lane in Lane):
            raise ValueError("chunk must give every lane at least 1 token")
        if not self.slo_itl > 0:
            raise ValueError("slo_itl must be more than 0")


class Progress(msgspec.Struct):
    """New tokens of one sequence; ``sequence.finish`` is set when they are the last ones."""

    sequence: Sequence
    ids: list[int]
    logprobs: list[TokenLogprobs]
    failure: str = ""
    """Why the sequence ended without a finish reason; empty if it did not."""


class _Open(msgspec.Struct):
    """A plan that is being computed."""

    sequences: list[Sequence]
    load: Load
    began: float


class _Draft:
    """A plan in the making."""

    def __init__(self, tokens: int) -> None:
        self.left = tokens
        self.chunks: dict[Sequence, Chunk] = {}
        self.starts: list[Start] = []
        self.load = Load()
        self.prefills = 0
        self.paced = False
        """Whether running streams wait for the step, so that its length matters."""

    def add(self, sequence: Sequence, size: int) -> None:
        """Let ``sequence`` compute its next ``size`` tokens."""
        start = sequence.computed
        end = start + size
        tokens = sequence.tokens
        self.chunks[sequence] = Chunk(
            sequence.slot, start, tokens[start:end], sequence.pages, end == len(tokens)
        )
        self.left -= size
        self.load.add(start, size)

    def drop(self, sequence: Sequence) -> None:
        """Take ``sequence`` out again."""
        chunk = self.chunks.pop(sequence, None)
        if chunk is not None:
            self.left += len(chunk.ids)
            self.load.add(chunk.start, len(chunk.ids), -1)


class Scheduler:
    """Decides what each step computes. Pure: it does no I/O and is told the time.

    The cycle is ``plan`` → run → ``settle`` or ``fail``; more than one plan may be open, and a
    sequence is in one of them at most. Sequences are ranked by (level, arrival): the highest-ranked
    one that runs is never preempted for another, so every step makes progress.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self._pool = PagePool(config.pages)
        self._cache = PrefixCache(self._pool)
        self._budget = Budget(config.pages, config.context)
        self._pace = Pace(config.slo_itl)
        self._gate = Gate(config.slo_itl)
        self._waiting = LaneQueue()
        self._running: dict[Sequence, None] = {}
        self._slots = list(range(config.max_running - 1, -1, -1))
        self._stops: list[int] = []
        self._started: list[Sequence] = []
        self._open: dict[int, _Open] = {}
        self._arrivals = 0
        self._steps = 0
        self.preemptions = 0
        """Sequences that lost their pages to another since the start."""

    @property
    def running(self) -> int:
        """Sequences that hold a slot."""
        return len(self._running)

    @property
    def waiting(self) -> tuple[int, int, int]:
        """Waiting sequences per lane."""
        return self._waiting.counts()

    @property
    def waiting_tokens(self) -> int:
        """Tokens that waiting sequences have to compute, cached ones included."""
        return self._waiting.tokens

    @property
    def pages_used(self) -> int:
        """Pages held by sequences."""
        return self._pool.used

    @property
    def pages_cached(self) -> int:
        """Pages held only by the prefix cache."""
        return self._pool.cached

    @property
    def reserved_pages(self) -> int:
        """Pages that running and waiting sequences may grow to."""
        return self._budget.reserved

    @property
    def has_work(self) -> bool:
        """Whether any sequence waits or runs."""
        return bool(self._running) or len(self._waiting) > 0

    def add(self, sequence: Sequence, now: float, tokens_per_s: float = 0.0) -> None:
        """Queue a new sequence; ``tokens_per_s`` is the measured output, 0 where it is not known.

        One that has nothing to generate is finished on return (``finish`` is set) and takes part in
        nothing else. Errors: ``NEVER_FITS`` when its whole footprint exceeds the pool or the
        context, ``OVERLOADED`` or ``SHED`` with ``retry_ms`` when its lane has no room now,
        ``INVALID`` for no tokens.
        """
        if not sequence.tokens:
            raise TuringError(Code.INVALID, "the prompt has no tokens", param="prompt")
        if len(sequence.tokens) >= sequence.limit:
            sequence.finish = Reason.LENGTH
            sequence.status = Status.FINISHED
            sequence.started_at = sequence.finished_at = now
            return
        self._judge(sequence, tokens_per_s)
        self._budget.reserve(sequence.limit)
        self._arrivals += 1
        sequence.order = self._arrivals
        sequence.level = sequence.lane
        sequence.due = sequence.deadline if isfinite(sequence.deadline) else now + PATIENCE
        self._waiting.push(sequence, now)

    def abort(self, sequence: Sequence, now: float) -> None:
        """End a sequence without a finish reason, whatever it is doing; idempotent.

        If a plan with it is open, its pages and slot are given back when that plan settles or
        fails, because the runner may be writing to them.
        """
        if sequence.status is Status.FINISHED:
            return
        if sequence.status is Status.WAITING and not self._waiting.remove(sequence, now):
            return
        self._end(sequence, now)

    def expire(self, now: float) -> list[Sequence]:
        """Remove and return sequences that have not started and whose deadline is over."""
        late = self._waiting.expire(now)
        for sequence in late:
            self._end(sequence, now)
        return late

    def plan(self, now: float) -> Plan | None:
        """Return the next step, or ``None`` when nothing can run."""
        draft = _Draft(self._config.max_step_tokens)
        self._reserve_decodes(draft, now)
        self._pick_chunks(draft)
        self._start_waiting(draft, now)
        if not draft.chunks:
            return None
        self._restart(draft)
        self._steps += 1
        plan = Plan(self._steps, list(draft.chunks.values()), draft.starts, self._stops)
        self._stops = []
        self._open[plan.step] = _Open(list(draft.chunks), draft.load, now)
        for sequence in draft.chunks:
            sequence.in_step = True
        return plan

    def constrained(self, plan: Plan) -> list[tuple[int, Grammar, int]]:
        """Return what the samples of an open plan must match.

        Each is the index of a chunk, its grammar, and the tokens that its sequence has left.
        """
        return [
            (index, sequence.grammar, sequence.left)
            for index, sequence in enumerate(self._open[plan.step].sequences)
            if sequence.grammar is not None and plan.chunks[index].sample
        ]

    def drain_started(self) -> list[Sequence]:
        """Return the sequences that entered their first step since the last call."""
        started, self._started = self._started, []
        return started

    def settle(self, plan: Plan, result: Result, now: float) -> list[Progress]:
        """Apply what a plan computed; return the new tokens of each sequence that has any.

        A result that does not answer the plan is a ``ValueError`` and changes nothing.
        """
        _check_result(plan, result)
        progress: list[Progress] = []
        step = self._open.pop(plan.step)
        self._pace.measured(step.load, now - step.began)
        for sequence, chunk, row in zip(step.sequences, plan.chunks, result.rows, strict=True):
            sequence.in_step = False
            self._commit_pages(sequence, len(chunk.ids))
            if sequence.status is Status.FINISHED:
                self._release(sequence)
            elif chunk.sample:
                progress.append(self._accept(sequence, row, now))
        return progress

    def fail(self, plan: Plan, now: float) -> list[Sequence]:
        """End the sequences of a plan that raised; return those that were not aborted before."""
        failed: list[Sequence] = []
        for sequence in self._open.pop(plan.step).sequences:
            sequence.in_step = False
            if sequence.status is Status.FINISHED:
                self._release(sequence)
            else:
                self._end(sequence, now)
                failed.append(sequence)
        return failed

    def drain_page_events(self) -> tuple[list[tuple[bytes, bytes]], list[bytes]]:
        """Return changes of the prefix cache since the last call: (key, parent) stored, removed."""
        return self._cache.drain_events()

    def _judge(self, sequence: Sequence, tokens_per_s: float) -> None:
        pages = self._budget.need(sequence.limit)
        room = Room(
            self._config.pages,
            self._budget.reserved,
            len(self._waiting),
            self._config.max_waiting,
            self._waiting.tokens,
            tokens_per_s,
        )
        # One that goes on with an answer from elsewhere was admitted already: it may only wait.
        verdict = decide(room, Lane.INTERACTIVE if sequence.output_len else sequence.lane, pages)
        if verdict.code is not None:
            raise TuringError(verdict.code, verdict.message, retry_ms=verdict.retry_ms)

    # -- plan -------------------------------------------------------------------------------------

    def _reserve_decodes(self, draft: _Draft, now: float) -> None:
        ready = [sequence for sequence in self._running if not sequence.in_step]
        decodes = [sequence for sequence in ready if sequence.remaining == 1]
        while sum(map(_lacks_page, decodes)) > self._pool.available:
            victim = max(ready, key=_rank)
            ready.remove(victim)
            if victim in decodes:
                decodes.remove(victim)
            self._preempt(victim, draft, now)
        for sequence in decodes:
            self._grow_pages(sequence)
            draft.add(sequence, 1)
        draft.paced = any(sequence.lane is Lane.INTERACTIVE for sequence in decodes)

    def _pick_chunks(self, draft: _Draft) -> None:
        begun = [s for s in self._running if not s.in_step and s not in draft.chunks]
        for sequence in sorted(begun, key=_rank):
            size = self._chunk_size(sequence, draft)
            if size:
                draft.prefills += 1
                draft.add(sequence, size)

    def _start_waiting(self, draft: _Draft, now: float) -> None:
        while draft.left and (sequence := self._waiting.first(now)) is not None:
            if draft.paced and sequence.level is not Lane.INTERACTIVE and not self._gate.open(now):
                return
            self._acquire_prefix(sequence)
            size = self._chunk_size(sequence, draft)
            if not size or not self._preempt_if_short(sequence, draft, now):
                self._drop_pages(sequence)
                return
            self._grow_pages(sequence)
            self._start(sequence, draft, now)
            draft.prefills += 1
            draft.add(sequence, size)

    def _restart(self, draft: _Draft) -> None:
        """Let the runner forget draws that did not count: they are not among the tokens."""
        for sequence in draft.chunks:
            if sequence.retries:
                draft.starts.append(_start_of(sequence))

    def _acquire_prefix(self, sequence: Sequence) -> None:
        """Hold the cached pages that ``sequence`` begins with; its last token is never cached."""
        sequence.keys = page_hashes(sequence.root, sequence.tokens, known=sequence.keys)
        most = (len(sequence.tokens) - 1) // PAGE
        sequence.pages = self._cache.acquire(sequence.keys, most)
        sequence.computed = len(sequence.pages) * PAGE

    def _chunk_size(self, sequence: Sequence, draft: _Draft) -> int:
        """Return how many tokens of ``sequence`` the step takes.

        Chunks end at page boundaries, so that they do not depend on load. Only the first prefill of
        a step may do otherwise where less than a page is left, so that it always moves on; for the
        same reason it gets a page also where that takes longer than running streams should wait.
        """
        start = sequence.computed
        size = min(sequence.remaining, self._config.chunk[sequence.lane], draft.left)
        if draft.paced:
            fitting = self._pace.fit(draft.load, start, size)
            size = fitting if draft.prefills else max(fitting, min(size, PAGE))
        if size == sequence.remaining:
            return size
        aligned = (start + size) // PAGE * PAGE - start
        if aligned > 0:
            return aligned
        return 0 if draft.prefills else size

    def _grow_pages(self, sequence: Sequence) -> None:
        while _lacks_page(sequence):
            sequence.pages.append(self._cache.take())

    def _preempt_if_short(self, sequence: Sequence, draft: _Draft, now: float) -> bool:
        """Make room for a waiting sequence; ``False`` if all lower lanes cannot give enough."""
        need = pages_needed(len(sequence.tokens)) - len(sequence.pages)
        if self._slots and need <= self._pool.available:
            return True
        victims = [s for s in self._running if s.level > sequence.level and not s.in_step]
        victims.sort(key=_rank)
        most = self._pool.available + sum(len(victim.pages) for victim in victims)
        if need > most or not (self._slots or victims):
            return False
        while victims and not (self._slots and need <= self._pool.available):
            self._preempt(victims.pop(), draft, now)
        return bool(self._slots) and need <= self._pool.available

    def _preempt(self, sequence: Sequence, draft: _Draft, now: float) -> None:
        draft.drop(sequence)
        self._give_back_slot(sequence)
        self._drop_pages(sequence)
        sequence.status = Status.WAITING
        sequence.preemptions += 1
        self.preemptions += 1
        self._waiting.push(sequence, now)

    def _start(self, sequence: Sequence, draft: _Draft, now: float) -> None:
        self._waiting.remove(sequence, now)
        sequence.status = Status.RUNNING
        sequence.retries = False
        sequence.slot = self._slots.pop()
        self._running[sequence] = None
        if not sequence.preemptions:
            sequence.started_at = now
            sequence.cached = min(sequence.computed, sequence.prompt_len)
            self._started.append(sequence)
        draft.starts.append(_start_of(sequence))

    # -- settle -----------------------------------------------------------------------------------

    def _commit_pages(self, sequence: Sequence, size: int) -> None:
        """Count ``size`` more tokens as computed and make the pages they fill known."""
        first = sequence.computed // PAGE
        sequence.computed += size
        full = sequence.computed // PAGE
        if first == full:
            return
        keys = sequence.keys = page_hashes(sequence.root, sequence.tokens, known=sequence.keys)
        for index in range(first, full):
            parent = keys[index - 1] if index else sequence.root
            sequence.pages[index] = self._cache.store(keys[index], parent, sequence.pages[index])

    def _accept(self, sequence: Sequence, row: Sampled, now: float) -> Progress:
        progress = Progress(sequence, [], [])
        sequence.retries = False
        for index, token in enumerate(row.ids):
            if self._take(progress, token):
                progress.logprobs += row.logprobs[index : index + 1]
            if sequence.finish is not None or sequence.retries or progress.failure:
                break
        if not sequence.first_token_at and not sequence.retries:
            sequence.first_token_at = now
        if progress.ids:
            if sequence.lane is Lane.INTERACTIVE and sequence.last_token_at:
                self._gate.add(now, (now - sequence.last_token_at) / len(progress.ids))
            sequence.last_token_at = now
        if sequence.finish is not None or progress.failure:
            self._end(sequence, now)
        return progress

    def _take(self, progress: Progress, token: int) -> bool:
        """Append ``token`` unless a grammar is against it; return whether it was appended."""
        sequence = progress.sequence
        if sequence.grammar is not None:
            verdict = sequence.grammar.accept(token, sequence.left - 1)
            if verdict in (Verdict.DONE, Verdict.END):
                sequence.finish = Reason.STOP
            elif verdict is Verdict.RETRY:
                # The last token is computed once more, so that its logits can be sampled again.
                sequence.retries = True
                sequence.computed -= 1
            elif verdict is Verdict.BROKEN:
                progress.failure = sequence.grammar.error
            if verdict not in (Verdict.GO, Verdict.DONE):
                return False
        sequence.tokens.append(token)
        progress.ids.append(token)
        if sequence.finish is None:
            sequence.finish = _finish_reason(sequence)
        return True

    # -- ends -------------------------------------------------------------------------------------

    def _end(self, sequence: Sequence, now: float) -> None:
        sequence.status = Status.FINISHED
        sequence.finished_at = now
        if not sequence.in_step:
            self._release(sequence)

    def _release(self, sequence: Sequence) -> None:
        self._budget.release(sequence.limit)
        if sequence.slot >= 0:
            self._give_back_slot(sequence)
        self._drop_pages(sequence)

    def _give_back_slot(self, sequence: Sequence) -> None:
        del self._running[sequence]
        self._stops.append(sequence.slot)
        self._slots.append(sequence.slot)
        sequence.slot = -1

    def _drop_pages(self, sequence: Sequence) -> None:
        self._cache.release(sequence.pages)
        sequence.pages = []
        sequence.computed = 0


def _rank(sequence: Sequence) -> tuple[Lane, int]:
    return sequence.level, sequence.order


def _lacks_page(sequence: Sequence) -> bool:
    return len(sequence.pages) * PAGE < len(sequence.tokens)


def _start_of(sequence: Sequence) -> Start:
    prompt_len = sequence.prompt_len
    return Start(
        slot=sequence.slot,
        sampling=sequence.sampling,
        prompt=sequence.tokens[:prompt_len],
        output=sequence.tokens[prompt_len:],
        banned=_banned(sequence),
    )


def _banned(sequence: Sequence) -> list[int]:
    # A grammar rules stop ids out by itself, and knows where nothing else is left.
    if sequence.sampling.min_tokens == 0 or sequence.grammar is not None:
        return []
    return sorted(sequence.stop_ids)


def _finish_reason(sequence: Sequence) -> Reason | None:
    if sequence.grammar is None and sequence.tokens[-1] in sequence.stop_ids:
        return Reason.STOP
    return Reason.LENGTH if len(sequence.tokens) >= sequence.limit else None


def _check_result(plan: Plan, result: Result) -> None:
    if result.step != plan.step or len(result.rows) != len(plan.chunks):
        raise ValueError(f"result of step {result.step} does not answer plan {plan.step}")
    for chunk, row in zip(plan.chunks, result.rows, strict=True):
        if chunk.sample and not row.ids:
            raise ValueError(f"slot {chunk.slot} came back without a token in step {plan.step}")
