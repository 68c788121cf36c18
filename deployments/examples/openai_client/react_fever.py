"""FV (ReAct on FEVER): think and search turn by turn until the claim is decided."""

import argparse
import asyncio
import os
import re
import uuid

from openai import AsyncOpenAI

from justitia_ray.lab.workloads.react_fever import PassageSearch

CLAIM = "The band Paramore is from Tennessee."
PASSAGES = ["Paramore: a rock band from Franklin.", "Franklin: a city in Tennessee."]
RULES = "Each turn write a thought, then Search[words] or Finish[SUPPORTS, REFUTES or UNKNOWN]."


async def main(base_url: str, model: str, max_tokens: int) -> str:
    application = f"fv-{uuid.uuid4()}"
    headers = {"X-Justitia-Application": application, "X-Justitia-Class": "FV"}
    key = os.environ.get("JUSTITIA_API_KEY", "unused")
    async with AsyncOpenAI(base_url=base_url, api_key=key, default_headers=headers) as client:

        async def ask_model(prompt: str) -> str:
            answer = await client.chat.completions.create(
                model=model,
                messages=[{"role": "user", "content": prompt}],
                max_tokens=max_tokens,
            )
            return answer.choices[0].message.content or ""

        search = PassageSearch(PASSAGES)
        verdict, said = "UNKNOWN", f"{RULES}\nClaim: {CLAIM}\n"
        for _ in range(4):
            answer = await ask_model(said)
            if finish := re.search(r"Finish\[(.*?)\]", answer):
                verdict = finish[1]
                break
            wanted = re.search(r"Search\[(.*?)\]", answer)
            found = await search.best(wanted[1] if wanted else answer)
            said += f"{answer}\nObservation: {found[0] if found else 'nothing found'}\n"
        await client.post(f"/applications/{application}/close", cast_to=object)
    return verdict


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--model", default="tiny-llama")
    parser.add_argument("--max-tokens", type=int, default=64)
    print(asyncio.run(main(**vars(parser.parse_args()))))
