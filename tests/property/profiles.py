"""Number of examples per property test, scaled by the Hypothesis profile."""

from hypothesis import settings

_CI_EXAMPLES = settings.get_profile("ci").max_examples


def examples(count: int) -> settings:
    """Return Hypothesis settings with this number of examples in CI, and fewer elsewhere."""
    share = settings().max_examples / _CI_EXAMPLES
    return settings(max_examples=max(5, round(count * share)))
