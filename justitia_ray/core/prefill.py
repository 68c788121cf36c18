"""Prefill as a part of the cost: expected, largest possible, and actual cost of each prompt.

The functions are called only if computing a prompt costs something (`State.prefill_cost`).
README.md derives who pays for a prompt that is computed again.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from justitia_ray.core.own_contexts import OwnContext, OwnContexts
from justitia_ray.core.prefill_account import PrefillAccount
from justitia_ray.core.stages import ExpectedStage
from justitia_ray.cost import PrefillCost
from justitia_ray.units import KvTokenTime, Tokens

if TYPE_CHECKING:
    from justitia_ray.core.entities import Application, Inference

NO_REUSE = -2
"""Value of `Application.reuse` at which an application's prompts are assumed to have no common
part.
"""


@dataclass(slots=True, eq=False)
class Prefill:
    """Cost of computing an inference's prompts, in token·iterations unless stated otherwise."""

    expected: KvTokenTime = 0
    """Cost that the application's tag is still expected to pay for the prompt; 0 once it is
    computed.
    """
    most: KvTokenTime = 0
    """Largest cost that the application's tag may still have to pay for the prompt; 0 once it is
    computed.
    """
    charged: KvTokenTime = 0
    """Part of `PrefillAccount.pending` that was charged for the expected cost."""
    paid: KvTokenTime = 0
    """Cost of the prompt that the application's tag has paid; never falls."""
    forgiven: KvTokenTime = 0
    """Cost of the prompt that only the tenant has paid, because others evicted the context; never
    falls.
    """
    recomputed: KvTokenTime = 0
    """Part of `forgiven` for tokens that engines computed again after preemptions."""
    recomputed_tokens: Tokens = 0
    expected_tokens: Tokens = 0
    """Prompt tokens that a replica with the continued context would have to compute."""
    lost_tokens: Tokens = 0
    """Tokens of the continued context that the replica lacks for a reason other than the
    application's own use.
    """
    computed_tokens: Tokens = 0
    """Prompt tokens that engines have computed."""
    context: OwnContext | None = None
    """Context that contains the prompt, once the prompt is computed."""


class PrefillPaid(NamedTuple):
    """Cost of prompt tokens computed for one inference since the last report."""

    paid: KvTokenTime = 0
    """Cost of computed prompt tokens for which the application's tag pays."""
    forgiven: KvTokenTime = 0
    """Cost of computed prompt tokens for which only the tenant pays."""
    was_expected: KvTokenTime = 0
    """Part of the expected cost that belonged to the prompt tokens computed now."""


NOTHING_PAID = PrefillPaid()


def prefill_of_stages(cost: PrefillCost, stages: Iterable[ExpectedStage]) -> KvTokenTime:
    """Return the prefill of an application with these stages, if no prompt is cached.

    Unknown stages are left out.
    """
    total: KvTokenTime = 0
    for stage in stages:
        if stage.inferences:
            each = stage.compute_tokens / stage.inferences - 2 * stage.mean_output_tokens
            prompt = max(1, round(each))
            total += stage.inferences * cost.of(prompt, prompt)
    return total


def expect_prefill(
    account: PrefillAccount, application: "Application", inference: "Inference"
) -> None:
    """Set the expected cost of a submitted prompt; the caller then charges it.

    A part of it that an earlier scheduler has charged is not charged again.
    """
    cost, tokens = account.cost, _expected_tokens(account, application, inference)
    expected = _cost_of_tokens(cost, inference, tokens)
    most = _cost_of_tokens(cost, inference, inference.prompt_tokens)
    inference.prefill = Prefill(expected, most, expected)
    again = min(expected, account.pending_before) if inference.resubmitted else 0
    account.pending_before -= again
    account.pending += expected - again


def place_prefill(
    account: PrefillAccount,
    application: "Application",
    inference: "Inference",
    missing: Tokens | None,
) -> None:
    """Record the prompt tokens that a lease has to compute.

    Args:
        account: Prefill of the application.
        application: Application of the inference.
        inference: The inference that is leased.
        missing: Prompt tokens that the replica has to compute, by the table of its contexts; None:
            the replica has no prefix cache.
    """
    prefill, own = inference.prefill, account.contexts
    assert prefill is not None
    whole = _cost_of_tokens(account.cost, inference, inference.prompt_tokens)
    prefill.most = max(0, whole - _paid_and_forgiven(prefill))
    prefill.expected_tokens = _expected_tokens(account, application, inference)
    prefill.lost_tokens = 0
    if missing is not None and own is not None and application.reuse > 0:
        continued = own.continued_by(_prompt_length(inference))
        if continued is not None:
            lost = missing - prefill.expected_tokens - (own.begun - continued.begun_before)
            prefill.lost_tokens = max(0, lost)


