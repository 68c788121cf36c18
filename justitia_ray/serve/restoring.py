"""A predictor that knows what the store holds; what cannot be read is left out, and named."""

import asyncio
from contextlib import suppress

from justitia_ray.errors import StoreError
from justitia_ray.predictor.online import LearningPredictor, LearningSettings
from justitia_ray.predictor.sample import Sample
from justitia_ray.predictor.sample_record import sample_from_dict
from justitia_ray.predictor.stages import StageTable
from justitia_ray.store.predictions import Predictions, StoredPredictions


async def restore_predictor(
    settings: LearningSettings,
    stored: StoredPredictions,
    histories: Predictions | None,
) -> tuple[LearningPredictor, list[str]]:
    """Return a predictor, and a sentence for each thing that was left out of it.

    Args:
        settings: Of the predictor.
        stored: What was learned. Models are not looked at.
        histories: Where the samples are; None for a predictor that is not to learn.

    Raises:
        StoreError: If the store does not answer.
    """
    left_out = list(stored.damage)
    predictor, scratch = LearningPredictor(settings), LearningPredictor(settings)
    tables, stages = {}, {}
    for name, values in stored.classes.items():
        try:
            scratch.restore_table({name: values})
            tables[name] = values
        except StoreError as error:
            left_out.append(str(error))
    for name, values in stored.learning.items():
        samples: list[Sample] = []
        if histories is not None:
            samples, unreadable = await _samples(histories, name)
            if unreadable:
                left_out.append(f"history of class {name}: {unreadable} samples of another form")
        try:
            predictor.restore_class(name, values.get("progress"), samples)
        except StoreError as error:
            left_out.append(str(error))
        if of_class := values.get("stages"):
            try:
                StageTable.from_dict({name: of_class})
                stages[name] = of_class
            except StoreError as error:
                left_out.append(str(error))
    predictor.restore_table(tables)
    predictor.stages = StageTable.from_dict(stages, settings.max_classes)
    return predictor, left_out


async def _samples(histories: Predictions, application_class: str) -> tuple[list[Sample], int]:
    """Return the samples that can be read, and how many cannot."""
    stored, unreadable = await histories.load_samples(application_class)

    def readable() -> list[Sample]:
        found = []
        for values in stored:
            with suppress(ValueError):  # of the form of another version: counted below
                found.append(sample_from_dict(values.get("sample")))
        return found

    samples = await asyncio.to_thread(readable)
    return samples, unreadable + len(stored) - len(samples)
