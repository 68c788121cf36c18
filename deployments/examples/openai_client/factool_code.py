"""CC (FacTool's code check): run code and the model's own solutions on chosen test calls."""

import argparse
import asyncio
import os
import uuid
from collections import Counter

from openai import AsyncOpenAI

from justitia_ray.lab.workloads.sandbox import run_python

TASK = 'def double(x: int) -> int:\n    """Return twice x."""'
CODE = "def double(x):\n    return x * x"


async def main(base_url: str, model: str, max_tokens: int) -> str:
    application = f"cc-{uuid.uuid4()}"
    headers = {"X-Justitia-Application": application, "X-Justitia-Class": "CC"}
    key = os.environ.get("JUSTITIA_API_KEY", "unused")
    async with AsyncOpenAI(base_url=base_url, api_key=key, default_headers=headers) as client:

        async def ask_model(prompt: str, temperature: float = 0.0) -> str:
            answer = await client.chat.completions.create(
                model=model,
                messages=[{"role": "user", "content": prompt}],
                max_tokens=max_tokens,
                temperature=temperature,
            )
            return answer.choices[0].message.content or ""

        listed = await ask_model(f"Write three calls that test this function, one a line:\n{TASK}")
        calls = [line.strip() for line in listed.splitlines() if line.startswith("double(")]
        calls = calls[:3] or ["double(3)"]
        solutions = await asyncio.gather(
            *(ask_model(f"Implement this, code only:\n{TASK}", temperature=0.7) for _ in range(3))
        )
        shown = "\n" + "\n".join(f"print({call})" for call in calls)
        own, *others = await asyncio.gather(*(run_python(c + shown) for c in (CODE, *solutions)))
        ran = [run.output for run in others if run.outcome == "passed"]
        agreed = bool(ran) and own.output == Counter(ran).most_common(1)[0][0]
        await client.post(f"/applications/{application}/close", cast_to=object)
    return "the code is right" if agreed else "the code differs from the solutions"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--model", default="tiny-llama")
    parser.add_argument("--max-tokens", type=int, default=64)
    print(asyncio.run(main(**vars(parser.parse_args()))))
