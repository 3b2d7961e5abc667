"""``X-Turing-*`` request headers to engine controls, and the effective values back to headers.

Clients that cannot set headers send the same in the body, as an object ``turing``.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from turing_gateway.call import Begin
from turing_protocol.errors import Code, TuringError
from turing_protocol.lanes import Lane, parse_lane
from turing_protocol.sampling import Knobs

LANE = "X-Turing-Lane"
SPARSITY = "X-Turing-Sparsity"
SVD_KV = "X-Turing-SVD-KV"
DRAFT_TOKENS = "X-Turing-Draft-Tokens"
TENANT = "X-Turing-Tenant-ID"
STRICT = "X-Turing-Strict"
KV_UTILIZATION = "X-Turing-KV-Utilization"
QUEUE_DEPTH = "X-Turing-Queue-Depth"

REQUEST_HEADERS = {
    "lane": LANE,
    "sparsity": SPARSITY,
    "svd_kv": SVD_KV,
    "draft_tokens": DRAFT_TOKENS,
    "tenant_id": TENANT,
    "strict": STRICT,
}
"""Field of ``ControlsBody`` → the header that says the same."""
RESPONSE_HEADERS = (LANE, SPARSITY, SVD_KV, DRAFT_TOKENS, KV_UTILIZATION, QUEUE_DEPTH)

_PREFIX = "x-turing-"
_KNOWN = {name.lower(): name for name in REQUEST_HEADERS.values()}

MAX_SPARSITY = 0.75
MAX_DRAFT_TOKENS = 64

_DECIMAL = re.compile(r"[0-9]{1,3}(\.[0-9]{1,9})?", re.ASCII)
_INTEGER = re.compile(r"[0-9]{1,3}", re.ASCII)
_ADAPTER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)


class ControlsBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """``turing`` in a request body: each field wins over the header of the same name."""

    lane: Literal["interactive", "batch", "background"] | None = None
    sparsity: Annotated[float, Meta(ge=0, le=MAX_SPARSITY)] | None = None
    svd_kv: Literal[0, 1] | None = None
    draft_tokens: Annotated[int, Meta(ge=0, le=MAX_DRAFT_TOKENS)] | None = None
    tenant_id: Annotated[str, Meta(pattern=rf"^{_ADAPTER.pattern}$(?!\n)")] | None = None
    strict: bool | None = None


class Controls(msgspec.Struct, frozen=True):
    """What the headers and the ``turing`` object of one request ask for."""

    lane: Lane = Lane.INTERACTIVE
    knobs: Knobs = Knobs()
    adapter: str = ""
    strict: bool = False
    """Refuse what would only be noted in the answer: controls without effect, changed input."""


def read_headers(headers: Mapping[str, str]) -> Controls:
    """Return the controls in ``headers``.

    One that is malformed, or unknown and so perhaps misspelt, is ``Code.INVALID`` naming it.
    """
    for name in headers:
        if name.lower().startswith(_PREFIX) and name.lower() not in _KNOWN:
            words = f"{name} is not a header of this server; there are {', '.join(_KNOWN.values())}"
            raise TuringError(Code.INVALID, words, param=name)
    lane = headers.get(LANE)
    return Controls(
        lane=Lane.INTERACTIVE if lane is None else parse_lane(lane, param=LANE),
        knobs=Knobs(
            sparsity=_sparsity(headers.get(SPARSITY)),
            svd_kv=_integer(SVD_KV, headers.get(SVD_KV), 1),
            draft_tokens=_integer(DRAFT_TOKENS, headers.get(DRAFT_TOKENS), MAX_DRAFT_TOKENS),
        ),
        adapter=_adapter(headers.get(TENANT)),
        strict=_integer(STRICT, headers.get(STRICT), 1) == 1,
    )


def merged(controls: Controls, body: ControlsBody) -> Controls:
    """Return ``controls`` with what ``body`` sets in their place."""
    knobs = controls.knobs
    return Controls(
        lane=controls.lane if body.lane is None else parse_lane(body.lane),
        knobs=Knobs(
            sparsity=knobs.sparsity if body.sparsity is None else body.sparsity,
            svd_kv=knobs.svd_kv if body.svd_kv is None else body.svd_kv,
            draft_tokens=knobs.draft_tokens if body.draft_tokens is None else body.draft_tokens,
        ),
        adapter=controls.adapter if body.tenant_id is None else body.tenant_id,
        strict=controls.strict if body.strict is None else body.strict,
    )


def effective_headers(lane: Lane, begin: Begin) -> dict[str, str]:
    """Return the controls as the engine applies them to a choice, and its load when it took it."""
    return {
        LANE: lane.name.lower(),
        SPARSITY: f"{begin.sparsity:g}",
        SVD_KV: str(begin.svd_kv),
        DRAFT_TOKENS: str(begin.draft_tokens),
        KV_UTILIZATION: f"{begin.kv_utilization:.4f}",
        QUEUE_DEPTH: str(begin.queue_depth),
    }


def _sparsity(text: str | None) -> float | None:
    if text is None:
        return None
    if not _DECIMAL.fullmatch(text.strip()) or float(text) > MAX_SPARSITY:
        raise _malformed(SPARSITY, f"a number from 0.0 to {MAX_SPARSITY}")
    return float(text)


def _integer(name: str, text: str | None, most: int) -> int | None:
    if text is None:
        return None
    if not _INTEGER.fullmatch(text.strip()) or int(text) > most:
        raise _malformed(name, f"a whole number from 0 to {most}")
    return int(text)


def _adapter(text: str | None) -> str:
    # The name rule comes before any look-up: an adapter name never becomes a path.
    if text is None:
        return ""
    if not _ADAPTER.fullmatch(text):
        raise _malformed(TENANT, "1 to 128 letters, digits, dots, dashes or underscores")
    return text


def _malformed(name: str, words: str) -> TuringError:
    return TuringError(Code.INVALID, f"{name} must be {words}", param=name)
