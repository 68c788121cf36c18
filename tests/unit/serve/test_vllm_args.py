"""Which vLLM options an operator may set, and how they reach vLLM."""

import pytest

from justitia_ray.errors import ConfigError
from justitia_ray.serve.vllm_args import VllmValue, checked_vllm_args, parse_vllm_args
from justitia_ray.serve.vllm_engine import VllmEngine


@pytest.mark.parametrize("key", ["scheduling_policy", "scheduling-policy"])
def test_other_scheduling_policy_is_refused(key: str) -> None:
    """Under vLLM's default the engine's queue would undo the order of the leases."""
    with pytest.raises(ConfigError, match="'fcfs'; allowed: 'priority'"):
        VllmEngine("model", "name", {key: "fcfs"})


@pytest.mark.parametrize(
    "option",
    [
        {"data_parallel_size": 2},
        {"enable_log_requests": True},
        {"sse_keep_alive_interval": 15},
        {"model": "other"},
        {"served-model-name": "other"},
        {"config": "file.yaml"},
        {"--max-model-len": 5},
    ],
)
def test_options_that_would_break_the_service_are_refused(option: dict[str, VllmValue]) -> None:
    """Each would change the engine behind the back of capacity, names or privacy."""
    with pytest.raises(ConfigError, match="vllm_args"):
        checked_vllm_args(option)


def test_priority_is_always_asked_for() -> None:
    """It is not vLLM's default."""
    assert checked_vllm_args({})["scheduling_policy"] == "priority"
    assert checked_vllm_args({"scheduling-policy": "priority"}) == checked_vllm_args({})


@pytest.mark.vllm
@pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated:DeprecationWarning")
def test_options_go_through_vllms_own_parser() -> None:
    """What an operator knows from `vllm serve` works here, and what vLLM refuses is named."""
    options = {"max_model_len": 2048, "enforce_eager": True, "enable_prefix_caching": False}

    parsed = parse_vllm_args(
        "some/model", "name", checked_vllm_args(options), {"a": "x/y", "b": "z"}
    )

    assert parsed.model == "some/model"
    assert parsed.served_model_name == ["name"]
    assert parsed.max_model_len == 2048
    assert parsed.enforce_eager is True
    assert parsed.enable_prefix_caching is False
    assert parsed.scheduling_policy == "priority"
    assert (parsed.enable_lora, parsed.max_loras) == (True, 2)
    assert [("a", "x/y"), ("b", "z")] == [(lora.name, lora.path) for lora in parsed.lora_modules]
    for wrong in ({"max_model_length": 2048}, {"max_model_le": 1}, {"max_num_seqs": "many"}):
        with pytest.raises(ConfigError, match=next(iter(wrong)).replace("_", "-")):
            parse_vllm_args("some/model", "name", checked_vllm_args(wrong), {})
