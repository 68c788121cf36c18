"""`vllm bench serve` as the caller of a load of `scripts/bench_serve`.

The command requires a distribution named `vllm`, which the CPU build is not. This module, run as a
program, therefore passes the options to the function behind the command.
"""

import argparse
import asyncio
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from justitia_ray.units import Tokens
from scripts.bench.load import CallFailed, Sample, Target


async def run_vllm_bench(
    target: Target,
    model: str,
    tokenizer: str,
    sizes: tuple[Tokens, Tokens],
    calls: int,
    callers: int,
    seed: int,
) -> list[Sample]:
    """Send streamed completions of random tokens; return samples in the order of their ends.

    Args:
        target: Whom to call.
        model: Name to call it by.
        tokenizer: Directory of its tokenizer.
        sizes: Tokens of each prompt and each output.
        calls: In all.
        callers: Calls at a time.
        seed: Of the prompts.

    Raises:
        CallFailed: If the command fails, or a call of it did.
    """
    with TemporaryDirectory(prefix="justitia-vllm-bench-") as directory:
        options: dict[str, Any] = {
            "backend": "openai",
            "base-url": f"http://{target.host}:{target.port}{target.route_prefix}",
            "endpoint": "/v1/completions",
            "model": model,
            "tokenizer": tokenizer,
            "dataset-name": "random",
            "random-input-len": sizes[0],
            "random-output-len": sizes[1],
            "num-prompts": calls,
            "max-concurrency": callers,
            "seed": seed,
            "result-dir": directory,
            "result-filename": "result.json",
        }
        arguments = [f"--{name}={value}" for name, value in options.items()]
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "scripts.bench.vllm_client",
            *arguments,
            *("--ignore-eos", "--disable-tqdm", "--save-result", "--save-detailed"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await process.communicate()
        if process.returncode:
            last = said.decode(errors="replace").strip().splitlines()[-3:]
            raise CallFailed(f"vllm bench serve: {' '.join(last)}")
        result = json.loads((Path(directory) / "result.json").read_text(encoding="utf-8"))
    return _parse_samples(result, calls)


def _parse_samples(result: dict[str, Any], calls: int) -> list[Sample]:
    if result["completed"] != calls:
        raise CallFailed(f"vllm bench serve: {result['completed']} of {calls} calls were answered")
    samples = []
    for started_at, ttft_s, gaps_s, tokens in zip(
        result["start_times"],
        result["ttfts"],
        result["itls"],
        result["output_lens"],
        strict=True,
    ):
        latency_s = ttft_s + sum(gaps_s)
        samples.append(
            Sample(ttft_s, latency_s, started_at + latency_s, tokens, chunks=1 + len(gaps_s))
        )
    return sorted(samples, key=lambda sample: sample.ended_at)


def main() -> None:
    """Run the function behind `vllm bench serve`."""
    from vllm.benchmarks.serve import add_cli_args, main_async
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser(description="vllm bench serve")
    add_cli_args(parser)
    options: argparse.Namespace = parser.parse_args()
    asyncio.run(main_async(options))


if __name__ == "__main__":
    main()
