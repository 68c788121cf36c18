"""Sections of `user_config`: policy, tree of tenants and tiers. They can change at run time."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from justitia_ray.access.identity import check_tenant
from justitia_ray.config.schema import Count, Positive, Section, Weight
from justitia_ray.core.admission import ADMISSIONS
from justitia_ray.core.policies import advice, in_force, parse_options
from justitia_ray.core.tenants import (
    ANY,
    TIERS,
    ApplicationCaps,
    KvShare,
    OnExhausted,
    Period,
    Quota,
    TenantNode,
    TenantTree,
    Tier,
    Unit,
    Window,
    check_guaranteed,
)
from justitia_ray.errors import ConfigError, RequestError, shown_short

Share = Annotated[float, Field(ge=0, le=1)]
_BY_TAG = ("justitia", "justitia-guarded")
"""Policies that order applications by tags (virtual finish times)."""


class KvShareSection(Section):
    """A tenant's or a tier's share of the KV memory of each model, over all its replicas."""

    guaranteed: Share = 0.0
    """Share of the KV memory that is reserved, 0 to 1. The shares of sibling tenants add up to at
    most the parent's share; those of tiers, and those of top-level tenants, to at most 1. The part
    that is not lent (`lends`) is kept free.
    """
    max: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Largest share of the KV memory that the tenant or the tier may hold, above 0 and at most 1.
    """
    lends: Share = 1.0
    """Fraction of the guaranteed share that others may use while it is unused; 0 keeps all of it
    free."""


class QuotaSection(Section):
    """A limit on a tenant's usage in a period, over all models."""

    unit: Unit
    """Unit of the quota: `kv_token_time` (token·iterations), `tokens` (prompt and output),
    `computed_tokens` (without prompt tokens found in the engine's prefix cache), `inferences` or
    `applications`.
    """
    limit: Positive
    per: Period
    """Period of the quota: `second`, `minute`, `hour`, `day` or `month` (30 days, if it is
    rolling).
    """
    window: Window = Window.ROLLING
    """Window of the period: `rolling`, or `calendar` (days and months in UTC)."""
    on_exhausted: OnExhausted = OnExhausted.REJECT
    """Effect of an exhausted quota. `reject`: applications are refused. `deprioritise`: they run
    only when no application with quota waits. `shadow`: they run, and metrics count what would have
    been refused."""
    reserve_quantile: Annotated[float, Field(ge=0.5, le=1)] = 1.0
    """Quantile of its predicted usage that a running inference reserves of `tokens` and
    `kv_token_time` quotas. 1 reserves as much as its `max_tokens` allow, so that the limit is
    exceeded by at most the error of one prediction; a lower quantile lets more inferences run at
    once."""

    @model_validator(mode="after")
    def _calendar_window_is_day_or_month(self) -> "QuotaSection":
        if self.window is Window.CALENDAR and self.per not in (Period.DAY, Period.MONTH):
            raise ValueError(f"window: calendar is for per: day or month, not {self.per.value}")
        if self.unit in (Unit.INFERENCES, Unit.APPLICATIONS) and self.limit != int(self.limit):
            raise ValueError(f"limit: a whole number of {self.unit.value} is allowed")
        return self


class CapsSection(Section):
    """Limits on one application of a tenant; further usage is refused."""

    inferences: Count | None = None
    """Largest number of inferences that the application may submit."""
    kv_token_time: Positive | None = None
    """Largest service of the application, in token·iterations of KV memory."""
    seconds: Positive | None = None
    """Time after the application's opening within which it may submit inferences."""


class TenantSection(Section):
    """Settings of a tenant, a node of the tenant tree."""

    weight: Weight | None = None
    """Weight of the tenant among its siblings, 0.001 to 1,000,000. `null`: that of its
    applications; for a node with children 1, or `max_weight` if that is less.
    """
    max_weight: Weight | None = None
    """Largest weight that applications of the tenant may request; at most that of the parent."""
    kv_share: KvShareSection = KvShareSection()
    quotas: tuple[QuotaSection, ...] = ()
    """Limits over periods, one for each unit and period. Quotas of all ancestors apply as well."""
    caps: CapsSection = CapsSection()
    deadline_s: Positive | None = None
    """Longest time that an inference waits before it is refused, if the call sets no deadline."""

    def node(self) -> TenantNode:
        return TenantNode(
            self.weight,
            self.max_weight,
            KvShare(self.kv_share.guaranteed, self.kv_share.max, self.kv_share.lends),
            tuple(Quota(**dict(quota)) for quota in self.quotas),
            ApplicationCaps(**dict(self.caps)),
            self.deadline_s,
        )


class TierSection(Section):
    """Settings of a service tier: its weight factor and its share of the KV memory."""

    weight_factor: Weight | None = None
    """Factor on the weight of the tier's applications. `null`: 0.1 for `flex`, 1 for `default`, 4
    for `priority`."""
    kv_share: KvShareSection = KvShareSection()
    """Share of the KV memory for the tier's applications, over all tenants."""

    def tier(self, name: str) -> Tier:
        factor, share = self.weight_factor, self.kv_share
        return Tier(
            TIERS[name].weight_factor if factor is None else factor,
            KvShare(share.guaranteed, share.max, share.lends),
        )


def _check_node(setting: str, path: str) -> None:
    """Raise ValueError if no tenant can have this path."""
    try:
        check_tenant(path)
    except RequestError as error:
        raise ValueError(f"{setting}: {error}") from None


