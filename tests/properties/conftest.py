"""Settings of hypothesis: the same examples in every run, and no time limit on a busy machine."""

from hypothesis import settings

settings.register_profile(
    "properties", derandomize=True, database=None, deadline=None, max_examples=60
)
settings.load_profile("properties")
