"""Everything that can be set for one gateway process, as one frozen value."""

from pathlib import Path

import msgspec


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """The flags of ``turing-gateway``; each field is the flag of the same name."""

    engines: tuple[str, ...] = ()
    """Addresses of engines: ``tcp://host:port``, ``ipc://path``, ``dns://name:port``."""
    host: str = "127.0.0.1"
    port: int = 8000
    """0 takes a free one, which the first log line tells."""
    api_key: str | None = None
    render_only: bool = False
    """Serve tokenizer, templates and render endpoints, and generate nothing."""
    assets: Path | None = None
    """A model's folder from ``turing-engine --write-assets``; rendering needs no engine then."""
    max_body_bytes: int = 8 << 20
    grace_seconds: float = 30.0
    """How long running requests may take after the first stop signal."""
    metrics_alias: str | None = None
    """``vllm`` repeats the families that llm-d's picker reads under its names."""
    exit_with_parent: bool = False
    log_level: str = "info"
    log_json: bool = False
