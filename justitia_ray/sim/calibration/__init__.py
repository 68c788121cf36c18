"""Engine profiles from measured requests, and how well they predict requests they have not seen.

measured.py     requests with the times they took, and their CSV
regression.py   what an iteration costs, from how long requests decoded beside each other
fit.py          a profile: the regression, then the simulator's pace set to the measured one
live.py         requests that show what an iteration costs, timed on a live service
"""
