"""The configuration schema: errors name the key, its value and the allowed values."""

from pathlib import Path
from typing import Any

import pytest

from justitia_ray.config import AppArgs, AppConfig, AppSettings, SchedulingConfig
from justitia_ray.errors import ConfigError
from scripts.write_tables import TABLES, with_tables

_MODEL = {"name": "m", "path": "none"}


def _quota_fields(limit: float, **others: str) -> dict[str, Any]:
    return {"unit": "tokens", "limit": limit, "per": "day", **others}


def parse_config(**sections: Any) -> AppConfig:
    return AppConfig.parse({"model": _MODEL, **sections})


def test_configuration_requires_only_the_model() -> None:
    """Every other key has a default; users' texts are not stored."""
    assert ("justitia", "vllm") == (parse_config().name, parse_config().engine.kind)
    assert not parse_config().prediction.store_inputs


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"modle": {}}, r"modle: Extra inputs are not permitted"),
        ({"engine": {"kind": "tgi"}}, r"engine\.kind: .*'vllm' or 'fake' \(got 'tgi'\)"),
        ({"engine": {"fake": {"kv_tokens": 0}}}, r"engine\.fake\.kv_tokens: .*greater than 0.*0"),
        (
            {"engine": {"kind": "fake", "hold_contexts": True}},
            r"engine: .*hold_contexts is set: kind fake has no memory for contexts",
        ),
        (
            {
                "engine": {
                    "hold_contexts": True,
                    "vllm_args": {"enable-prefix-caching": False},
                }
            },
            r"hold_contexts is set: vllm_args\.enable_prefix_caching is false",
        ),
        (
            {"engine": {"hold_contexts": True, "vllm_args": {"no_enable_prefix_caching": True}}},
            r"hold_contexts is set: vllm_args\.no_enable_prefix_caching is true",
        ),
        (
            {"ingress": {"max_body_bytes": 2**20, "max_body_bytes_held": 2**19}},
            r"ingress: .*max_body_bytes is 1048576: at most max_body_bytes_held, 524288",
        ),
        (
            {"engine": {"hold_contexts": True, "host_kv_gib": 4}},
            r"hold_contexts and host_kv_gib are both set: .*leave out one",
        ),
        (
            {"engine": {"host_kv_gib": 4, "vllm_args": {"speculative-config.method": "mtp"}}},
            r"host_kv_gib is set: vllm_args\.speculative_config .*vllm#55503",
        ),
        ({"engine": {"host_kv_gib": 0}}, r"engine\.host_kv_gib: .*greater than 0"),
        *(
            (
                {"engine": {**engine, "vllm_args": {given: 4}}},
                rf"{next(iter(engine))} is set: vllm_args\.{name} asks for another KV connector",
            )
            for given, name in (
                ("kv_offloading_size", "kv_offloading_size"),
                ("kv-transfer-config.kv_connector", "kv_transfer_config"),
            )
            for engine in ({"hold_contexts": True}, {"host_kv_gib": 4})
        ),
        ({"replica": {"heartbeat_s": -1}}, r"replica\.heartbeat_s: .*greater than 0 \(got -1\)"),
        ({"scheduler": {"lease_timeout_s": "soon"}}, r"scheduler\.lease_timeout_s: .*'soon'"),
        ({"scheduler": {"recovery_s": float("inf")}}, r"scheduler\.recovery_s: .*finite.*inf"),
        ({"scheduler": {"namespace": "a b"}}, r"scheduler\.namespace: .*pattern.*'a b'"),
        ({"store": {"redis_url": "http://h"}}, r"redis_url cannot be read .*redis://host:port/db"),
        (
            {"store": {"durability": "none", "redis_url": "redis://h"}},
            r"store: .*durability is none: no redis_url is allowed",
        ),
        ({"store": {"durability": "some"}}, r"store\.durability: .*'batched', 'strict' or 'none'"),
        ({"store": {"redis_username": "u"}}, r"redis_username is for a redis_url; none is given"),
        (
            {"store": {"redis_url": "redis://h", "redis_tls_ca_file": "ca.pem"}},
            r"redis_tls_ca_file is for a redis_url with TLS: rediss://",
        ),
        (
            {"store": {"redis_url": "rediss://h", "redis_tls_key_file": "k.pem"}},
            r"redis_tls_key_file is the key of redis_tls_cert_file",
        ),
        (
            {"store": {"redis_url": "redis://h", "redis_sentinel_password_env": "X"}},
            r"redis_sentinel_password_env is for a redis_url that begins with redis\+sentinel://",
        ),
        (
            {"store": {"redis_url": "redis://h", "redis_sentinel_password_file": "X"}},
            r"redis_sentinel_password_file is for a redis_url that begins with redis\+sentinel://",
        ),
        (
            {"store": {"redis_password_file": "X"}},
            r"redis_password_file is for a redis_url; none is given",
        ),
        (
            {
                "store": {
                    "redis_url": "redis://h",
                    "redis_password_file": "X",
                    "redis_password_env": "X",
                }
            },
            r"redis_password_env and redis_password_file: one of them is allowed",
        ),
        ({"ingress": {"attempts": 1.5}}, r"ingress\.attempts: .*integer.*1\.5"),
        ({"prediction": {"minimum_samples": 7}}, r"prediction\.minimum_samples: .*8 \(got 7\)"),
        ({"prediction": {"history_per_class": 99}}, r"prediction\.history_per_class: .*100"),
        (
            {"prediction": {"minimum_samples": 200, "history_per_class": 150}},
            "minimum_samples is 200: at most history_per_class, 150, is allowed",
        ),
        (
            {"replica": {"report_interval_s": 3}},
            r"replica\.report_interval_s is 3: at most half of scheduler\.lease_timeout_s, 2\.5,",
        ),
        ({"autoscaling": {}}, r"autoscaling\.max_replicas: Field required"),
        (
            {"autoscaling": {"min_replicas": 3, "max_replicas": 2}},
            "autoscaling: .*min_replicas is 3: at most max_replicas, 2, is allowed",
        ),
        (
            {"autoscaling": {"initial_replicas": 0, "max_replicas": 2}},
            "initial_replicas is 0: from min_replicas, 1, to max_replicas, 2, is allowed",
        ),
        *(
            ({"metrics": {key: value}}, rf"metrics\.{key}: ")
            for key, value in (("max_classes", 0), ("max_tenants", 1_001), ("interval_s", 0))
        ),
        ({"name": ""}, r"name: .*pattern.*''"),
        (
            {"engine": {"fake": {"kv_tokens": 8, "block_size": 16}}},
            r"engine\.fake: .*kv_tokens is 8: at least block_size, 16, is allowed",
        ),
        *(
            ({section: {key: float("inf")}}, rf"{section}\.{key}: .*finite.*inf")
            for section, key in (
                ("replica", "pull_interval_s"),
                ("ingress", "submit_interval_s"),
            )
        ),
        *(
            ({"store": {"redis_url": url}}, r"redis_url cannot be read .*redis://host:port/db")
            for url in ("redis://h/cache", "redis://h/-1", "redis://h:0/0", "redis:///0")
        ),
        *(
            (
                {"access": {"jwt": [{"issuer": "https://i", "audience": "a", **keys}]}},
                rf"access\.jwt\.0: .*jwks_url: '{shown}.* only https://, and http:// of this",
            )
            for keys, shown in (
                ({"jwks_url": "ftp://h/keys"}, "ftp://h/keys"),
                ({"jwks_url": "http://h/keys"}, "http://h/keys"),
                ({"issuer": "acme"}, "acme/.well-known"),
            )
        ),
    ],
)
def test_error_for_an_invalid_setting_names_key_value_and_allowed_values(
    sections: dict[str, Any], message: str
) -> None:
    """A deployment that fails after minutes of loading must give the reason on one line."""
    with pytest.raises(ConfigError, match=message):
        parse_config(**sections)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {"model": _MODEL, "replica": {"heartbeat_s": 3}},
            r"replica\.heartbeat_s is 3: at most half of scheduler\.replica_timeout_s, 2, is",
        ),
        (
            {"models": [{**_MODEL, "replica": {"heartbeat_s": 3}}]},
            r"models: m: replica\.heartbeat_s is 3: at most half of scheduler\.replica_timeout_s",
        ),
        (
            {"model": _MODEL, "scheduler": {"ingress_timeout_s": 20}},
            r"scheduler\.ingress_timeout_s is 20: above 20 is allowed",
        ),
    ],
)
def test_configured_timeouts_must_exceed_reporting_intervals(
    sections: dict[str, Any], message: str
) -> None:
    """A waiting call's inference would be ended, or an idle replica would get no leases."""
    with pytest.raises(ConfigError, match=message):
        AppArgs.parse(sections)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"rules": ["header", "cookies"]}, r"recognition\.rules\.1: .*'metadata'.*'cookies'"),
        ({"rules": ["header", "header"]}, r"recognition: .*rules: each is allowed once"),
        ({"rules": ["conversation", "header"]}, r"conversation is allowed at the end only"),
        ({"conversation_idle_s": 0}, r"recognition\.conversation_idle_s: .*greater than 0"),
        ({"headers": [{"name": "n"}]}, r"headers\.0: .*run or session is required"),
        ({"headers": [{"name": "n", "session": "X Run"}]}, r"headers\.0\.session: .*'X Run'"),
        (
            {"headers": [{"name": "codex", "session": "X-Run"}]},
            r"none of a rule or a known harness",
        ),
        ({"headers": [{"name": "n", "run": "X"}, {"name": "n", "run": "Y"}]}, r"allowed once"),
    ],
)
def test_invalid_recognition_rule_is_refused(section: dict[str, Any], message: str) -> None:
    """A rule that is never reached, or a header that no server passes on, is an error."""
    with pytest.raises(ConfigError, match=message):
        parse_config(recognition=section)


