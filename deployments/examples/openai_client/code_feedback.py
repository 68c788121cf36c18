"""CG (code generation with feedback): write a function, run it, and rewrite it from the errors."""

import argparse
import asyncio
import os
import uuid

from openai import AsyncOpenAI

from justitia_ray.lab.workloads.sandbox import run_python

TASK = 'def half(x: int) -> int:\n    """Return half of x, rounded down."""'
TEST = "\nassert half(5) == 2, half(5)"


async def main(base_url: str, model: str, max_tokens: int) -> str:
    application = f"cg-{uuid.uuid4()}"
    headers = {"X-Justitia-Application": application, "X-Justitia-Class": "CG"}
    key = os.environ.get("JUSTITIA_API_KEY", "unused")
    async with AsyncOpenAI(base_url=base_url, api_key=key, default_headers=headers) as client:

        async def ask_model(prompt: str) -> str:
            answer = await client.chat.completions.create(
                model=model,
                messages=[{"role": "user", "content": prompt}],
                max_tokens=max_tokens,
            )
            return answer.choices[0].message.content or ""

        outcome, said = "not passed", f"Complete this, code only:\n{TASK}"
        for _ in range(3):
            code = await ask_model(said)
            run = await run_python(code + TEST)
            if run.outcome == "passed":
                outcome = "passed"
                break
            said += f"\n{code}\nThat failed:\n{run.errors[-500:]}\nWrite it again."
        await client.post(f"/applications/{application}/close", cast_to=object)
    return outcome


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--model", default="tiny-llama")
    parser.add_argument("--max-tokens", type=int, default=64)
    print(asyncio.run(main(**vars(parser.parse_args()))))
