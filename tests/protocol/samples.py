"""One full example of every message, and a hypothesis strategy for any of them.

``python tests/protocol/samples.py >tests/golden/wire-1.N.json`` freezes the bytes of a new minor.
"""

import enum
import json
import sys
import types
import typing
from collections.abc import Callable
from typing import Any

import msgspec
from hypothesis import strategies as st

from turing_protocol.codec import decode_from_engine, decode_state, decode_to_engine, encode
from turing_protocol.errors import Code
from turing_protocol.lanes import Lane
from turing_protocol.messages import (
    Abort,
    Asset,
    Counters,
    Done,
    Drain,
    DropAdapter,
    Failed,
    Fetch,
    Finished,
    FromEngine,
    Hello,
    Limits,
    LoadAdapter,
    ModelInfo,
    PageEvents,
    Ping,
    Pong,
    Reason,
    Refused,
    Started,
    State,
    StateMessage,
    Stats,
    Step,
    StreamEvent,
    Submit,
    Timings,
    ToEngine,
    TokenLogprobs,
    Tokens,
    Welcome,
)
from turing_protocol.sampling import Constraint, Knobs, Sampling

Message = ToEngine | FromEngine | StateMessage
Decode = Callable[[bytes], Message]

MODEL = ModelInfo(
    name="SmolLM2",
    digest="sha256:00ff",
    architecture="llama",
    context=8192,
    vocab_size=49152,
    eos_ids=(2, 0),
    bos_id=1,
    add_bos=False,
    parameters=134515008,
    size_bytes=98362432,
    quantization="Q4_1",
    kv_bytes_per_token=46080,
    modified=1731628800.5,
    aliases=("smol",),
    embedding_length=576,
    format="gguf",
)
LIMITS = Limits(
    context=4096,
    pages_total=512,
    max_running=32,
    max_waiting=256,
    sparsity_levels=(0.25, 0.5),
    kv_formats=("plain", "int8"),
    default_kv="int8",
    default_sparsity=0.25,
    max_draft_tokens=8,
    constraints=("json_schema", "regex"),
    device="cuda",
)
SAMPLING = Sampling(
    max_tokens=64,
    min_tokens=2,
    temperature=0.7,
    top_k=40,
    top_p=0.9,
    min_p=0.05,
    repetition_penalty=1.1,
    frequency_penalty=0.5,
    presence_penalty=-0.5,
    seed=-(2**63),
    logit_bias=((5, -100.0), (7, 2.5)),
    stop_ids=(2, 13),
    ignore_eos=True,
    logprobs=3,
)
COUNTERS = Counters(
    prompt_tokens=1,
    cached_tokens=2,
    output_tokens=3,
    aborted_tokens=4,
    requests=5,
    finished=6,
    aborted=7,
    failed=8,
    shed=9,
    preemptions=10,
    steps=11,
    bad_frames=12,
)

EVENTS: list[StreamEvent] = [
    Started(
        rid=9,
        prompt=12,
        cached=64,
        sparsity=0.5,
        svd_kv=1,
        draft_tokens=4,
        warnings=("uniqueItems is ignored",),
    ),
    Tokens(
        rid=9,
        ids=b"\x01\x00\x00\x00\xff\xbf\x00\x00",
        logprobs=(TokenLogprobs(logprob=-0.25, top_ids=b"\x01\x00\x00\x00", top=b"\x00\x00\x80?"),),
    ),
    Finished(
        rid=9,
        reason=Reason.LENGTH,
        prompt=12,
        cached=0,
        output=2,
        timings=Timings(queue_ms=0.5, prefill_ms=10.25, decode_ms=99.0),
        warnings=("closed early",),
    ),
    Failed(rid=10, code=Code.OVERLOADED, message="full", retry_ms=2000, param="lane"),
]

