"""EV (FacTool's calculation check): verify a solution's calculations by expressions."""

import argparse
import asyncio
import os
import uuid

from openai import AsyncOpenAI

from justitia_ray.lab.workloads.sandbox import run_python

SOLUTION = "4 boxes hold 12 eggs each, 4 * 12 = 48. Six break, so 48 - 6 = 41 are left."


async def main(base_url: str, model: str, max_tokens: int) -> str:
    application = f"ev-{uuid.uuid4()}"
    headers = {"X-Justitia-Application": application, "X-Justitia-Class": "EV"}
    key = os.environ.get("JUSTITIA_API_KEY", "unused")
    async with AsyncOpenAI(base_url=base_url, api_key=key, default_headers=headers) as client:

        async def ask_model(prompt: str) -> str:
            answer = await client.chat.completions.create(
                model=model,
                messages=[{"role": "user", "content": prompt}],
                max_tokens=max_tokens,
            )
            return answer.choices[0].message.content or ""

        listed = await ask_model(f"List the calculations, one a line, as 'a * b = c':\n{SOLUTION}")
        calculations = [line for line in listed.splitlines() if "=" in line][:9] or ["4 * 12 = 48"]
        asked = "Write a Python expression that is True if this holds, and nothing else: "
        snippets = await asyncio.gather(*(ask_model(asked + line) for line in calculations))
        runs = await asyncio.gather(*(run_python(f"print({text.strip()})") for text in snippets))
        held = sum(run.output == "True\n" for run in runs)
        await client.post(f"/applications/{application}/close", cast_to=object)
    return f"{held} of {len(runs)} calculations hold"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--model", default="tiny-llama")
    parser.add_argument("--max-tokens", type=int, default=64)
    print(asyncio.run(main(**vars(parser.parse_args()))))
