"""`justitia report`: both papers' evaluations and this project's own, simulated, on one HTML page.

An experiment names its arms (what is simulated) and how they are measured; `build` runs every arm
once for each seed, `findings` puts the numbers together, `page` shows them. Every number on the
page is the value of a line of `results.jsonl`.
"""
