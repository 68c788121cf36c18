"""Sections about authentication of callers, and about recognising the application of a call."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from justitia_ray.access.addresses import check_url, discovery_url
from justitia_ray.access.identity import check_tenant
from justitia_ray.config.schema import HeaderName, NotNegative, Positive, Section, Weight
from justitia_ray.errors import RequestError
from justitia_ray.predictor.class_names import ClassName
from justitia_ray.recognition.harnesses import HARNESSES, Harness
from justitia_ray.recognition.rules import CONVERSATION, DEFAULT_RULES, RULES

JwtAlgorithm = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"
]


class JwtIssuerSection(Section):
    """An issuer of JSON Web Tokens."""

    issuer: Annotated[str, Field(min_length=1)]
    """Exact value of a token's `iss`."""
    audience: Annotated[str, Field(min_length=1)]
    """Audience that a token's `aud` must contain."""
    jwks_url: str | None = None
    """URL of the issuer's public keys, `https://…`; `null`: from the issuer's discovery document,
    `ISSUER/.well-known/openid-configuration`. `http://` is allowed only for this machine."""
    jwks_ca_file: str | None = None
    """File of certificates trusted for `jwks_url`, on every node; `null`: the system's."""
    algorithms: Annotated[tuple[JwtAlgorithm, ...], Field(min_length=1)] = ("RS256", "ES256")
    """Accepted signature algorithms; only asymmetric ones are allowed."""
    tenant_claim: str = "tenant"
    """Claim with the tenant: a path of names separated by dots, `org.team`. A token without this
    claim is refused."""
    tenant_below: str | None = None
    """Tenant above all tenants of this issuer: `acme` makes `acme/search` of `search`. `null`: the
    issuer may name any tenant."""
    user_claim: str = "sub"
    """Claim with the user."""
    scope_claim: str = "scope"
    """Claim with the scopes, separated by blanks or as a list. Scopes that do not begin with
    `scope_prefix` are ignored."""
    scope_prefix: str = "justitia."
    """Prefix of the scopes: `justitia.infer justitia.own` grant `infer` and `own`."""
    max_weight: Weight = 1.0
    """Largest weight that a token's applications may request."""
    leeway_s: NotNegative = 30.0
    """Allowed difference between the issuer's clock and the service's."""

    @model_validator(mode="after")
    def _keys_can_be_read(self) -> "JwtIssuerSection":
        try:
            check_url(self.jwks_url or discovery_url(self.issuer))
        except ValueError as error:
            raise ValueError(f"jwks_url: {error}") from None
        return self


class AccessSection(Section):
    """Credentials of callers; see [access](#who-may-call)."""

    keys_file: str | None = None
    """File of API keys, as `justitia keys create` writes it, on every node with an ingress. It is
    reloaded when it changes; if it cannot be read, the last version stays valid."""
    keys_in_redis: bool = False
    """Whether API keys are also read from the Redis of `store.redis_url`."""
    reload_s: Positive = 5.0
    """Interval at which keys are reloaded: the longest time that a revoked key is still accepted,
    or a new one refused."""
    jwt: tuple[JwtIssuerSection, ...] = ()
    """Issuers whose JSON Web Tokens are accepted."""
    anonymous: str = "deny"
    """`deny`: a call without a credential is answered with 401. Any other value is the tenant of
    such calls, which have the scopes `infer` and `own`."""
    anonymous_max_weight: Weight = 1.0
    """Largest weight that applications without a credential may request."""

    @property
    def default_tenant(self) -> str | None:
        """Tenant of calls without a credential; None if such calls are refused."""
        return None if self.anonymous == "deny" else self.anonymous

    @model_validator(mode="after")
    def _some_calls_are_allowed(self) -> "AccessSection":
        for name, tenant in [
            ("anonymous", self.default_tenant),
            *((f"jwt: {one.issuer}: tenant_below", one.tenant_below) for one in self.jwt),
        ]:
            if tenant is not None:
                try:
                    check_tenant(tenant)
                except RequestError as error:
                    raise ValueError(f"{name}: {error}") from None
        issuers = [one.issuer for one in self.jwt]
        if len(set(issuers)) != len(issuers):
            raise ValueError("jwt: each issuer is allowed once")
        if self.default_tenant is None and not (self.keys_file or self.keys_in_redis or self.jwt):
            raise ValueError(
                "nobody could call: name keys_file, keys_in_redis or jwt, or a tenant under"
                " anonymous"
            )
        return self


class SessionHeadersSection(Section):
    """Headers that identify the sessions of an operator's own agents."""

    name: ClassName
    """Name of the rule, in statuses and metrics; ids of applications that it recognises begin with
    this name."""
    run: HeaderName | None = None
    """Header with the id of the whole run, including sub-agents."""
    session: HeaderName | None = None
    """Header with the id of the session, i.e. of one agent in the run."""
    parent: HeaderName | None = None
    """Header with the id of the parent session, which started this one."""
    final: HeaderName | None = None
    """Header that is `true` in the session's last call."""
    application_class: ClassName | None = None
    """Class of applications that are recognised by these headers; `null`: `default`."""

    @model_validator(mode="after")
    def _session_header_is_set(self) -> "SessionHeadersSection":
        if self.run is None and self.session is None:
            raise ValueError("run or session is required: the header that names the application")
        return self

    def harness(self) -> Harness:
        """Convert the headers to a rule of the package `recognition`."""
        return Harness(
            self.name,
            _header_names(self.run),
            _header_names(self.session),
            _header_names(self.parent),
            _header_names(self.final),
            self.application_class,
        )


def _header_names(header: str | None) -> tuple[str, ...]:
    return () if header is None else (header,)


class RecognitionSection(Section):
    """Rules by which a call's application is recognised; see [recognition](#which-application)."""

    rules: tuple[Literal[RULES], ...] = DEFAULT_RULES  # type: ignore[valid-type]
    """Rules in the order in which they are tried: `header` (`X-Justitia-Application`), `metadata`
    (`application_id` or `session_id` in the body's), `headers` (below), `harness` (headers of known
    harnesses; Qwen Code and pi also by conversation), `baggage`. Used only if listed: `user`,
    `prompt_cache_key` and `safety_identifier`, which name a person or a cache, and, at the end,
    `conversation`."""
    headers: tuple[SessionHeadersSection, ...] = ()
    """Headers of the operator's own agents."""
    baggage_key: str = "justitia.application"
    """Key of the W3C header `baggage`."""
    conversation_idle_s: Positive = 60.0
    """Time without a call after which an application that was recognised by its conversation ends.
    Until then it counts as open.
    """

    @property
    def by_conversation(self) -> bool:
        """Whether calls that no other rule matches are recognised by their conversation."""
        return CONVERSATION in self.rules

    @model_validator(mode="after")
    def _conversation_rule_is_last(self) -> "RecognitionSection":
        if len(set(self.rules)) != len(self.rules):
            raise ValueError("rules: each is allowed once")
        if CONVERSATION in self.rules[:-1]:
            raise ValueError(f"rules: {CONVERSATION} is allowed at the end only")
        names = [one.name for one in self.headers]
        taken = {*RULES, *(harness.name for harness in HARNESSES)}
        if len(set(names)) != len(names) or not taken.isdisjoint(names):
            raise ValueError(
                "headers: each name is allowed once, and none of a rule or a known harness"
            )
        return self
