"""Environment variables that would change vLLM's HTTP application inside a replica.

Only this service calls that application, so they have no use there.
"""

import logging
from collections.abc import Mapping, MutableMapping

from justitia_ray.observability.log_events import log_event

logger = logging.getLogger("ray.serve")

UNWANTED: dict[str, str] = {
    "VLLM_API_KEY": "callers prove who they are at the ingress (access); the engine would answer"
    " 401 to every call",
    "VLLM_DEBUG_LOG_API_SERVER_RESPONSE": "completions are never logged",
    "VLLM_SERVER_DEV_MODE": "the engine would have paths that put it to sleep and show its state",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "adapters stand under model.adapters, the same on every"
    " replica",
    "VLLM_SKIP_MODEL_NAME_VALIDATION": "a body has to name a model that is served",
    "VLLM_ENABLE_RESPONSES_API_STORE": "a response would be kept by one replica, without an end",
    "VLLM_USE_RUST_FRONTEND": "the replica calls vLLM's Python application",
}
"""Environment variables that are removed from vLLM's environment, with the reason."""


def without_unwanted(environment: Mapping[str, str]) -> dict[str, str]:
    """Return a copy of the environment without variables that would change vLLM's behaviour."""
    return {name: value for name, value in environment.items() if not _is_unwanted(name, value)}


def drop_unwanted_variables(environment: MutableMapping[str, str]) -> None:
    """Remove variables that would change vLLM's behaviour, with a warning for each."""
    for name, value in list(environment.items()):
        if _is_unwanted(name, value):
            del environment[name]
            reason = UNWANTED.get(name, "Kubernetes sets it for a service of the name vllm")
            log_event(logger, logging.WARNING, "engine.variable_dropped", name=name, reason=reason)


def _is_unwanted(name: str, value: str) -> bool:
    return name in UNWANTED or (name == "VLLM_PORT" and "://" in value)