def test_session_headers_are_matched_case_insensitively() -> None:
    """HTTP headers are case-insensitive, and a server passes them on in lower case."""
    [own] = parse_config(
        recognition={"headers": [{"name": "n", "run": "X-Run"}]}
    ).recognition.headers

    assert ("x-run",) == own.harness().run


def test_all_invalid_settings_are_named_at_once() -> None:
    with pytest.raises(ConfigError, match=r"engine\.kind: .*; replica\.heartbeat_s: "):
        parse_config(engine={"kind": "tgi"}, replica={"heartbeat_s": 0})


def test_redis_password_is_neither_in_the_url_nor_in_the_error() -> None:
    """Configurations are logged and saved with every result."""
    with pytest.raises(ConfigError, match="redis_password_env") as refused:
        parse_config(store={"redis_url": "redis://:secret@host:6379"})

    assert "secret" not in str(refused.value)


def test_names_in_ray_and_redis_follow_from_application_and_model() -> None:
    """Two applications, or two models of one, share no names."""
    named = parse_config(
        name="shop", model={"name": "org/big-1", "path": "x"}, store={"data_dir": "d"}
    )

    assert "scheduler/shop/org/big-1" == named.scheduler_name
    assert "shop/org/big-1" == named.store_name
    assert Path("d/shop_org_big-1") == named.data_dir


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"policy": "random"}, r"policy: 'random' is not one of justitia, fcfs"),
        ({"admission": "guess"}, r"admission: 'guess' is not one of peak, prompt"),
        ({"policy_options": {"clok": 1}}, r"policy_options: 'clok' is not one of clock"),
        ({"policy_options": {"clock": "wall"}}, r"policy_options\.clock: 'wall' is not one of"),
        ({"tenants": {"a b": {}}}, r"tenants: tenant is 'a b': a path of"),
        ({"tenants": {"a": {"weight": 1e-300}}}, r"weight: .* greater than or equal to 0\.001"),
        ({"tenant_weights": {"a": 1e-300}}, r"a: .* greater than or equal to 0\.001"),
        ({"tiers": {"flex": {"weight_factor": 1e-9}}}, r"_factor: .* greater than or equal to 0"),
        ({"tenants": {"a/*/b": {}}}, r"tenants: tenant is 'a/\*/b'"),
        ({"tenants": {"a": {"weight": 3, "max_weight": 2}}}, r"weight is 3: at most max_weight, 2"),
        (
            {"tenants": {"a": {"max_weight": 2}, "a/b": {"max_weight": 3}}},
            r"tenants\.a/b: max_weight is 3: at most that of a, 2",
        ),
        (
            {"tenants": {"a": {"kv_share": {"max": 0.5}}, "a/b": {"kv_share": {"max": 0.6}}}},
            r"tenants\.a/b\.kv_share: max is 0\.6: at most that of a, 0\.5",
        ),
        (
            {"tenants": {n: {"kv_share": {"guaranteed": 0.6}} for n in "ab"}},
            r"guaranteed of the nodes at the top is 1\.2 in sum: at most 1",
        ),
        (
            {"tenants": {"a/b": {"kv_share": {"guaranteed": 0.1}}}},
            r"guaranteed of the nodes below a is 0\.1 in sum: at most 0 is",
        ),
        (
            {"tenants": {"*": {"kv_share": {"guaranteed": 0.1}}}},
            r"tenants\.\*\.kv_share: guaranteed is 0\.1: only 0 is allowed",
        ),
        (
            {"tenants": {"a": {"kv_share": {"guaranteed": 0.5, "max": 0.4}}}},
            r"guaranteed is 0\.5: at most `max`, 0\.4",
        ),
        (
            {
                "tenants": {
                    "a": {"quotas": [_quota_fields(10)]},
                    "a/b": {"quotas": [_quota_fields(11)]},
                }
            },
            r"tenants\.a/b\.quotas: tokens/day is 11: at most that of a, 10",
        ),
        (
            {"tenants": {"a": {"quotas": [_quota_fields(10), _quota_fields(9)]}}},
            r"tenants\.a\.quotas: one for each unit and period",
        ),
        (
            {"tenants": {"a": {"quotas": [_quota_fields(10, per="hour", window="calendar")]}}},
            r"window: calendar is for per: day or month, not hour",
        ),
        (
            {"tenants": {"a": {"quotas": [_quota_fields(1.5, unit="applications")]}}},
            r"limit: a whole number of applications is allowed",
        ),
        (
            {"tenants": {"a": {}}, "tenant_weights": {"a": 2}},
            r"tenant_weights: 'a' is in tenants, too",
        ),
        (
            {"tiers": {"flex": {"kv_share": {"guaranteed": 0.5, "max": 0.4}}}},
            r"tiers\.flex\.kv_share: guaranteed is 0\.5: at most `max`, 0\.4",
        ),
        (
            {
                "tenants": {"a": {"kv_share": {"guaranteed": 0.6}}},
                "tiers": {name: {"kv_share": {"guaranteed": 0.3}} for name in ("flex", "priority")},
            },
            r"tiers: kv_share.guaranteed is 1\.2 in sum \(flex 0\.3, priority 0\.3, and 0\.6 of"
            r" tenants at the top\): at most 1",
        ),
        ({"tiers": {"gold": {}}}, r"tiers\.gold.*'flex', 'default' or 'priority'"),
        ({"tenant_weights": {"t": 0}}, r"tenant_weights\.t: .*equal to 0\.001 \(got 0\)"),
        ({"polcy": "fcfs"}, r"polcy: Extra inputs are not permitted"),
        *(
            ({"tenant_weights": {path: 2}}, rf"tenant_weights: tenant is '{shown}': a path of")
            for path, shown in (("a b", "a b"), ("a/*", r"a/\*"), ("", ""), ("a//b", "a//b"))
        ),
        ({"tenants": {"/*": {}}}, r"tenants: tenant is '': a path of"),
    ],
)
def test_error_names_a_forbidden_setting(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SchedulingConfig.parse(settings)


def test_tier_with_only_a_share_keeps_its_weight_factor() -> None:
    """A share of the memory alone does not change the weight."""
    tiers = SchedulingConfig.parse(
        {"tiers": {"flex": {"kv_share": {"max": 0.5}}, "priority": {"weight_factor": 2}}}
    ).service_tiers

    assert [0.1, 1, 2] == [tiers[name].weight_factor for name in ("flex", "default", "priority")]
    assert [0.5, 1] == [tiers[name].kv_share.most for name in ("flex", "priority")]


_FAKE = {"kind": "fake", "fake": {"kv_tokens": 100}}


def model_entry(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "path": "none", **more}


def parse_models(*models: dict[str, Any], **sections: Any) -> AppArgs:
    return AppArgs.parse({"models": list(models), **sections})


def test_single_model_keeps_its_ray_and_redis_names() -> None:
    values = {"name": "a", "model": model_entry("m"), "engine": _FAKE}
    (place,) = AppArgs.parse(values).each_model()

    assert ("Replica", "Predictor") == (place.replicas, place.predictor)
    assert AppConfig.parse(values) == place.config


def test_autoscaling_settings_of_a_model_override_the_applications() -> None:
    """A large model loads for minutes, a small one for seconds."""
    large = model_entry("large") | {"autoscaling": {"max_replicas": 4, "load_s": 200.0}}
    first, second = parse_models(
        large, model_entry("small"), autoscaling={"max_replicas": 8, "load_s": 20.0}
    ).each_model()

    assert first.config.autoscaling is not None
    assert second.config.autoscaling is not None
    assert (4, 400.0) == (
        first.config.autoscaling.max_replicas,
        first.config.autoscaling.patience_s,
    )
    assert (8, 120.0) == (
        second.config.autoscaling.max_replicas,
        second.config.autoscaling.patience_s,
    )
    assert parse_models(model_entry("a")).each_model()[0].config.autoscaling is None


def test_each_of_several_models_has_a_separate_queue_and_deployments() -> None:
    """Schedulers, keys, data and deployments are named after the model."""
    first, second = parse_models(model_entry("org/m"), model_entry("n"), name="a").each_model()

    assert ("Replica-org-m", "Predictor-org-m") == (first.replicas, first.predictor)
    assert ("Replica-n", "Predictor-n") == (second.replicas, second.predictor)
    assert ("scheduler/a/org/m", "a/org/m") == (
        first.config.scheduler_name,
        first.config.store_name,
    )
    assert first.config.data_dir != second.config.data_dir


def test_adding_a_second_model_does_not_rename_the_first() -> None:
    """Adding a second model must not restart the engines of the first."""
    (alone,) = parse_models(model_entry("m")).each_model()
    beside, _ = parse_models(model_entry("m"), model_entry("n")).each_model()

    assert alone == beside


def test_report_interval_of_a_model_entry_is_checked_against_timeouts() -> None:
    """Timeouts apply to all models, but an entry may set a longer report interval."""
    with pytest.raises(ConfigError, match=r"models: n: replica\.report_interval_s is 4: .*2\.5,"):
        parse_models(model_entry("m"), model_entry("n", replica={"report_interval_s": 4}))


def test_engine_settings_of_a_model_entry_replace_the_shared_settings() -> None:
    """Options of one engine mean nothing to another."""
    shared = {"vllm_args": {"dtype": "float32"}}
    models = (model_entry("m"), model_entry("n", engine=_FAKE, replica={"heartbeat_s": 2}))
    first, second = parse_models(
        *models, engine=shared, replica={"pull_interval_s": 1}
    ).each_model()

    assert ("vllm", {"dtype": "float32"}) == (
        first.config.engine.kind,
        first.config.engine.vllm_args,
    )
    assert ("fake", {}) == (second.config.engine.kind, second.config.engine.vllm_args)
    assert [(1.0, 1.0), (0.01, 2.0)] == [
        (place.config.replica.pull_interval_s, place.config.replica.heartbeat_s)
        for place in (first, second)
    ]


def test_configured_arguments_reach_the_ingress_unchanged() -> None:
    """The arguments travel as a dictionary and must arrive as they were checked."""
    args = parse_models(
        model_entry("m", adapters={"m-sql": "/sql"}), model_entry("n", engine=_FAKE), name="a"
    )

    assert args == AppArgs.parse(args.model_dump())
    assert ("m", "m-sql") == args.each_model()[0].config.model.names


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, r"model, or models with at least one, is required \(neither is given\)"),
        ({"models": []}, r"neither is given"),
        ({"model": model_entry("m"), "models": [model_entry("n")]}, r"both are given"),
        ({"models": [model_entry("m"), model_entry("m")]}, r"'m' is a name of 'm' and of 'm'"),
        (
            {"models": [model_entry("m", adapters={"n": "/n"}), model_entry("n")]},
            r"'n' is a name of 'm' and of 'n': each name, of an adapter or an alias too, is",
        ),
        ({"model": model_entry("m", adapters={"m": "/m"})}, r"'m' is the model's own name"),
        ({"model": model_entry("m", aliases=["x", "x"])}, r"aliases: 'x' is a name already"),
        ({"model": model_entry("m", aliases=["m"])}, r"aliases: 'm' is a name already"),
        (
            {"models": [model_entry("m", aliases=["*"]), model_entry("n", aliases=["*"])]},
            r"'\*' is a name of 'm' and of 'n'",
        ),
        (
            {"models": [model_entry("a/b"), model_entry("a:b")]},
            r"'a/b' and 'a:b' differ in punctuation only",
        ),
        (
            {"models": [model_entry("a/b"), model_entry("a_b")]},
            r"'a/b' and 'a_b' differ in punctuation only",
        ),
        ({"models": [model_entry("m" * 119)]}, r"is too long for a deployment: 118 characters"),
        ({"models": [model_entry("m", engin={})]}, r"models\.0\.engin: Extra inputs"),
    ],
)
def test_ambiguous_model_names_are_refused(values: dict[str, Any], message: str) -> None:
    """Two models of one name would share a queue, and two of one deployment their engines."""
    with pytest.raises(ConfigError, match=message):
        AppArgs.parse(values)


