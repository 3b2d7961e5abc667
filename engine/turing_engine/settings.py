"""Everything that can be set for one engine process, as one frozen value."""

import difflib
import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from turing_protocol.errors import Code, TuringError
from turing_protocol.lanes import CHUNK, Lane

_UNITS = {"": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
_UNITS |= {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.IGNORECASE)
_TCP = re.compile(r"tcp://(?P<host>.+):(?P<port>\d+|\*)")


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The flags of ``turing-engine``; each field is the flag of the same name."""

    model: str | None = None
    """None is the default model."""
    name: str
    served_name: str | None = None
    bind: str = "tcp://127.0.0.1:5555"
    state_bind: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    quantize: str = "none"
    runner: str = "auto"
    threads: int = 0
    max_batch_size: int = 32
    max_waiting: int = 1024
    max_step_tokens: int = 2048
    prefill_chunk: int = 0
    slo_itl_ms: float = 50.0
    max_context: int = 0
    kv_memory: int = 2 << 30
    """Bytes."""
    pages: int = 0
    drain_seconds: float = 30.0
    exit_with_parent: bool = False
    log_level: str = "info"
    log_json: bool = False
    hf_home: Path | None = None
    write_assets: Path | None = None
    """Write what gateways need of the model into this folder, and serve nothing."""

    @property
    def state_endpoint(self) -> str:
        """The address to bind the state socket to."""
        return self.state_bind or default_state_bind(self.bind)

    def chunk(self, context: int) -> dict[Lane, int]:
        """Return the prompt tokens that one sequence of each lane may add to a step."""
        if self.prefill_chunk == 0:
            return CHUNK
        return dict.fromkeys(Lane, self.prefill_chunk if self.prefill_chunk > 0 else context)

    def step_tokens(self, context: int) -> int:
        """Return the most tokens of one step; without chunking any prompt fits beside decodes."""
        if self.prefill_chunk < 0:
            return max(self.max_step_tokens, context + self.max_batch_size)
        return self.max_step_tokens


def parse_size(text: str) -> int:
    """Return the bytes that ``text`` names: ``1073741824``, ``512MiB``, ``2GB``; ValueError."""
    match = _SIZE.fullmatch(text.strip())
    unit = _UNITS.get(match[2].upper()) if match else None
    if match is None or unit is None:
        raise ValueError(f"{text!r} is not a size: write 512MiB, 2GiB or a number of bytes")
    return int(float(match[1]) * unit)


def default_state_bind(bind: str) -> str:
    """Return where the state socket goes by default: beside an ipc path, or one port higher."""
    tcp = _TCP.fullmatch(bind)
    if tcp is None:
        return f"{bind}-state"
    port = tcp["port"]
    return f"tcp://{tcp['host']}:{port if port in ('*', '0') else int(port) + 1}"


def advertised(state_endpoint: str, bind: str) -> str:
    """Return how gateways are told of the state socket: host ``*`` is the host they dialled."""
    state, main = _TCP.fullmatch(state_endpoint), _TCP.fullmatch(bind)
    if state is None:
        return state_endpoint
    wildcard = state["host"] in ("*", "0.0.0.0", "[::]")
    same = main is not None and main["host"] == state["host"]
    return f"tcp://*:{state['port']}" if wildcard or same else state_endpoint


def is_exposed(endpoint: str) -> bool:
    """Whether other machines can reach ``endpoint``; nothing on the wire asks who they are."""
    tcp = _TCP.fullmatch(endpoint)
    return tcp is not None and not tcp["host"].startswith(("127.", "localhost", "[::1]"))


def read_config(path: Path, known: set[str]) -> dict[str, Any]:
    """Return the settings of a TOML file; ``Code.INVALID`` names an unknown key."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TuringError(Code.INVALID, f"{path}: {error}", param="config") from None
    settings: dict[str, Any] = {}
    for name, value in values.items():
        key = name.replace("-", "_")
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise TuringError(Code.INVALID, f"{path}: unknown setting {name!r}{hint}", param=name)
        settings[key] = value
    return settings
