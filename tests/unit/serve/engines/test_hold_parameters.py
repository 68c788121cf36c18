"""Holds in vLLM's sampling parameters: the service's, never the caller's."""

import json
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

from justitia_ray.protocol.engine import Hold
from justitia_ray.serve.engines.hold_parameters import TRANSFER_CONFIG, read_hold, with_hold

_HOLD = Hold("tenant/a", 2.5, ("tenant/b",))


def sampling_params(extra_args: dict[str, Any] | None = None) -> SimpleNamespace:
    return SimpleNamespace(extra_args=extra_args)


def test_hold_parameters_survive_the_transfer_to_the_engine() -> None:
    """The engine's process receives tuples as lists."""
    given = with_hold(sampling_params(), _HOLD).extra_args["kv_transfer_params"]

    assert _HOLD == read_hold(json.loads(json.dumps(given)))


def test_service_replaces_hold_parameters_of_the_caller() -> None:
    """Otherwise any caller could hold contexts."""
    caller = sampling_params({"kv_transfer_params": {"for_s": 1e9}, "other": 1})

    assert {"other": 1} == with_hold(caller, None).extra_args
    held = with_hold(caller, _HOLD).extra_args
    assert ({"other": 1}, _HOLD) == (
        {"other": held["other"]},
        read_hold(held["kv_transfer_params"]),
    )
    assert {"for_s": 1e9} == (caller.extra_args or {})["kv_transfer_params"], "it is shared"


def test_request_parameters_without_a_hold_are_unchanged() -> None:
    plain = sampling_params({"other": 1})

    assert plain is with_hold(plain, None)
    assert with_hold(None, _HOLD) is None
    assert read_hold(None) is None
    assert read_hold({}) is None


def test_module_of_the_hold_connector_exists() -> None:
    config = json.loads(TRANSFER_CONFIG)

    assert "justitia_ray.serve.engines.hold_connector" == config["kv_connector_module_path"]
    assert "kv_producer" == config["kv_role"]


def test_service_without_holds_does_not_import_their_modules() -> None:
    program = (
        "import sys; import justitia_ray.serve.replica.deployment\n"
        "from justitia_ray.serve.engines.vllm_engine import VllmEngine\n"
        "VllmEngine('path', 'name', {}{})\n"
        "parts = 'hold_', 'holds', 'held_', 'engines.host_'\n"
        "print(sorted(name for name in sys.modules if any(part in name for part in parts)))"
    )
    off, on, host = (
        subprocess.run(
            [sys.executable, "-c", program.replace("{}{}", given)],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for given in ("{}", "{}, holds_contexts=True", "{}, host_kv_gib=1.0")
    )

    assert "[]\n" == off
    assert _listed("held_contexts", "hold_parameters", "hold_reports") == on
    assert _listed("hold_parameters", "host_memory") == host


def _listed(*modules: str) -> str:
    return f"{[f'justitia_ray.serve.engines.{name}' for name in modules]}\n"
