"""What an ingress keeps of inputs: features, bounded, for as long as the application is open."""

from justitia_ray.predictor.input_features import features_of
from justitia_ray.serve.open_inputs import OpenInputs


async def test_features_are_kept_and_texts_are_not() -> None:
    """Unless texts are to be stored."""
    seen = await OpenInputs(store_inputs=False).look_at("a b c")
    with_text = await OpenInputs(store_inputs=True).look_at("a b c")

    assert (features_of("a b c"), None) == (seen.features, seen.text)
    assert "a b c" == with_text.text


async def test_long_text_has_the_same_features() -> None:
    """They are made in a thread, so that other callers go on."""
    text = "many words " * 10_000

    assert features_of(text) == (await OpenInputs(store_inputs=False).look_at(text)).features


async def test_input_is_taken_once() -> None:
    """An application ends once."""
    inputs = OpenInputs(store_inputs=False)
    seen = await inputs.look_at("a")
    inputs.remember("app", seen)

    assert [seen, None] == [inputs.take("app"), inputs.take("app")]


async def test_oldest_inputs_make_room() -> None:
    """Applications that are never closed must not fill the memory."""
    inputs = OpenInputs(store_inputs=True, most_weight=500)
    for number in range(20):
        inputs.remember(f"app-{number}", await inputs.look_at("x" * 30))
    inputs.remember("app-19", await inputs.look_at("x" * 30))  # again: counts once

    assert 5 == len(inputs)  # 64 + 2 + 30 each
    assert inputs.take("app-19") is not None
    assert inputs.take("app-0") is None
