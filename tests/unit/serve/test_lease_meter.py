"""What of a lease is counted when nothing is generated: vLLM keeps no count of it."""

from types import SimpleNamespace
from typing import Any

from justitia_ray.serve.engine import Progress
from justitia_ray.serve.vllm_metering import LeaseMeter


def state(request_id: str, prompt_len: int, *, generates: bool) -> Any:
    """Return what of vLLM's `RequestState` a meter reads, of a sequence that was just taken on."""
    serving = object() if generates else None
    return SimpleNamespace(
        request_id=request_id,
        prompt_len=prompt_len,
        stats=SimpleNamespace(num_generation_tokens=0),
        detokenizer=serving,
        logprobs_processor=serving,
        is_prefilling=True,
    )


def test_input_that_was_read_is_one_token_of_output() -> None:
    """The protocol charges it with d = 1; before it is read, and if it never is, with nothing."""
    meter = LeaseMeter(0)
    first, second = (state(request_id, 4, generates=False) for request_id in ("a", "b"))
    meter.add(first)
    meter.add(second)
    waiting = meter.read()
    first.is_prefilling = False

    assert (Progress(8, 0), Progress(8, 1)) == (waiting, meter.read())


def test_sequence_that_generates_is_counted_by_vllms_own_count() -> None:
    """Its first token is one of those, not one more."""
    meter, running = LeaseMeter(0), state("g", 5, generates=True)
    meter.add(running)
    running.is_prefilling = False
    running.stats.num_generation_tokens = 3

    assert Progress(5, 3) == meter.read()
