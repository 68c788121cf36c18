"""Requests with the times that a server took for them, and the CSV files of measured runs.

A file has the columns
`client,arrival_s,prompt_tokens,output_tokens,first_token_latency_s,latency_s`, in any order; an
aborted request has no latency.
"""

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from justitia_ray.atomic_files import replacing_text
from justitia_ray.core.policies import LAB_POLICIES, POLICIES
from justitia_ray.errors import ConfigError
from justitia_ray.sim.trace_csv import csv_rows, seconds_of, tokens_of
from justitia_ray.sim.workload import WorkloadApplication, WorkloadInference
from justitia_ray.units import Seconds, Tokens

COLUMNS = (
    "client",
    "arrival_s",
    "prompt_tokens",
    "output_tokens",
    "first_token_latency_s",
    "latency_s",
)


@dataclass(frozen=True, slots=True)
class TimedRequest:
    """Measured or simulated request; times are seconds from the run's start."""

    client: str
    arrived_at_s: Seconds
    prompt_tokens: Tokens
    output_tokens: Tokens
    first_token_at_s: Seconds
    finished_at_s: Seconds

    @property
    def first_token_latency_s(self) -> Seconds:
        """Time from the arrival to the first token."""
        return self.first_token_at_s - self.arrived_at_s


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    name: str
    """Name of the run's file."""
    policy: str
    requests: tuple[TimedRequest, ...]
    """Requests that finished; at least one."""
    aborted: int = 0
    """Number of requests that did not finish; they are not in `requests`."""


def read_run(path: Path, policy: str | None = None) -> MeasuredRun:
    """Read a measured run from a CSV file, optionally compressed with gzip.

    Args:
        path: The file; in a name such as `vtc__real.csv.gz` the part before `__` is the policy.
        policy: Overrides the policy in the name; without either, `fcfs`.

    Raises:
        ConfigError: If the file cannot be read or a line is wrong; the message names file, line,
            field, value and allowed values.
    """
    requests: list[TimedRequest] = []
    aborted = 0
    for where, fields in csv_rows(path, COLUMNS, others_allowed=False):
        request = _parse_request(where, fields)
        if request is None:
            aborted += 1
        else:
            requests.append(request)
    if not requests:
        raise ConfigError(f"{path}: must hold at least one request with a latency, has none")
    named = path.name.partition("__")[0]
    return MeasuredRun(
        path.name,
        policy or (named if named in (*POLICIES, *LAB_POLICIES) else "fcfs"),
        tuple(requests),
        aborted,
    )


def write_run(path: Path, requests: Iterable[TimedRequest]) -> None:
    """Write requests in the format of `read_run`, atomically.

    Raises:
        ConfigError: If the file cannot be written.
    """
    with replacing_text(path, packed=path.suffix == ".gz") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for r in requests:
            latency = r.finished_at_s - r.arrived_at_s
            times = (f"{r.first_token_latency_s:.6f}", f"{latency:.6f}")
            arrived = f"{r.arrived_at_s:.6f}"
            writer.writerow([r.client, arrived, r.prompt_tokens, r.output_tokens, *times])


def as_workload(
    requests: Sequence[TimedRequest], added_prompt_tokens: Tokens = 0
) -> list[WorkloadApplication]:
    """Return each request as an application of one inference, with its client as tenant.

    Args:
        requests: Only their arrivals and lengths are used.
        added_prompt_tokens: Tokens that the engine puts before each prompt, not counted in the
            file.
    """
    return [
        WorkloadApplication(
            application_id=str(index),
            application_class="measured",
            arrived_at_s=request.arrived_at_s,
            inferences=(
                WorkloadInference(
                    "0", request.prompt_tokens + added_prompt_tokens, request.output_tokens
                ),
            ),
            tenant=request.client,
        )
        for index, request in enumerate(requests)
    ]


def _parse_request(where: str, fields: Mapping[str, str]) -> TimedRequest | None:
    arrived_at_s = seconds_of(where, fields, "arrival_s")
    prompt_tokens = tokens_of(where, fields, "prompt_tokens", least=1)
    output_tokens = tokens_of(where, fields, "output_tokens", least=1)
    if not fields["latency_s"].strip():
        return None
    first_token_s = seconds_of(where, fields, "first_token_latency_s")
    latency_s = seconds_of(where, fields, "latency_s")
    if latency_s < first_token_s:
        raise ConfigError(
            f"{where}: latency_s must be at least first_token_latency_s = {first_token_s:g}, got "
            f"{latency_s:g}"
        )
    return TimedRequest(
        fields["client"].strip(),
        arrived_at_s,
        prompt_tokens,
        output_tokens,
        arrived_at_s + first_token_s,
        arrived_at_s + latency_s,
    )
