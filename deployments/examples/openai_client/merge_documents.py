"""DM (Graph of Thoughts): merge two documents, score the merges, improve the best."""

import argparse
import asyncio
import os
import re
import statistics
import uuid

from openai import AsyncOpenAI

DOCUMENTS = "1. Both parties keep secrets.\n\n2. Secrets are kept for two years."


async def main(base_url: str, model: str, max_tokens: int) -> str:
    application = f"dm-{uuid.uuid4()}"
    headers = {"X-Justitia-Application": application, "X-Justitia-Class": "DM"}
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

        async def score_merge(merge: str) -> float:
            prompt = f"Documents:\n{DOCUMENTS}\nMerge:\n{merge}\nHow good, from 0 to 10?"
            answers = await asyncio.gather(*(ask_model(prompt, temperature=1.0) for _ in range(5)))
            found = (re.search(r"\d+(\.\d+)?", answer) for answer in answers)
            return statistics.fmean([float(mark[0]) for mark in found if mark] or [0.0])

        merge_all = f"Merge into one, say nothing twice:\n{DOCUMENTS}"
        merges = await asyncio.gather(*(ask_model(merge_all, temperature=1.0) for _ in range(2)))
        scores = await asyncio.gather(*(score_merge(merge) for merge in merges))
        best = merges[scores.index(max(scores))]
        improved = await ask_model(f"Documents:\n{DOCUMENTS}\nImprove this merge:\n{best}")
        await client.post(f"/applications/{application}/close", cast_to=object)
    return improved


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--model", default="tiny-llama")
    parser.add_argument("--max-tokens", type=int, default=64)
    print(asyncio.run(main(**vars(parser.parse_args()))))
