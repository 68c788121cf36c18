"""KBQAV (FacTool's fact check): compare each claim of a response with the results of a search."""

import argparse
import asyncio
import os
import uuid

from openai import AsyncOpenAI

RESPONSE = "The Danube rises in the Black Forest. It flows into the Adriatic Sea."
EVIDENCE = ["The Danube rises at Donaueschingen.", "The Danube flows into the Black Sea."]


async def main(base_url: str, model: str, max_tokens: int) -> str:
    application = f"kbqav-{uuid.uuid4()}"
    headers = {"X-Justitia-Application": application, "X-Justitia-Class": "KBQAV"}
    key = os.environ.get("JUSTITIA_API_KEY", "unused")
    async with AsyncOpenAI(base_url=base_url, api_key=key, default_headers=headers) as client:

        async def ask_model(prompt: str) -> str:
            answer = await client.chat.completions.create(
                model=model,
                messages=[{"role": "user", "content": prompt}],
                max_tokens=max_tokens,
            )
            return answer.choices[0].message.content or ""

        listed = await ask_model(f"List the claims of this text, one a line:\n{RESPONSE}")
        claims = [line.strip("-* ") for line in listed.splitlines() if line.strip()][:4]

        async def check_claim(claim: str) -> str:
            query = await ask_model(f"Write a search query for evidence on: {claim}")
            words = set(query.lower().split())
            found = max(EVIDENCE, key=lambda text: len(words & set(text.lower().split())))
            return await ask_model(f"Claim: {claim}\nEvidence: {found}\nTrue or false, and why?")

        verdicts = await asyncio.gather(*(check_claim(claim) for claim in claims))
        await client.post(f"/applications/{application}/close", cast_to=object)
    return "\n".join(verdicts)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--model", default="tiny-llama")
    parser.add_argument("--max-tokens", type=int, default=64)
    print(asyncio.run(main(**vars(parser.parse_args()))))
