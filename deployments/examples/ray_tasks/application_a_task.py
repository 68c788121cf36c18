"""Many applications, one for each Ray task: every task asks one question and takes a vote.

The client takes a Serve handle in place of a URL; the agent is the same as over HTTP.
"""

import argparse
import asyncio
from collections import Counter

import ray
from ray import serve

from justitia_ray.client import JustitiaClient, fan_out

QUESTIONS = [f"What is {first} times {second}?" for first in (6, 7) for second in (8, 9)]
VOTES = 3
TENANT = "team-a"


async def vote(app: str, model: str, question: str, max_tokens: int) -> str:
    """Ask the model the question several times at once, and return the most frequent answer."""
    ingress = serve.get_deployment_handle("Ingress", app)
    async with (
        JustitiaClient.from_handle(ingress, model=model, tenant=TENANT) as client,
        client.application("SC", input=question) as application,
    ):
        answers = await fan_out(
            application.chat(question, max_tokens=max_tokens, temperature=0.7) for _ in range(VOTES)
        )
    return Counter(answer.text for answer in answers).most_common(1)[0][0]


@ray.remote(num_cpus=0.1)
def answer_question(app: str, model: str, question: str, max_tokens: int) -> str:
    """Ray task that answers one question in an application of its own."""
    return asyncio.run(vote(app, model, question, max_tokens))


def main(app: str, model: str, max_tokens: int) -> list[str]:
    tasks = [answer_question.remote(app, model, question, max_tokens) for question in QUESTIONS]
    answers: list[str] = ray.get(tasks)
    return answers


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--app", default="justitia", help="the Serve application")
    parser.add_argument("--model", default="tiny-llama")
    parser.add_argument("--max-tokens", type=int, default=64)
    options = vars(parser.parse_args())
    ray.init(address="auto")
    print(main(**options))
