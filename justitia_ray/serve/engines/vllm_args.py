"""Check the configured vLLM options and parse them with vLLM's own parser."""

import json
import re
from collections.abc import Mapping
from typing import Any, NoReturn, TypeAlias

from justitia_ray.errors import ConfigError
from justitia_ray.serve.engines.vllm_releases import ABSENT_OPTIONS, http_server

VllmValue: TypeAlias = str | int | float | bool

_FORCED: dict[str, tuple[VllmValue, str]] = {
    "scheduling_policy": ("priority", "the engine must keep the order of the leases"),
    "data_parallel_size": (1, "a replica is one engine; raise the number of replicas instead"),
    "enable_log_requests": (False, "prompts are never logged"),
    "long_prefill_token_threshold": (
        0,
        "prompts that begin alike would be read side by side, each into memory of its own, and are"
        " counted once",
    ),
    "sse_keep_alive_interval": (
        0,
        "its comments would be counted as chunks; ingress.keepalive_s keeps streams alive",
    ),
}
_OWNED: dict[str, str] = {
    **dict.fromkeys(
        ("lora_modules", "model", "served_model_name"),
        "the service sets it (model.name, model.path, model.adapters)",
    ),
    "config": "a file would bring options past this check",
    "api_key": "callers prove who they are at the ingress (access); the engine would answer 401 to"
    " every call",
    **dict.fromkeys(
        (
            *("host", "port", "grpc_port", "uds", "root_path", "middleware", "headless"),
            *("allow_credentials", "allowed_headers", "allowed_methods", "allowed_origins"),
            *("ssl_keyfile", "ssl_certfile", "ssl_ca_certs", "ssl_cert_reqs", "ssl_ciphers"),
            *("enable_ssl_refresh", "enable_request_id_headers", "api_server_count"),
            *("uvicorn_log_level", "disable_uvicorn_access_log"),
            *("disable_access_log_for_endpoints", "disable_fastapi_docs", "enable_offline_docs"),
        ),
        "vLLM's HTTP server is not run: its application is called in the replica's process, and"
        " Serve has the port (http_options)",
    ),
}
"""Options of vLLM that users must not set, with the reason: the service sets them itself, or they
bypass its checks.
"""
_OFF: dict[str, str] = {
    "disable_log_stats": "the replica measures its engine by vLLM's statistics",
    "enable_log_outputs": "completions are never logged",
}
"""Flags of vLLM that must stay off, with the reason."""


def checked_vllm_args(vllm_args: Mapping[str, VllmValue]) -> dict[str, VllmValue]:
    """Return vLLM options with underscores in their names, plus the options that the service needs.

    Raises:
        ConfigError: If an option is reserved for the service, or differs from its required value.
    """
    checked: dict[str, VllmValue] = {}
    for given, value in vllm_args.items():
        key = given.replace("-", "_")
        if not re.fullmatch(r"[a-z][a-z0-9_.]*", key):
            raise ConfigError(
                f"vllm_args: {given!r} is not an option name; write it as vLLM does without the "
                "leading dashes, e.g. max_model_len"
            )
        owned = _OWNED.get(key.partition(".")[0])
        if owned is not None:
            raise ConfigError(f"vllm_args: {given!r} cannot be set here: {owned}")
        if key in _OFF:
            if value is not False:
                raise ConfigError(f"vllm_args: {given} is {value!r}; allowed: False ({_OFF[key]})")
            continue  # Some releases lack the flag's negation, but it is off by default.
        if key in _FORCED and value != _FORCED[key][0]:
            allowed, reason = _FORCED[key]
            raise ConfigError(f"vllm_args: {given} is {value!r}; allowed: {allowed!r} ({reason})")
        checked[key] = value
    return checked | {key: value for key, (value, _) in _FORCED.items()}


def parse_vllm_args(
    model_path: str,
    served_model_name: str,
    vllm_args: Mapping[str, VllmValue],
    adapters: Mapping[str, str],
) -> Any:
    """Return vLLM's argument namespace for options, as `vllm serve` would create it.

    `max_model_len: 2048` becomes `--max-model-len=2048`; True becomes `--flag`, False `--no-flag`.
    With adapters, LoRA is on and a batch may use all of them, unless an option says otherwise.

    Raises:
        ConfigError: If vLLM does not know an option or refuses its value.
    """
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    class Parser(FlexibleArgumentParser):
        def error(self, message: str) -> NoReturn:
            raise ConfigError(f"vllm_args: vLLM says: {message}")

    # The parser accepts no abbreviations, so that a misspelt option matches no other.
    server = http_server()
    parser = server.make_arg_parser(Parser(allow_abbrev=False))
    absent = ABSENT_OPTIONS - {action.dest for action in parser._actions}
    arguments = [f"--model={model_path}", f"--served-model-name={served_model_name}"]
    if adapters:
        vllm_args = {"enable_lora": True, "max_loras": len(adapters), **vllm_args}
        loras = [json.dumps({"name": name, "path": path}) for name, path in adapters.items()]
        arguments += ["--lora-modules", *loras]
    arguments += [_option(key, value) for key, value in vllm_args.items() if key not in absent]
    parsed = parser.parse_args(arguments)
    try:
        server.validate_args(parsed)
    except Exception as error:  # vLLM releases raise different errors
        raise ConfigError(f"vllm_args: vLLM says: {error}") from None
    return parsed


def _option(key: str, value: VllmValue) -> str:
    name = key.replace("_", "-")
    if value is True:
        return f"--{name}"
    if value is False:
        return f"--no-{name}"
    return f"--{name}={value}"
