"""The dry run of admission: what would become of a call, and why."""

from turing_gateway.call import Forecast, Outlook
from turing_gateway.choice import Job
from turing_gateway.errors import status_of
from turing_gateway.fleet.view import EngineView
from turing_protocol.admission import Room, Verdict, decide
from turing_protocol.errors import Code


def forecast(room: Room, engine: EngineView, job: Job, prompt_tokens: int) -> Forecast:
    """Return the verdict on ``job`` in ``room``, the room of ``engine``."""
    pages = job.want.pages * job.call.choices
    verdict = decide(room, job.call.lane, job.want.pages, job.call.choices)
    wait = _wait(room, engine, pages, job.call.choices)
    kind, reason = _said(verdict, wait)
    ttft = engine.stats.ttft_avg_ms if engine.stats else 0.0
    return Forecast(
        verdict=kind,
        reason=reason,
        retry_after_ms=verdict.retry_ms,
        engine=engine.name,
        prompt_tokens=prompt_tokens,
        max_tokens=job.sampling.max_tokens,
        pages=pages,
        pages_booked=room.load,
        pages_total=room.pages_total,
        queue_ahead=room.waiting,
        expected_ttft_ms=round(ttft, 3) or None,
    )


def _wait(room: Room, engine: EngineView, pages: int, count: int) -> str:
    """Return why an admitted call would not start at once; empty if it would."""
    places = engine.limits.max_running if engine.limits else 0
    if room.waiting:
        return f"{room.waiting} requests are waiting before it"
    if room.load + pages > room.pages_total:
        return f"{room.load} of {room.pages_total} pages are booked and it needs {pages}"
    if engine.sequences + count > places:
        return f"{engine.sequences} of {places} places in a step are taken"
    return ""


def _said(verdict: Verdict, wait: str) -> tuple[Outlook, str]:
    if verdict.code is None:
        return ("wait", wait) if wait else ("admit", "")
    if verdict.code is Code.NEVER_FITS:
        return "never", verdict.message
    return ("429" if status_of(verdict.code) == 429 else "503"), verdict.message
