"""How few samples a class may be trained on; apart, because the configuration knows it too.

What reads only the configuration, the scheduler above all, starts faster without numpy.
"""

LEAST_HELD_BACK = 3
LEAST_MINIMUM_SAMPLES = 8
"""Three are held back, and a model takes five."""
