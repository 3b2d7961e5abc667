"""Every struct that crosses the wire between gateways and engines.

Structs are arrays with an integer tag. To change one: append a field with a default and raise
``MINOR``; anything else raises ``MAJOR``. Tags of the two directions and of the published state do
not overlap, so a stray message fails decoding.
"""

import enum

import msgspec

from turing_protocol.errors import Code
from turing_protocol.lanes import Lane
from turing_protocol.sampling import Constraint, Knobs, Sampling

MAJOR = 1
MINOR = 2


class State(enum.IntEnum):
    """What an engine says of itself."""

    LOADING = 0
    READY = 1
    DRAINING = 2
    BROKEN = 3


class Reason(enum.IntEnum):
    """Why a sequence ended."""

    STOP = 0
    """An end-of-sequence or stop token, which is the last id that was sent; of a constrained
    sequence, whose ids are all part of the answer, the end of the answer."""
    LENGTH = 1
    """``max_tokens`` or the end of the context."""


class ModelInfo(msgspec.Struct, frozen=True, array_like=True):
    """Facts of the served model, read from its files."""

    name: str
    digest: str
    """``sha256:…`` of the weight file, or of the sorted digests of a folder's files."""
    architecture: str
    context: int
    """Longest sequence in tokens that the model was trained for."""
    vocab_size: int
    eos_ids: tuple[int, ...]
    bos_id: int | None
    add_bos: bool
    """Whether a plain text prompt starts with ``bos_id``."""
    parameters: int
    size_bytes: int
    quantization: str
    kv_bytes_per_token: int
    modified: float
    """Unix time of the weight file."""
    aliases: tuple[str, ...] = ()
    embedding_length: int = 0
    format: str = ""
    """Kind of the weight files: ``gguf`` or ``safetensors``; empty before wire 1.1."""


class Limits(msgspec.Struct, frozen=True, array_like=True):
    """What this engine can take and which optional controls it has loaded."""

    context: int
    """Longest prompt + output in tokens: the smaller of model, page pool and ``--max-context``."""
    pages_total: int
    max_running: int
    max_waiting: int
    sparsity_levels: tuple[float, ...] = ()
    kv_formats: tuple[str, ...] = ("plain",)
    """``plain`` is 16 or 32 bit, ``int8`` is what ``X-Turing-SVD-KV: 1`` selects."""
    default_kv: str = "plain"
    default_sparsity: float = 0.0
    max_draft_tokens: int = 0
    constraints: tuple[str, ...] = ()
    """Kinds of ``Constraint`` that can be compiled here."""
    device: str = "cpu"
    """Where weights and pages are: ``cpu`` or ``cuda``."""


