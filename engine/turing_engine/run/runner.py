"""The contract between the step loop and whatever computes a step."""

from typing import Protocol

import msgspec

from turing_engine.plan.plan import Plan, Result
from turing_engine.run.masks import Masks
from turing_protocol.registry import Registry


class RunnerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What to run and with how much room; every runner takes one."""

    model: str
    """Path of a GGUF file or a safetensors folder, or ``scripted:…``."""
    pages: int
    """KV pages to allocate; 0 = as many as fit into ``kv_bytes``."""
    kv_bytes: int
    max_running: int
    """Slots: sequences that may be in a step together."""
    max_step_tokens: int
    context: int
    device: str = "cpu"
    dtype: str = "auto"
    threads: int = 0
    """0 = the cores this process may use."""
    quantize: str = "none"
    """What float matrices are rounded to as they are loaded: ``none``, ``w8`` or ``w4``."""


class DeviceError(RuntimeError):
    """The device cannot compute any more; the engine has to be started again."""


class Runner(Protocol):
    """Computes plans. Slots and pages are named by the scheduler; the runner holds their contents.

    A runner must give every row the result it would have had alone, whatever else is in the plan.
    ``run`` raises on failure, and then has changed nothing but pages and slots of this plan. It
    raises ``DeviceError`` when no later step can succeed either.
    """

    pages: int
    vocab_size: int
    kv_bytes_per_token: int

    def run(self, plan: Plan, masks: Masks | None = None) -> Result:
        """Compute one step and sample where the plan asks for it.

        The chunks of ``masks`` take none but the ids that it allows; log-probabilities stay those
        of the model.
        """
        ...

    def close(self) -> None:
        """Free the device; nothing may be called afterwards."""
        ...


RUNNERS: Registry[Runner] = Registry("runner")
RUNNERS.add_path("torch", "turing_engine.run.torch_runner:TorchRunner")
RUNNERS.add_path("native", "turing_engine.run.native:NativeRunner")
RUNNERS.add_path("scripted", "turing_engine.run.scripted:ScriptedRunner")