def test_model_overrides_only_the_settings_that_it_names() -> None:
    values = {
        "policy_options": {"backfill": 2},
        "tenant_weights": {"t": 2},
        "models": {"m": {"admission": "prompt"}, "n": {"policy": "fcfs"}},
    }
    settings = AppSettings.parse(values).each_model(("m", "n", "o"))

    assert ["justitia", "fcfs", "justitia"] == [settings[name].policy for name in ("m", "n", "o")]
    assert ["prompt", "peak", "peak"] == [settings[name].admission for name in ("m", "n", "o")]
    assert [{"t": 2.0}] * 3 == [settings[name].tenant_weights for name in ("m", "n", "o")]


_BEYOND = {
    "a": {
        "quotas": [
            {"unit": "inferences", "limit": 1, "per": "day", "on_exhausted": "deprioritise"},
        ],
    },
}


@pytest.mark.parametrize("policy", ["justitia", "justitia-guarded"])
def test_deprioritising_quota_requires_tenant_fairness(policy: str) -> None:
    """Without shares by tenant, work beyond quotas would delay the work within quotas."""
    by_application = {"policy": policy, "policy_options": {"fairness": "application"}}
    assert SchedulingConfig.parse(by_application).policy_options == {"fairness": "application"}
    with pytest.raises(ConfigError, match=r"policy_options\.fairness: application is not allowed"):
        SchedulingConfig.parse(by_application | {"tenants": _BEYOND})

    unset = SchedulingConfig.parse({"policy": policy, "tenants": _BEYOND})
    assert unset.deprioritises
    assert unset.fair_between_tenants().policy_options == {"fairness": "tenant"}