def _build_tree(
    sections: Mapping[str, TenantSection], weights: Mapping[str, float] | None = None
) -> TenantTree:
    return TenantTree({path: section.node() for path, section in sections.items()}, weights or {})


class SchedulingConfig(Section):
    """Scheduling settings of one model's queue, which can change while the application runs."""

    policy: str = "justitia"
    """Name of a policy in the table below, or the import path of your own policy,
    `package.module:Class`.
    """
    policy_options: dict[str, Any] = Field(default={})
    """Options of the policy: those of every policy and its own, both listed below. Unknown options
    are errors."""
    admission: str = "peak"
    """Rule by which a replica admits an inference. `peak`: the largest predicted KV of all running
    inferences must fit the memory, so that vLLM recomputes nothing (in the design's study the mean
    completion time differs by 0.2 points). `prompt`: the prompt must fit now, as in vLLM and the
    paper.
    """
    tenant_weights: dict[str, Weight] = Field(default={})
    """Weight of applications that request none, by tenant; the nearest named node above the
    application counts; without one the weight is 1. A change applies to applications that are
    opened afterwards. If the tenant has tenants below it, this is also its weight among its
    siblings."""
    tenants: dict[str, TenantSection] = Field(default={})
    """The tree of tenants, by path: `acme`, `acme/search`. `acme/*` applies to children of `acme`
    that are not named, `*` to top-level tenants that are not named; see below."""
    tiers: dict[Literal["flex", "default", "priority"], TierSection] = Field(default={})
    """Settings of service tiers, by the name that requests give as `service_tier`."""

    @property
    def tenant_tree(self) -> TenantTree:
        """Settings of all tenants, in the form that the scheduler uses."""
        return _build_tree(self.tenants, self.tenant_weights)

    @property
    def service_tiers(self) -> dict[str, Tier]:
        """Settings of all service tiers by name, with defaults."""
        own = {str(name): section.tier(name) for name, section in self.tiers.items()}
        return {**TIERS, **own}

    @model_validator(mode="after")
    def _tenant_tree_is_valid(self) -> "SchedulingConfig":
        for path in self.tenants:
            if path != ANY:
                _check_node("tenants", path.removesuffix(f"/{ANY}"))
        for path in self.tenant_weights:
            _check_node("tenant_weights", path)
        both = sorted(set(self.tenants) & set(self.tenant_weights))
        if both:
            raise ValueError(f"tenant_weights: {both[0]!r} is in tenants, too; name it there only")
        try:
            check_guaranteed(_build_tree(self.tenants), self.service_tiers)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return self

    @property
    def deprioritises(self) -> bool:
        """Whether a quota of a tenant deprioritises applications when it is exhausted."""
        return any(
            quota.on_exhausted is OnExhausted.DEPRIORITISE
            for section in self.tenants.values()
            for quota in section.quotas
        )

    @model_validator(mode="after")
    def _applications_beyond_a_quota_have_their_own_clock(self) -> "SchedulingConfig":
        fairness = self.policy_options.get("fairness")
        if fairness == "application" and self.policy in _BY_TAG and self.deprioritises:
            raise ValueError(
                "policy_options.fairness: application is not allowed beside a quota with"
                " on_exhausted: deprioritise; tenant is allowed, and is the default there"
            )
        return self

    def fair_between_tenants(self) -> Self:
        """Return the settings with `fairness: tenant` as default.

        It is the default for authenticated tenants, and where a quota deprioritises: with shares by
        application one clock would serve applications within and beyond quota, and lose its
        precision within days. Settings with another `fairness`, or with a clock that does not
        support it, stay as they are.
        """
        options = self.policy_options
        if self.policy not in _BY_TAG or "fairness" in options:
            return self
        if options.get("clock", "served") != "served":
            return self
        return self.model_copy(update={"policy_options": options | {"fairness": "tenant"}})

    @property
    def advice(self) -> str | None:
        """Hint for a policy or option that was renamed or moved, or None."""
        return advice(self.policy, self.policy_options)

    @model_validator(mode="after")
    def _model_names_are_known(self) -> "SchedulingConfig":
        if self.admission not in ADMISSIONS:
            raise ValueError(f"admission: {self.admission!r} is not one of {', '.join(ADMISSIONS)}")
        try:
            parse_options(*in_force(self.policy, self.policy_options))
        except ConfigError as error:
            raise ValueError(str(error)) from error
        return self


class AppSettings(SchedulingConfig):
    """`user_config` of the Ingress deployment: settings for all models, and for single models."""

    models: dict[str, dict[str, Any]] = Field(default={})
    """Settings that differ for one model, by the model's name; only with several models."""

    def each_model(self, names: Sequence[str]) -> dict[str, SchedulingConfig]:
        """Return the settings of each given model, its entry in `models` included.

        Raises:
            ConfigError: If there are settings for a model that is not given, or some settings are
                not allowed.
        """
        for name in self.models:
            if "tenants" in self.models[name]:
                raise ConfigError(
                    f"models.{name}: tenants is for all models: name it outside of models"
                )
            if name not in names:
                raise ConfigError(
                    f"models: there is no model {shown_short(name)}; {', '.join(names)}"
                    f" {'are' if len(names) > 1 else 'is'} served"
                )
        return {name: self._settings_of(name) for name in names}

    def _settings_of(self, name: str) -> SchedulingConfig:
        own = self.models.get(name, {})
        shared = self.model_dump(include=set(SchedulingConfig.model_fields))
        if own.get("policy", self.policy) != self.policy:
            shared["policy_options"] = {}  # options of another policy
        return SchedulingConfig.parse(shared | own, f"models.{name}: ")
