"""`justitia report`: both papers' evaluations and this project's own, simulated, on one HTML page.

An experiment defines its arms (runs that are compared) and how they are measured; `build` runs
every arm once per seed, `findings` aggregates the numbers, `page` renders them. Every number on the
page is the value of a line of `results.jsonl`.
"""
