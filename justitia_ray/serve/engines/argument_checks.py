"""Find mistakes in the options of an engine before anything is started.

vLLM's parser takes ten seconds and half a gigabyte to import and reads the environment, so it runs
in a separate process. Run as a program, this module reads options as JSON from stdin and prints
vLLM's error message.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from importlib.util import find_spec

from justitia_ray.config import AppConfig
from justitia_ray.errors import ConfigError
from justitia_ray.serve.engines.vllm_args import checked_vllm_args, parse_vllm_args
from justitia_ray.serve.engines.vllm_variables import UNWANTED, without_unwanted
from justitia_ray.units import Seconds

_PARSER_S: Seconds = 300.0
_MISTAKE = "mistake: "
"""Prefix of an error message in the output of vLLM's argument parser, which prints other lines too.
"""


def engine_mistake(config: AppConfig) -> str | None:
    """Return the first mistake in a model's engine options that can be found without vLLM."""
    engine = config.engine
    if engine.kind == "fake":
        return None
    for name in sorted(UNWANTED.keys() & engine.env):
        return f"engine.env: {name} cannot be set here: {UNWANTED[name]}"
    try:
        checked_vllm_args(engine.vllm_args)
    except ConfigError as error:
        return f"engine.{error}"
    return None


def parser_mistakes(configs: Iterable[AppConfig]) -> dict[str, str] | None:
    """Run vLLM's argument parser on the options of models; return its errors by model. Blocks.

    Returns:
        None if vLLM is not installed here.
    """
    asked = [config for config in configs if config.engine.kind == "vllm"]
    if asked and find_spec("vllm") is None:
        return None
    said: dict[str, str | None] = {}
    found = {}
    for config in asked:
        # The parser's result does not depend on the model's name.
        question = json.dumps([config.engine.vllm_args, bool(config.model.adapters)])
        environment = without_unwanted(os.environ) | config.engine.env
        key = question + json.dumps(config.engine.env)
        if key not in said:
            said[key] = _run_parser(question, environment)
        mistake = said[key]
        if mistake is not None:
            found[config.model.name] = f"engine.{mistake}"
    return found


def _run_parser(question: str, environment: dict[str, str]) -> str | None:
    try:
        ran = subprocess.run(
            [sys.executable, "-m", __name__],
            input=question,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_PARSER_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"vllm_args: vLLM's parser gave no answer within {_PARSER_S:g} s"
    if ran.returncode == 0:
        return None
    lines = ran.stdout.splitlines() + ran.stderr.splitlines()
    for line in lines:
        if line.startswith(_MISTAKE):
            return line.removeprefix(_MISTAKE)
    last = lines[-1] if lines else f"exit status {ran.returncode}"
    return f"vllm_args: vLLM's parser does not run here: {last}"


def _check_input() -> int:
    vllm_args, has_adapters = json.loads(sys.stdin.read())
    adapters = {"adapter": "/adapter"} if has_adapters else {}
    try:
        parse_vllm_args("/model", "model", checked_vllm_args(vllm_args), adapters)
    except ConfigError as error:
        print(_MISTAKE + " ".join(str(error).split()))  # noqa: T201  # the result
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(_check_input())