def test_tenant_fairness_is_the_default_only_for_policies_with_finish_tags() -> None:
    for settings in (
        {"policy": "fcfs"},
        {"policy_options": {"clock": "nominal"}},
        {"policy_options": {"fairness": "application"}},
    ):
        parsed = SchedulingConfig.parse(settings)
        assert parsed.fair_between_tenants() == parsed
    served = SchedulingConfig.parse({"policy_options": {"clock": "served", "backfill": 2}})
    assert served.fair_between_tenants().policy_options["fairness"] == "tenant"


def test_options_of_a_policy_do_not_apply_to_another_policy() -> None:
    """The model would be refused for an option that it did not set."""
    shared = {"policy_options": {"clock": "nominal"}}
    settings = AppSettings.parse(shared | {"models": {"n": {"policy": "fcfs"}}})
    of_each = settings.each_model(("m", "n"))

    assert [{"clock": "nominal"}, {}] == [of_each[name].policy_options for name in ("m", "n")]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"p": {}}, r"models: there is no model 'p'; m, n are served"),
        ({"m": {"policy": "fifo"}}, r"models\.m: .*'fifo'"),
        ({"m": {"polcy": "fcfs"}}, r"models\.m: polcy: Extra inputs are not permitted"),
        ({"m": {"models": {}}}, r"models\.m: models: Extra inputs are not permitted"),
    ],
)
def test_invalid_settings_of_a_model_are_named_with_the_model(
    values: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        AppSettings.parse({"models": values}).each_model(("m", "n"))


@pytest.mark.parametrize(
    "page", sorted({page for page, _ in TABLES.values()}), ids=lambda page: str(page.name)
)
def test_documentation_tables_match_the_code(page: Path) -> None:
    """Operators look up keys, metrics and rules in the documentation's tables."""
    text = page.read_text(encoding="utf-8")

    assert with_tables(text, page) == text, "run scripts/write_tables"


def test_every_setting_has_a_description() -> None:
    tables = [TABLES[name][1]() for name in ("args", "user_config")]
    cells = [row.split(" | ") for table in tables for row in table.splitlines()[2:]]

    assert [] == [row[0] for row in cells if len(row[2].rstrip("| ")) < 20]
