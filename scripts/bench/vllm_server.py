"""Run vLLM's own server with an application's engine options: the lower bound beside vLLM.

This is the code behind `vllm serve`. The command itself requires a distribution named `vllm`, which
the CPU build is not.
"""

import argparse
import json
import os

from justitia_ray.config import AppConfig
from justitia_ray.serve.engines.random_models import materialise_model
from justitia_ray.serve.engines.vllm_args import parse_vllm_args
from justitia_ray.serve.engines.vllm_releases import http_server
from scripts.bench.arrival_priority import ArrivalPriority


def main() -> None:
    """Serve on a port of the loopback address until the process ends."""
    parser = argparse.ArgumentParser(prog="scripts.bench.vllm_server", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--config", required=True, help="`AppConfig` as JSON")
    options = parser.parse_args()
    config = AppConfig.parse(json.loads(options.config))
    os.environ.update(config.engine.env)  # vLLM reads the environment on import

    import uvloop

    path = materialise_model(config.model.path, config.model.cache_dir)
    arguments = parse_vllm_args(path, config.model.name, config.engine.vllm_args, {})
    arguments.host, arguments.port = "127.0.0.1", options.port
    arguments.middleware = [f"{ArrivalPriority.__module__}.{ArrivalPriority.__name__}"]
    uvloop.run(http_server().run_server(arguments))


if __name__ == "__main__":
    main()
