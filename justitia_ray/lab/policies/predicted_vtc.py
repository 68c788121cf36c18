"""VTC that charges predicted output on admission, baselines of its paper (OSDI 2024, Sec. 4.4).

The worst case stays that of VTC (Theorem 4.8); counters that know the output in advance keep
clients closer together on average (Table 5).
"""

import hashlib
from collections import deque
from collections.abc import Mapping
from typing import Any, ClassVar

from justitia_ray.core.entities import Application, Inference
from justitia_ray.core.policies.base import PolicyContext
from justitia_ray.core.policies.options import Option, whole
from justitia_ray.core.policies.vtc import VtcPolicy
from justitia_ray.core.records import RecordReader
from justitia_ray.units import ClientId, Tokens

_REMEMBERED = 5
"""A client's next output is predicted as the mean of its last five (VTC, Sec. 5.1)."""


class VtcPredictPolicy(VtcPolicy):
    """VTC that charges a predicted output in advance: the mean of the client's last five outputs.

    A cancelled inference counts with the output that it produced. The mean is taken over sequences,
    multiplied by an inference's number of sequences and rounded to whole tokens.
    """

    def __init__(self, context: PolicyContext) -> None:
        super().__init__(context)
        self._outputs: dict[ClientId, deque[tuple[Tokens, int]]] = {}
        """Number of output tokens and sequences of each client's last inferences."""

    def predicted_tokens(self, application: Application, inference: Inference) -> Tokens:
        outputs = self._outputs.get(self.client(application))
        if outputs is None:
            return 0
        tokens = sum(output_tokens for output_tokens, _ in outputs)
        return round(inference.choices * tokens / sum(choices for _, choices in outputs))

    def produced(self, client: ClientId, output_tokens: Tokens, choices: int) -> None:
        outputs = self._outputs.setdefault(client, deque(maxlen=_REMEMBERED))
        outputs.append((output_tokens, choices))

    def forget_client(self, client: ClientId) -> None:
        super().forget_client(client)
        self._outputs.pop(client, None)

    def counted(self) -> dict[str, Any]:
        outputs = {client: [list(one) for one in last] for client, last in self._outputs.items()}
        return super().counted() | {"outputs": outputs}

    def take_over(self, counted: Mapping[str, Any]) -> None:
        outputs = RecordReader(counted, ("outputs",), None).table("outputs", _read_outputs)
        super().take_over(counted)
        self._outputs = outputs


class VtcOraclePolicy(VtcPolicy):
    """VTC that charges the true output in advance, or the predicted one if it is unknown."""

    def predicted_tokens(self, application: Application, inference: Inference) -> Tokens:
        if inference.true_output_tokens is None:
            return inference.predicted_output_tokens
        return inference.true_output_tokens


class VtcNoisyPolicy(VtcOraclePolicy):
    """VTC that charges an output in advance, with an error of up to 50 %."""

    OPTIONS: ClassVar[tuple[Option, ...]] = (*VtcOraclePolicy.OPTIONS, Option("seed", 0, whole(0)))

    def predicted_tokens(self, application: Application, inference: Inference) -> Tokens:
        """Return a random output length, the same in every run with this seed."""
        length = super().predicted_tokens(application, inference)
        # An inference id is unique only within its application.
        name = repr((self.options.own["seed"], inference.application_id, inference.inference_id))
        drawn = int.from_bytes(hashlib.sha256(name.encode()).digest())
        least, most = (length + 1) // 2, 3 * length // 2
        return least + drawn % (most - least + 1)


def _read_outputs(outputs: RecordReader, client: str) -> deque[tuple[Tokens, int]]:
    last: deque[tuple[Tokens, int]] = deque(maxlen=_REMEMBERED)
    for item in outputs.items(client):
        output_tokens, choices = RecordReader({client: item}, (client,)).integers(client)
        if not choices:
            raise ValueError(f"{item!r} has no sequence")
        last.append((output_tokens, choices))
    return last