class Hello(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """First message after every (re)connect; the engine drops what this identity held before."""

    major: int
    minor: int
    gateway: str


class Submit(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """One sequence to generate. ``prompt`` and ``prior`` are packed little-endian int32 ids.

    ``rid`` counts up per gateway and is never reused. ``prior`` are tokens that the client already
    has: generation continues behind them and ``max_tokens`` counts them.
    """

    rid: int
    epoch: int
    prompt: bytes
    sampling: Sampling
    lane: Lane = Lane.INTERACTIVE
    adapter: str = ""
    knobs: Knobs = Knobs()
    constraint: Constraint | None = None
    deadline_ms: int = 0
    prior: bytes = b""
    trace: str = ""
    salt: str = ""
    """Tenant salt of the page hashes, set by the gateway."""


class Abort(msgspec.Struct, frozen=True, array_like=True, tag=3, gc=False):
    """Stop ``rid`` and free its pages; idempotent, not answered."""

    rid: int


class Ping(msgspec.Struct, frozen=True, array_like=True, tag=4, gc=False):
    """Renews the gateway's lease; ``sent`` comes back in the ``Pong``."""

    sent: float


class Fetch(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """Ask for assets by name; each comes back as one ``Asset``."""

    op: int
    names: tuple[str, ...]


class LoadAdapter(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """Register a LoRA adapter; answered by ``Done``, idempotent by name."""

    op: int
    name: str
    source: str
    pin: bool = False


class DropAdapter(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """Forget an adapter; answered by ``Done``."""

    op: int
    name: str


class Drain(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """Take no new work and exit when the running work is done or ``seconds`` are over."""

    op: int
    seconds: float


ToEngine = Hello | Submit | Abort | Ping | Fetch | LoadAdapter | DropAdapter | Drain


class Welcome(msgspec.Struct, frozen=True, array_like=True, tag=32):
    """Answer to ``Hello``. ``epoch`` is random per process life.

    ``state_endpoint`` is where the PUB socket is; host ``*`` means the host that was dialled.
    ``assets`` maps each name to the SHA-256 of its bytes.
    """

    major: int
    minor: int
    epoch: int
    engine: str
    state_endpoint: str
    model: ModelInfo
    limits: Limits
    assets: dict[str, str]
    adapters: tuple[str, ...] = ()


class Refused(msgspec.Struct, frozen=True, array_like=True, tag=33):
    """The version or a message was not understood; the link stops."""

    code: Code
    message: str


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Log-probability of one sampled token in the raw distribution, and its alternatives.

    ``top_ids`` are packed int32, ``top`` packed float32, most likely first.
    """

    logprob: float
    top_ids: bytes = b""
    top: bytes = b""


class Timings(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Measured durations of one sequence in milliseconds."""

    queue_ms: float = 0.0
    prefill_ms: float = 0.0
    decode_ms: float = 0.0


class Started(msgspec.Struct, frozen=True, array_like=True, tag=40):
    """The sequence entered its first step: from now on it can only end or fail.

    The three controls are as the engine applies them.
    """

    rid: int
    prompt: int
    cached: int
    sparsity: float = 0.0
    svd_kv: int = 0
    draft_tokens: int = 0
    warnings: tuple[str, ...] = ()
    """What is known now of why the answer may not be what was asked for."""


class Tokens(msgspec.Struct, frozen=True, array_like=True, tag=41, gc=False):
    """New tokens of a sequence; ``ids`` are packed int32."""

    rid: int
    ids: bytes
    logprobs: tuple[TokenLogprobs, ...] = ()


class Finished(msgspec.Struct, frozen=True, array_like=True, tag=42):
    """The sequence ended. ``output`` counts every generated token, ``prior`` included."""

    rid: int
    reason: Reason
    prompt: int
    cached: int
    output: int
    timings: Timings
    warnings: tuple[str, ...] = ()
    """Those of ``Started``, and what came up since."""


class Failed(msgspec.Struct, frozen=True, array_like=True, tag=43):
    """The sequence will not be (or stay) served."""

    rid: int
    code: Code
    message: str
    retry_ms: int = 0
    param: str | None = None


StreamEvent = Started | Tokens | Finished | Failed


class Step(msgspec.Struct, frozen=True, array_like=True, tag=34):
    """All events of one engine step for one gateway, in order."""

    step: int
    events: list[StreamEvent]


class Pong(msgspec.Struct, frozen=True, array_like=True, tag=35, gc=False):
    """Answer to ``Ping``."""

    sent: float


class Done(msgspec.Struct, frozen=True, array_like=True, tag=36):
    """Outcome of a control operation."""

    op: int
    ok: bool
    message: str = ""


class Asset(msgspec.Struct, frozen=True, array_like=True, tag=37):
    """One asset's bytes, whole."""

    op: int
    name: str
    data: bytes


FromEngine = Welcome | Refused | Step | Pong | Done | Asset


class Counters(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Totals since the engine started; they never go down within an epoch."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    aborted_tokens: int = 0
    """Output tokens of sequences that were aborted or failed; contained in ``output_tokens``."""
    requests: int = 0
    finished: int = 0
    aborted: int = 0
    failed: int = 0
    shed: int = 0
    preemptions: int = 0
    steps: int = 0
    bad_frames: int = 0


class Stats(msgspec.Struct, frozen=True, array_like=True, tag=64):
    """A whole snapshot of an engine, published every 100 ms; any of them may be lost."""

    epoch: int
    seq: int
    engine: str
    state: State
    pages_total: int
    pages_used: int
    """Pages held by sequences; pages kept only by the prefix cache count as free."""
    pages_cached: int
    running: int
    waiting: tuple[int, int, int]
    """Waiting sequences per lane."""
    waiting_tokens: int
    step_ms: float
    """Mean duration of recent steps."""
    step_age_ms: float
    """Age of the running step; 0 between steps. Large means stuck, silence means dead."""
    tokens_per_s: float
    ttft_avg_ms: float
    ttft_p99_ms: float
    itl_avg_ms: float
    itl_p99_ms: float
    counters: Counters
    reserved_pages: int = 0
    """Pages that running and waiting sequences may still grow to (their whole footprint)."""
    memory_used: int = 0
    memory_total: int = 0
    """Bytes on the device (RSS and RAM on a CPU)."""


class PageEvents(msgspec.Struct, frozen=True, array_like=True, tag=65):
    """Changes of the prefix cache; a gap in ``seq`` empties the reader's index."""

    epoch: int
    seq: int
    stored: list[tuple[bytes, bytes]]
    """(page key, parent key) in order of storing."""
    removed: list[bytes]
    cleared: bool = False


StateMessage = Stats | PageEvents

STATS_TOPIC = b"s"
PAGES_TOPIC = b"k"
