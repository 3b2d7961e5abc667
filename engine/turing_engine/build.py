"""The composition root: from settings to an engine core that is ready to run."""

import hashlib
import importlib.util
import os
from pathlib import Path

import structlog
from msgspec.structs import replace

from turing_engine.admit import Gatekeeper
from turing_engine.assets import Assets, load_assets, named
from turing_engine.core import EngineCore, Identity
from turing_engine.grammar.compiler import Compiler
from turing_engine.grammar.source import KINDS
from turing_engine.grammar.vocabulary import Vocabulary
from turing_engine.locate import Located, locate
from turing_engine.plan.scheduler import Scheduler, SchedulerConfig
from turing_engine.run.executor import Executor
from turing_engine.run.native import EXACT
from turing_engine.run.runner import RUNNERS, Runner, RunnerSpec
from turing_engine.run.scripted import PREFIX, scripted_files, scripted_info
from turing_engine.settings import EngineSettings, advertised
from turing_engine.wire import Wire
from turing_kernels import native
from turing_protocol.errors import Code, TuringError
from turing_protocol.messages import MAJOR, MINOR, Limits, ModelInfo, Welcome
from turing_protocol.prefix import PAGE


def build(settings: EngineSettings, wire: Wire, epoch: int) -> EngineCore:
    """Load the model and return the core that serves it over ``wire``.

    What is wrong with a setting or a model is a ``TuringError`` that names it.
    """
    device = "cuda" if settings.device == "auto" and cuda_usable() else settings.device
    settings = replace(settings, device="cpu" if device == "auto" else device)
    runner_name, path, assets = _model(settings)
    context = _context(settings, assets.info)
    runner = _runner(settings, runner_name, path, context)
    info = _info(settings, assets.info, runner)
    compiler = _compiler(assets, runner.vocab_size)
    limits = Limits(
        context=min(context, runner.pages * PAGE),
        pages_total=runner.pages,
        max_running=settings.max_batch_size,
        max_waiting=settings.max_waiting,
        device=settings.device,
        constraints=KINDS if compiler is not None else (),
    )
    memory = process_memory if settings.device == "cpu" else unknown_memory
    welcome = Welcome(
        major=MAJOR,
        minor=MINOR,
        epoch=epoch,
        engine=settings.name,
        state_endpoint=advertised(wire.state_endpoint, wire.endpoint),
        model=info,
        limits=limits,
        assets={name: hashlib.sha256(data).hexdigest() for name, data in assets.files.items()},
    )
    return EngineCore(
        wire,
        _scheduler(settings, limits),
        Executor(runner),
        Gatekeeper(info, limits, runner.vocab_size),
        Identity(welcome, assets.files, memory),
        compiler=compiler,
    )


def _compiler(assets: Assets, vocab_size: int) -> Compiler | None:
    """Return what compiles constraints; ``None``, and a log line, for a tokenizer it cannot use."""
    text = assets.files["tokenizer.json"].decode()
    try:
        return Compiler(Vocabulary(text, vocab_size, assets.info.eos_ids))
    except ValueError as error:
        log = structlog.get_logger("build")
        log.warning("structured output is off: the tokenizer is not supported", error=str(error))
        return None


def _model(settings: EngineSettings) -> tuple[str, str, Assets]:
    """Return the runner's name, what it loads, and the model's assets."""
    reference, name = settings.model, settings.runner
    if reference is not None and reference.startswith(PREFIX):
        if name not in ("auto", "scripted"):
            raise _bad(f"--runner {name} does not run scripted models", "runner")
        return "scripted", reference, Assets(scripted_info(reference), scripted_files(reference))
    if name == "scripted":
        raise _bad(f"--runner scripted runs only --model {PREFIX}", "runner")
    located = locate(reference, hf_home=settings.hf_home)
    if name == "auto":
        name = _choose(located, settings)
    return name, str(located.path), load_assets(located)


def _choose(located: Located, settings: EngineSettings) -> str:
    """Return the fastest runner that can serve the model; what speaks against it is logged."""
    if settings.device != "cpu":
        return "torch"
    if settings.dtype not in EXACT:
        reason: str | None = f"it has no dtype {settings.dtype}"
    else:
        reason = native.unsupported(str(located.path))
    if reason is None:
        return "native"
    structlog.get_logger("build").warning(
        "serving with torch instead of the native runner", reason=reason
    )
    return "torch"


def _context(settings: EngineSettings, info: ModelInfo) -> int:
    if settings.max_context > info.context:
        raise _bad(
            f"--max-context {settings.max_context} exceeds the model's {info.context} tokens",
            "max_context",
        )
    return settings.max_context or info.context


def _runner(settings: EngineSettings, name: str, path: str, context: int) -> Runner:
    if settings.quantize != "none" and name != "native":
        raise _bad(
            f"--quantize {settings.quantize} needs the native runner, not {name}", "quantize"
        )
    spec = RunnerSpec(
        model=path,
        pages=settings.pages,
        kv_bytes=settings.kv_memory,
        max_running=settings.max_batch_size,
        max_step_tokens=settings.step_tokens(context),
        context=context,
        device=settings.device,
        dtype=settings.dtype,
        threads=settings.threads,
        quantize=settings.quantize,
    )
    try:
        factory = RUNNERS.get(name)
    except KeyError as error:
        raise _bad(str(error.args[0]), "runner") from None
    return factory(spec)


def _info(settings: EngineSettings, info: ModelInfo, runner: Runner) -> ModelInfo:
    info = replace(info, kv_bytes_per_token=runner.kv_bytes_per_token)
    return named(info, settings.served_name)


def _scheduler(settings: EngineSettings, limits: Limits) -> Scheduler:
    try:
        config = SchedulerConfig(
            pages=limits.pages_total,
            max_running=limits.max_running,
            max_waiting=limits.max_waiting,
            max_step_tokens=settings.step_tokens(limits.context),
            chunk=settings.chunk(limits.context),
            context=limits.context,
            slo_itl=settings.slo_itl_ms / 1000,
        )
    except ValueError as error:
        raise _bad(str(error), None) from None
    return Scheduler(config)


def cuda_usable() -> bool:
    """Whether there is a GPU driver and a torch that was built for it; torch is not imported."""
    torch = importlib.util.find_spec("torch")
    if torch is None or torch.origin is None:
        return False
    library = Path(torch.origin).parent / "lib" / "libtorch_cuda.so"
    return library.exists() and Path("/dev/nvidiactl").exists()


def process_memory() -> tuple[int, int]:
    """Return this process's resident bytes and the machine's; 0 where they are not known."""
    page = os.sysconf("SC_PAGE_SIZE")
    try:
        resident = int(Path("/proc/self/statm").read_text().split()[1])
    except FileNotFoundError:
        resident = 0
    return resident * page, os.sysconf("SC_PHYS_PAGES") * page


def unknown_memory() -> tuple[int, int]:
    """Return zeros: memory of other devices than the CPU is not measured yet."""
    return 0, 0


def _bad(message: str, param: str | None) -> TuringError:
    return TuringError(Code.INVALID, message, param=param)
