"""Locations of vLLM's HTTP server in releases 0.32, 0.33, and 0.26, the last one on torch 2.11.

vLLM guarantees no location. `tests/conformance` checks everything used of a release; for 0.26 and
0.33 these tests are run by hand in a separate environment when this folder changes.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

ABSENT_OPTIONS = frozenset({"sse_keep_alive_interval"})
"""Options of `vllm serve` that some vLLM releases lack. These releases behave as if the options
were off.
"""


class HttpServer(NamedTuple):
    """Functions of vLLM's OpenAI server, at their locations in the installed release."""

    make_arg_parser: Any
    """vLLM's function that adds the options of `vllm serve` to an argument parser."""
    validate_args: Any
    """Function of vLLM that checks options of `vllm serve` without a loaded model."""
    build_app: Any
    """Function of vLLM that makes the FastAPI application of its server."""
    init_app_state: Any
    """Function of vLLM that attaches an engine to its FastAPI application."""
    run_server: Any
    """Function of vLLM that runs its server until it is stopped, as `vllm serve` does."""


def validation_error(message: str) -> Exception:
    """Return an exception that vLLM's server turns into an answer with status 400."""
    from vllm.exceptions import VLLMValidationError

    error: Exception = VLLMValidationError(message)
    return error


def retryable_error(message: str) -> Exception:
    """Return an exception that vLLM's server answers with status 503 (before 0.32, with 500)."""
    from vllm import exceptions

    error: Exception = getattr(exceptions, "RetryableRequestError", RuntimeError)(message)
    return error


def status_of(error: BaseException) -> int:
    """Return the HTTP status of vLLM's answer to a call that fails with this exception."""
    from vllm import exceptions

    named = getattr(error, "http_status", None) or getattr(error, "status_code", None)
    if isinstance(named, int):
        return int(named)
    if isinstance(error, exceptions.VLLMNotFoundError):
        return 404
    if isinstance(error, exceptions.VLLMUnprocessableEntityError):
        return 422
    by_client: type[BaseException] = getattr(exceptions, "VLLMClientError", ValueError)
    if isinstance(error, by_client | ValueError | TypeError | OverflowError):
        return 400
    return 501 if isinstance(error, NotImplementedError) else 500


def is_engine_death(error: BaseException | None) -> bool:
    """Return whether vLLM raises this exception only if its engine is dead."""
    from vllm.v1.engine.exceptions import EngineDeadError

    return isinstance(error, EngineDeadError)


def http_server() -> HttpServer:
    if find_spec("vllm.entrypoints.launchers") is None:
        from vllm.entrypoints.openai import api_server, cli_args

        return HttpServer(
            cli_args.make_arg_parser,
            cli_args.validate_parsed_serve_args,
            api_server.build_app,
            api_server.init_app_state,
            api_server.run_server,
        )
    from vllm.entrypoints.launchers import app
    from vllm.entrypoints.launchers.api_server import app_state, entry

    part = "launchers" if find_spec("vllm.entrypoints.launchers.cli_args") else "common"  # 0.33
    server_args = import_module(f"vllm.entrypoints.{part}.cli_args")
    return HttpServer(
        server_args.make_arg_parser,
        server_args.validate_parsed_serve_args,
        app.build_app,
        app_state.init_app_state,
        entry.run_server,
    )
