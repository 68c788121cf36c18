"""ALFWI (ReAct in a household): give commands turn by turn until the task is done."""

import argparse
import asyncio
import os
import uuid

from openai import AsyncOpenAI

from justitia_ray.lab.workloads.household import Household
from justitia_ray.sim.suites.inputs import household_game

RULES = "Write one command: go to X 1, open X 1, take Y 1 from X 1, put Y 1 in/on X 1."


async def main(base_url: str, model: str, max_tokens: int) -> str:
    application = f"alfwi-{uuid.uuid4()}"
    headers = {"X-Justitia-Application": application, "X-Justitia-Class": "ALFWI"}
    key = os.environ.get("JUSTITIA_API_KEY", "unused")
    async with AsyncOpenAI(base_url=base_url, api_key=key, default_headers=headers) as client:

        async def ask_model(prompt: str) -> str:
            answer = await client.chat.completions.create(
                model=model,
                messages=[{"role": "user", "content": prompt}],
                max_tokens=max_tokens,
            )
            return answer.choices[0].message.content or ""

        text = household_game(seed=1)
        game, said = Household(text), f"{RULES}\n{text}\n>"
        for _ in range(10):
            command = (await ask_model(said)).strip().partition("\n")[0]
            said += f" {command}\n{game.act(command)}\n>"
            if game.is_done:
                break
        await client.post(f"/applications/{application}/close", cast_to=object)
    return "done" if game.is_done else "not done"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--model", default="tiny-llama")
    parser.add_argument("--max-tokens", type=int, default=64)
    print(asyncio.run(main(**vars(parser.parse_args()))))
