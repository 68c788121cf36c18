"""VTC with length prediction (OSDI 2024, Sec. 4.4, Alg. 3): charge the output on admission.

The worst case stays that of VTC (Theorem 4.8); counters that know what is coming keep clients
closer together on average (Table 5).
"""

import hashlib
from collections import deque
from collections.abc import Mapping
from typing import Any, ClassVar

from justitia_ray.core.entities import Application, Inference
from justitia_ray.core.policies.base import PolicyContext
from justitia_ray.core.policies.client_policy import checked_table
from justitia_ray.core.policies.options import Option, whole
from justitia_ray.core.policies.vtc import VtcPolicy
from justitia_ray.core.records import checked_count
from justitia_ray.units import ClientId, Tokens

_REMEMBERED = 5
"""Outputs that a prediction is the mean of: VTC, Sec. 5.1."""


class VtcPredictPolicy(VtcPolicy):
    """d̂ is the mean of the client's last five outputs; 0 as long as there is none.

    The policy is not told how an inference ended: one that was cancelled midway counts with what it
    had made. The mean is over sequences, so that a lease of several is predicted their number of
    times, and rounded to whole tokens.
    """

    def __init__(self, context: PolicyContext) -> None:
        super().__init__(context)
        self._outputs: dict[ClientId, deque[tuple[Tokens, int]]] = {}
        """(output tokens, sequences) of each client's last inferences."""

    def predicted_tokens(self, application: Application, inference: Inference) -> Tokens:
        """Return the mean of the last outputs."""
        outputs = self._outputs.get(self.client(application))
        if outputs is None:
            return 0
        tokens = sum(output_tokens for output_tokens, _ in outputs)
        return round(inference.choices * tokens / sum(choices for _, choices in outputs))

    def produced(self, client: ClientId, output_tokens: Tokens, choices: int) -> None:
        """Remember it."""
        outputs = self._outputs.setdefault(client, deque(maxlen=_REMEMBERED))
        outputs.append((output_tokens, choices))

    def forget_client(self, client: ClientId) -> None:
        """Forget its outputs too."""
        super().forget_client(client)
        self._outputs.pop(client, None)

    def counted(self) -> dict[str, Any]:
        """Return the last outputs too."""
        outputs = {client: [list(one) for one in last] for client, last in self._outputs.items()}
        return super().counted() | {"outputs": outputs}

    def take_over(self, counted: Mapping[str, Any]) -> None:
        """Take over the last outputs too."""
        outputs = checked_table(
            counted["outputs"], lambda last: deque(map(_checked_output, last), maxlen=_REMEMBERED)
        )
        super().take_over(counted)
        self._outputs = outputs


class VtcOraclePolicy(VtcPolicy):
    """d̂ is the true length; the predicted one where the truth is not known, as in service."""

    def predicted_tokens(self, application: Application, inference: Inference) -> Tokens:
        """Return the truth, or the prediction that the inference came with."""
        if inference.true_output_tokens is None:
            return inference.predicted_output_tokens
        return inference.true_output_tokens


class VtcNoisyPolicy(VtcOraclePolicy):
    """d̂ is drawn evenly from the whole numbers of [0.5 d, 1.5 d], d as `vtc-oracle` has it."""

    OPTIONS: ClassVar[tuple[Option, ...]] = (*VtcOraclePolicy.OPTIONS, Option("seed", 0, whole(0)))

    def predicted_tokens(self, application: Application, inference: Inference) -> Tokens:
        """Draw once for each inference, the same in every run with this seed."""
        length = super().predicted_tokens(application, inference)
        # An inference's own id is unique in its application only.
        name = repr((self.options.own["seed"], inference.application_id, inference.inference_id))
        drawn = int.from_bytes(hashlib.sha256(name.encode()).digest())
        least, most = (length + 1) // 2, 3 * length // 2
        return least + drawn % (most - least + 1)


def _checked_output(fields: Any) -> tuple[Tokens, int]:
    output_tokens, choices = map(checked_count, fields)
    if not choices:
        raise ValueError(f"{fields!r} has no sequence")
    return (output_tokens, choices)
