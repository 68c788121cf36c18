"""MRS (map-reduce summary): summarise the parts of a document at once, then the summaries."""

import argparse
import asyncio
import os
import uuid

from openai import AsyncOpenAI

DOCUMENT = "The council met on Monday. It decided to repair the bridge.\n" * 40
PART_CHARS = 600


async def main(base_url: str, model: str, max_tokens: int) -> str:
    application = f"mrs-{uuid.uuid4()}"
    headers = {"X-Justitia-Application": application, "X-Justitia-Class": "MRS"}
    key = os.environ.get("JUSTITIA_API_KEY", "unused")
    async with AsyncOpenAI(base_url=base_url, api_key=key, default_headers=headers) as client:

        async def ask_model(prompt: str) -> str:
            answer = await client.chat.completions.create(
                model=model,
                messages=[{"role": "user", "content": prompt}],
                max_tokens=max_tokens,
            )
            return answer.choices[0].message.content or ""

        starts = range(0, len(DOCUMENT), PART_CHARS)
        parts = [DOCUMENT[start : start + PART_CHARS] for start in starts]
        summaries = await asyncio.gather(*(ask_model(f"Summarise:\n{part}") for part in parts))
        summary = await ask_model("Write one summary of these:\n" + "\n".join(summaries))
        await client.post(f"/applications/{application}/close", cast_to=object)
    return summary


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--model", default="tiny-llama")
    parser.add_argument("--max-tokens", type=int, default=64)
    print(asyncio.run(main(**vars(parser.parse_args()))))
