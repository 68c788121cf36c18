"""PE (HuggingGPT): plan subtasks, run each once its inputs are ready, then respond."""

import argparse
import asyncio
import json
import os
import uuid

from openai import AsyncOpenAI

REQUEST = "Summarise this, then say it in French: The bridge is closed until May."
TASKS = [("summarization", list[int]()), ("translation", [0])]
PLAN = (
    'Answer with a JSON list of {"task": name, "dep": indices of earlier tasks} and nothing else.'
)


async def main(base_url: str, model: str, max_tokens: int) -> str:
    application = f"pe-{uuid.uuid4()}"
    headers = {"X-Justitia-Application": application, "X-Justitia-Class": "PE"}
    key = os.environ.get("JUSTITIA_API_KEY", "unused")
    async with AsyncOpenAI(base_url=base_url, api_key=key, default_headers=headers) as client:

        async def ask_model(prompt: str) -> str:
            answer = await client.chat.completions.create(
                model=model,
                messages=[{"role": "user", "content": prompt}],
                max_tokens=max_tokens,
            )
            return answer.choices[0].message.content or ""

        planned = await ask_model(f"{PLAN}\nRequest: {REQUEST}")
        try:
            plan = [(str(task["task"]), task["dep"]) for task in json.loads(planned)]
            tasks = [(name, [d for d in dep if 0 <= d < i]) for i, (name, dep) in enumerate(plan)]
        except (ValueError, TypeError, KeyError):
            tasks = TASKS
        running: list[asyncio.Task[str]] = []

        async def run_subtask(task: str, needs: list[int]) -> str:
            known = [await running[need] for need in needs]
            return await ask_model(f"Request: {REQUEST}\nKnown: {known}\nCarry out: {task}")

        running += [asyncio.create_task(run_subtask(*task)) for task in tasks]
        results = await asyncio.gather(*running)
        response = await ask_model(f"Request: {REQUEST}\nResults: {results}\nAnswer the user.")
        await client.post(f"/applications/{application}/close", cast_to=object)
    return response


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--model", default="tiny-llama")
    parser.add_argument("--max-tokens", type=int, default=64)
    print(asyncio.run(main(**vars(parser.parse_args()))))