SAMPLES: dict[str, Message] = {
    "Hello": Hello(major=1, minor=0, gateway="g-1"),
    "Submit": Submit(
        rid=7,
        epoch=2**63,
        prompt=b"\x01\x00\x00\x00",
        sampling=SAMPLING,
        lane=Lane.BATCH,
        adapter="sql",
        knobs=Knobs(sparsity=0.5, svd_kv=1, draft_tokens=0),
        constraint=Constraint(kind="json_schema", text='{"type":"object"}', strict=True),
        deadline_ms=1500,
        prior=b"\x02\x00\x00\x00",
        trace="00-1-1-01",
        salt="tenant",
    ),
    "Abort": Abort(rid=7),
    "Ping": Ping(sent=12.5),
    "Fetch": Fetch(op=1, names=("tokenizer.json", "chat_template")),
    "LoadAdapter": LoadAdapter(op=2, name="sql", source="/adapters/sql", pin=True),
    "DropAdapter": DropAdapter(op=3, name="sql"),
    "Drain": Drain(op=4, seconds=30.0),
    "Welcome": Welcome(
        major=1,
        minor=0,
        epoch=2**63,
        engine="e0",
        state_endpoint="tcp://*:5556",
        model=MODEL,
        limits=LIMITS,
        assets={"tokenizer.json": "ab12"},
        adapters=("sql",),
    ),
    "Refused": Refused(code=Code.VERSION, message="major 2"),
    "Step": Step(step=1234, events=[*EVENTS]),
    "Pong": Pong(sent=12.5),
    "Done": Done(op=2, ok=False, message="no such file"),
    "Asset": Asset(op=1, name="tokenizer.json", data=b"{}"),
    "Stats": Stats(
        epoch=2**63,
        seq=5,
        engine="e0",
        state=State.READY,
        pages_total=512,
        pages_used=100,
        pages_cached=20,
        running=3,
        waiting=(1, 2, 3),
        waiting_tokens=2048,
        step_ms=12.5,
        step_age_ms=3.0,
        tokens_per_s=256.0,
        ttft_avg_ms=20.0,
        ttft_p99_ms=40.0,
        itl_avg_ms=8.0,
        itl_p99_ms=16.0,
        counters=COUNTERS,
        reserved_pages=130,
        memory_used=2**33,
        memory_total=2**34,
    ),
    "PageEvents": PageEvents(
        epoch=2**63,
        seq=6,
        stored=[(b"\x01" * 16, b"\x00" * 16)],
        removed=[b"\x02" * 16],
        cleared=True,
    ),
}

DIRECTIONS: tuple[tuple[Any, Decode], ...] = (
    (ToEngine, decode_to_engine),
    (FromEngine, decode_from_engine),
    (StateMessage, decode_state),
)


def decoder(message: Message) -> Decode:
    """Return the decoder of the direction that ``message`` belongs to."""
    return next(decode for union, decode in DIRECTIONS if isinstance(message, union))


def _struct(cls: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(cls)
    return st.builds(cls, **{name: anything(hints[name]) for name in cls.__struct_fields__})


def anything(hint: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for every value that the wire type ``hint`` can carry."""
    plain: dict[Any, st.SearchStrategy[Any]] = {
        int: st.integers(-(2**63), 2**64 - 1),
        float: st.floats(allow_nan=False),
        str: st.text(max_size=8),
        bytes: st.binary(max_size=8),
        bool: st.booleans(),
        types.NoneType: st.none(),
    }
    if hint in plain:
        return plain[hint]
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return st.one_of([anything(argument) for argument in arguments])
    if origin is list:
        return st.lists(anything(arguments[0]), max_size=3)
    if origin is dict:
        return st.dictionaries(anything(arguments[0]), anything(arguments[1]), max_size=3)
    if origin is tuple and arguments[-1] is Ellipsis:
        return st.lists(anything(arguments[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*[anything(argument) for argument in arguments])
    if issubclass(hint, enum.Enum):
        return st.sampled_from(hint)
    return _struct(hint)


MESSAGES: st.SearchStrategy[Message] = st.one_of([anything(union) for union, _ in DIRECTIONS])

if __name__ == "__main__":
    frames = {name: encode(message).hex() for name, message in SAMPLES.items()}
    sys.stdout.write(json.dumps(frames, indent=1) + "\n")
