"""API fronts: HTTP to Call, Events to HTTP."""

from turing_gateway.fronts.base import Front
from turing_protocol.registry import Registry

FRONTS: Registry[Front] = Registry("fronts")
"""Every front by name; each is made with one ``Services``."""

FRONTS.add_path("admission", "turing_gateway.fronts.admission:Admission")
FRONTS.add_path("anthropic", "turing_gateway.fronts.anthropic:Anthropic")
FRONTS.add_path("health", "turing_gateway.fronts.health:Health")
FRONTS.add_path("models", "turing_gateway.fronts.models:Models")
FRONTS.add_path("ollama", "turing_gateway.fronts.ollama:Ollama")
FRONTS.add_path("ollama_manage", "turing_gateway.fronts.ollama_manage:OllamaManage")
FRONTS.add_path("ollama_models", "turing_gateway.fronts.ollama_models:OllamaModels")
FRONTS.add_path("openai_chat", "turing_gateway.fronts.openai_chat:OpenAIChat")
FRONTS.add_path("openai_text", "turing_gateway.fronts.openai_text:OpenAIText")
FRONTS.add_path("render", "turing_gateway.fronts.render:Render")
FRONTS.add_path("responses", "turing_gateway.fronts.responses:Responses")
FRONTS.add_path("tokenize", "turing_gateway.fronts.tokenize:Tokenize")
