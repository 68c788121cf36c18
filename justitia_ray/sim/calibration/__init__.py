"""Engine profiles from measured requests, and how well they predict other requests.

measured.py     requests with their measured times, and their CSV
regression.py   cost of an iteration, from the times that requests decoded in parallel
fit.py          a profile: the regression, then the simulator's speed set to that measured
live.py         requests that reveal the cost of an iteration, timed on a live service
"""
