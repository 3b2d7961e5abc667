"""What Ollama's clients ask before their first prompt: models and their facts, version, probe."""

import json
import re
import time
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from turing_gateway.fronts.base import Services, View, context_of, serving
from turing_gateway.fronts.ollama_names import find_model, tagged
from turing_gateway.fronts.ollama_reply import moment
from turing_gateway.fronts.ollama_types import ModelBody
from turing_gateway.http import endpoint, json_response, read_json
from turing_protocol.messages import ModelInfo
from turing_protocol.prefix import PAGE

FOREVER_S: Final = 100 * 365 * 86_400
"""A model stays as long as its engine: it expires a hundred years from now."""

_RELEASE = re.compile(r"\d+\.\d+\.\d+", re.ASCII)
_STORAGE = {"BFLOAT16": "BF16", "FLOAT16": "F16", "FLOAT32": "F32"}


class OllamaModels:
    """Read-only endpoints; every fact is of the model's files or of the engines that run it."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        """Return the probe at the root and the read-only part of ``/api``."""
        return [
            Route("/", endpoint(self.root), methods=["GET"]),
            Route("/api/version", endpoint(self.version), methods=["GET"]),
            Route("/api/tags", endpoint(self.tags), methods=["GET"]),
            Route("/api/ps", endpoint(self.ps), methods=["GET"]),
            Route("/api/show", endpoint(self.show), methods=["POST"]),
        ]

    async def root(self, request: Request) -> Response:
        """Say the words that clients probe for."""
        return PlainTextResponse("Ollama is running")

    async def version(self, request: Request) -> Response:
        """Return the build's version; clients read each of its three parts as a number."""
        version = self._services.version
        found = _RELEASE.match(version)
        return json_response({"version": found[0] if found else f"0.0.0-{version}"})

    async def tags(self, request: Request) -> Response:
        """List every served name."""
        models = [
            _listed(name, info) | {"modified_at": moment(info.modified), "size": info.size_bytes}
            for info in self._services.generator.models()
            for name in (info.name, *info.aliases)
        ]
        return json_response({"models": models})

    async def ps(self, request: Request) -> Response:
        """List the models that engines have loaded now, and the memory that they take."""
        models = [
            self._running(info, views)
            for info in self._services.generator.models()
            if (views := [view for view in serving(self._services.views, info) if view.alive])
        ]
        return json_response({"models": models})

    async def _capabilities(self, model: str, template: str) -> list[str]:
        # Tools are shown in the system turn where the template has no place for them.
        thinks = bool(template) and await self._services.generator.thinks(model)
        return ["completion", *["tools"] * bool(template), *["thinking"] * thinks]

    async def show(self, request: Request) -> Response:
        """Return the facts of one model."""
        body = await read_json(request, ModelBody)
        info, ref = find_model(self._services.generator, body.asked)
        files = await self._services.generator.files(ref.name)
        parameters = await self._parameters(info)
        metadata = msgspec.json.decode(files.get("metadata", b"{}"))
        template = files["chat_template"].decode()
        reply = {
            "modelfile": "\n".join(
                [f"FROM {info.name}", *(f"PARAMETER {line}" for line in parameters), ""]
            ),
            "parameters": "\n".join(parameters),
            "template": template,
            "details": _details(info),
            "model_info": {**_model_info(info), **metadata},
            "capabilities": await self._capabilities(ref.name, template),
            "modified_at": moment(info.modified),
        }
        if "general.license" in metadata:
            reply["license"] = metadata["general.license"]
        return json_response(reply)

    def _running(self, info: ModelInfo, views: Sequence[View]) -> dict[str, Any]:
        sizes = [(_memory(info, view), view.limits) for view in views]
        on_gpu = [size for size, limits in sizes if limits and limits.device != "cpu"]
        return _listed(info.name, info) | {
            "size": sum(size for size, _ in sizes),
            "size_vram": sum(on_gpu),
            "expires_at": moment(time.time() + FOREVER_S),
            "context_length": context_of(self._services.views, info),
        }

    async def _parameters(self, info: ModelInfo) -> list[str]:
        """Return what is set for the model as lines of name and value: context, stop tokens."""
        ends = [await self._services.generator.detokenize(info.name, [i]) for i in info.eos_ids]
        context = context_of(self._services.views, info)
        stops = [f"{'stop':<30} {json.dumps(text)}" for text in dict.fromkeys(ends) if text]
        return [f"{'num_ctx':<30} {context}", *stops]


def _listed(name: str, info: ModelInfo) -> dict[str, Any]:
    return {
        "name": tagged(name),
        "model": tagged(name),
        "digest": info.digest.removeprefix("sha256:"),
        "details": _details(info),
    }


def _details(info: ModelInfo) -> dict[str, Any]:
    storage = info.quantization.upper()
    return {
        "parent_model": "",
        "format": info.format,
        "family": info.architecture,
        "families": [info.architecture],
        "parameter_size": _human(info.parameters),
        "quantization_level": _STORAGE.get(storage, storage),
    }


def _model_info(info: ModelInfo) -> dict[str, Any]:
    family = info.architecture
    return {
        "general.architecture": family,
        "general.basename": info.name,
        "general.parameter_count": info.parameters,
        f"{family}.context_length": info.context,
        f"{family}.embedding_length": info.embedding_length,
        f"{family}.vocab_size": info.vocab_size,
    }


def _memory(info: ModelInfo, view: View) -> int:
    """Return the bytes that an engine takes: measured, or weights and pages where it is not."""
    if view.stats and view.stats.memory_used:
        return view.stats.memory_used
    pages = view.limits.pages_total if view.limits else 0
    return info.size_bytes + pages * PAGE * info.kv_bytes_per_token


def _human(count: int) -> str:
    """Return a number of parameters as Ollama writes it: 135M, 134.52M, 1.7B."""
    for unit, letter, digits in ((10**9, "B", 1), (10**6, "M", 2), (10**3, "K", 0)):
        if count >= unit:
            whole = count % unit == 0
            return f"{count / unit:.{0 if whole else digits}f}{letter}"
    return str(count)
