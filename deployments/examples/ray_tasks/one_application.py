"""Ray tasks in one application: each task summarises a part under the application's id.

Tasks on any node of the cluster reach the service over a Serve handle, without HTTP.
"""

import argparse
import json
import uuid
from collections.abc import Mapping

import ray
from ray import serve

DOCUMENT = "The council met on Monday. It decided to repair the bridge.\n" * 40
PART_CHARS = 600
TENANT = "team-a"


def call_service(
    app: str, application: str, method: str, path: str, fields: Mapping[str, object]
) -> str:
    """Send one inference to the service's Ingress deployment, and return the answer's text."""
    ingress = serve.get_deployment_handle("Ingress", app)
    headers = {
        "x-justitia-application": application,
        "x-justitia-class": "MRS",
        "x-justitia-tenant": TENANT,
    }
    answer = ingress.call.remote(method, path, headers, json.dumps(fields).encode())
    status, _, body = answer.result()
    if status != 200:
        raise RuntimeError(f"{path} answered {status}: {bytes(body).decode()}")
    return bytes(body).decode()


@ray.remote(num_cpus=0.1)
def run_inference(app: str, application: str, model: str, prompt: str, max_tokens: int) -> str:
    """Ray task that runs one inference of the application, and returns its text."""
    messages = [{"role": "user", "content": prompt}]
    fields = {"model": model, "messages": messages, "max_tokens": max_tokens}
    answer = json.loads(call_service(app, application, "POST", "/v1/chat/completions", fields))
    return str(answer["choices"][0]["message"]["content"])


def main(app: str, model: str, max_tokens: int) -> str:
    """Summarise each part of a document in a Ray task, then summarise the summaries."""
    application = f"mrs-{uuid.uuid4()}"
    opening = {"application_id": application, "application_class": "MRS", "input": DOCUMENT}
    call_service(app, application, "POST", "/v1/applications", opening)
    starts = range(0, len(DOCUMENT), PART_CHARS)
    parts = [f"Summarise:\n{DOCUMENT[start : start + PART_CHARS]}" for start in starts]
    summaries = ray.get(
        [run_inference.remote(app, application, model, part, max_tokens) for part in parts]
    )
    final = "Write one summary of these:\n" + "\n".join(summaries)
    summary: str = ray.get(run_inference.remote(app, application, model, final, max_tokens))
    call_service(app, application, "POST", f"/v1/applications/{application}/close", {})
    return summary


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--app", default="justitia", help="the Serve application")
    parser.add_argument("--model", default="tiny-llama")
    parser.add_argument("--max-tokens", type=int, default=64)
    options = vars(parser.parse_args())
    ray.init(address="auto")
    print(main(**options))
