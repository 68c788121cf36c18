"""Profiles of hypothesis: `dev` while a change is made, `ci` for the whole of the examples.

Both draw the same examples in every run, and have no time limit on a busy machine. `ci` is taken
where the environment says `CI`, or with `--hypothesis-profile ci`.
"""

import os

from hypothesis import settings

settings.register_profile("ci", derandomize=True, database=None, deadline=None, max_examples=60)
settings.register_profile("dev", settings.get_profile("ci"), max_examples=20)
settings.load_profile("ci" if os.environ.get("CI") else "dev")
