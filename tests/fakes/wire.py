"""Ready-made wire structs for tests that need some engine, whichever."""

from turing_engine.run.scripted import EOS, VOCAB_SIZE, scripted_files
from turing_protocol.messages import (
    MAJOR,
    MINOR,
    Counters,
    Limits,
    ModelInfo,
    State,
    Stats,
    Welcome,
)

MODEL = ModelInfo(
    name="fake",
    digest="sha256:" + "0" * 64,
    architecture="formula",
    context=4096,
    vocab_size=VOCAB_SIZE,
    eos_ids=(EOS,),
    bos_id=None,
    add_bos=False,
    parameters=0,
    size_bytes=0,
    quantization="none",
    kv_bytes_per_token=1,
    modified=0.0,
)
ASSETS = scripted_files()
"""A tokenizer with one token per byte, and a ChatML template."""
LIMITS = Limits(context=4096, pages_total=1000, max_running=64, max_waiting=256)


def make_stats(
    epoch: int = 1,
    *,
    engine: str = "e0",
    state: State = State.READY,
    pages_total: int = LIMITS.pages_total,
    pages_used: int = 0,
    reserved_pages: int = 0,
    running: int = 0,
    waiting: tuple[int, int, int] = (0, 0, 0),
    seq: int = 1,
    counters: Counters | None = None,
) -> Stats:
    """Return a snapshot of an idle engine, but for what is given."""
    return Stats(
        epoch=epoch,
        seq=seq,
        engine=engine,
        state=state,
        pages_total=pages_total,
        pages_used=pages_used,
        pages_cached=0,
        running=running,
        waiting=waiting,
        waiting_tokens=0,
        step_ms=0.0,
        step_age_ms=0.0,
        tokens_per_s=0.0,
        ttft_avg_ms=0.0,
        ttft_p99_ms=0.0,
        itl_avg_ms=0.0,
        itl_p99_ms=0.0,
        counters=counters or Counters(),
        reserved_pages=reserved_pages,
    )


def make_welcome(
    epoch: int = 1,
    *,
    engine: str = "e0",
    major: int = MAJOR,
    limits: Limits = LIMITS,
    assets: dict[str, str] | None = None,
    adapters: tuple[str, ...] = (),
) -> Welcome:
    """Return the Welcome of an engine that serves ``MODEL``."""
    return Welcome(
        major, MINOR, epoch, engine, "tcp://*:5556", MODEL, limits, assets or {}, adapters
    )