def pay_prefill(
    account: PrefillAccount,
    inference: "Inference",
    *,
    is_cached: bool,
    recomputed_tokens: Tokens = 0,
) -> PrefillPaid:
    """Count the prompt tokens that engines computed for an inference; return the new cost.

    Args:
        account: Prefill of the inference's application.
        inference: The inference, with the tokens of the report.
        is_cached: Whether the replica of the inference caches prompts.
        recomputed_tokens: Tokens that the engine has computed again after preemptions; only the
            tenant pays for them.
    """
    prefill, tokens = inference.prefill, inference.begun_computed_tokens
    assert prefill is not None
    has_begun = inference.begun_prompt_tokens > 0 and (
        inference.choices == 1 or inference.cached_tokens is not None
    )
    if not has_begun:
        return NOTHING_PAID
    cost, own = account.cost, account.contexts
    if own is None:
        own = account.contexts = OwnContexts()
    was_expected = prefill.charged
    prefill.expected = prefill.most = prefill.charged = 0
    if is_cached and inference.output_tokens and prefill.context is None:
        prefill.context = own.begin(_prompt_length(inference))
    again: KvTokenTime = 0
    if recomputed_tokens > prefill.recomputed_tokens:
        held = (inference.prompt_tokens + inference.output_tokens) // inference.choices
        again = _cost_of(cost, held, recomputed_tokens - prefill.recomputed_tokens)
        prefill.recomputed_tokens = recomputed_tokens
        prefill.recomputed += again
        prefill.forgiven += again
    whole = _cost_of_tokens(cost, inference, tokens)
    new = whole - _paid_and_forgiven(prefill)
    if new <= 0:
        return PrefillPaid(0, again, was_expected) if again or was_expected else NOTHING_PAID
    spared = min(prefill.lost_tokens, tokens - prefill.expected_tokens, own.forgivable)
    spared = max(0, spared)
    forgiven = min(new, whole - _cost_of_tokens(cost, inference, tokens - spared))
    own.forgivable += max(0, tokens - prefill.computed_tokens - spared) - spared
    prefill.lost_tokens, prefill.computed_tokens = 0, tokens
    prefill.paid += new - forgiven
    prefill.forgiven += forgiven
    return PrefillPaid(new - forgiven, forgiven + again, was_expected)


def paid_before(account: PrefillAccount, inference: "Inference", new: PrefillPaid) -> PrefillPaid:
    """Return a resubmitted inference's prompt cost that no earlier scheduler has counted."""
    prefill = inference.prefill
    assert prefill is not None
    again = min(new.forgiven, account.forgiven_before)
    forgiven = min(new.paid, account.forgiven_before - again)
    paid = min(new.paid - forgiven, account.paid_before)
    account.forgiven_before -= again + forgiven
    account.paid_before -= paid
    prefill.paid -= forgiven
    prefill.forgiven += forgiven
    return new._replace(paid=new.paid - forgiven - paid, forgiven=new.forgiven - again)


def leave_answer(inference: "Inference") -> None:
    """Add the answer of an ended inference to the context of its prompt."""
    prefill = inference.prefill
    if prefill is not None and prefill.context is not None:
        answer = inference.output_tokens // inference.choices
        prefill.context.tokens = prefill.context.prompt_tokens + answer


def _expected_tokens(
    account: PrefillAccount, application: "Application", inference: "Inference"
) -> Tokens:
    """Return the prompt tokens to compute on the replica with the prompt's context."""
    prompt, own = _prompt_length(inference), account.contexts
    repeated = inference.repeated_tokens(1) if inference.copies > 1 else 0
    uncached = inference.prompt_tokens - repeated
    if own is None or application.reuse <= NO_REUSE:
        return uncached
    continued = own.continued_by(prompt)
    there = 0 if continued is None else min(continued.tokens, prompt - 1)
    return max(1, uncached - there)


def _paid_and_forgiven(prefill: Prefill) -> KvTokenTime:
    """Return two costs of a prompt: one paid by the tag, the other paid only by the tenant."""
    return prefill.paid + prefill.forgiven - prefill.recomputed


def _cost_of_tokens(
    cost: PrefillCost, inference: "Inference", computed_tokens: Tokens
) -> KvTokenTime:
    """Return the cost of computing some tokens of an inference's prompts, prompt after prompt."""
    return _cost_of(cost, inference.prompt_tokens // inference.choices, computed_tokens)


def _cost_of(cost: PrefillCost, each: Tokens, computed_tokens: Tokens) -> KvTokenTime:
    if computed_tokens <= each or not each:
        return cost.of(computed_tokens, max(each, computed_tokens))
    whole, rest = divmod(computed_tokens, each)
    return whole * cost.of(each, each) + cost.of(rest, each)


def _prompt_length(inference: "Inference") -> Tokens:
    return inference.prompt_tokens // inference.copies
