"""Other schedulers of agents, re-implemented from their papers for the simulator.

None of this is the authors' code. What a paper does with an engine of its own is done here with
what vLLM's engine allows: order, placement, waiting outside of the engine, held prompts.
"""
