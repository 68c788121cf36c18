"""SC (self-consistency): five concurrent attempts at one question, then a vote."""

import argparse
import asyncio
import os
import re
import uuid
from collections import Counter

from openai import AsyncOpenAI

QUESTION = "A train needs 3 hours for 210 km. How far does it come in 5 hours?"
PROMPT = f"{QUESTION}\nReason step by step and end with a line 'Answer: NUMBER'."


async def main(base_url: str, model: str, max_tokens: int) -> str:
    application = f"sc-{uuid.uuid4()}"
    headers = {"X-Justitia-Application": application, "X-Justitia-Class": "SC"}
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

        attempts = await asyncio.gather(*(ask_model(PROMPT, temperature=0.7) for _ in range(5)))
        numbers = [n for text in attempts for n in re.findall(r"Answer: (-?[\d.]+)", text)[-1:]]
        votes = Counter(numbers).most_common(1)
        await client.post(f"/applications/{application}/close", cast_to=object)
    return votes[0][0] if votes else "no attempt gave a number"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--model", default="tiny-llama")
    parser.add_argument("--max-tokens", type=int, default=64)
    print(asyncio.run(main(**vars(parser.parse_args()))))
