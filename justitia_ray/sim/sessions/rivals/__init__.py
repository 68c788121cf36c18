"""Other schedulers of agents, re-implemented from their papers for the simulator.

None of this is the authors' code. If a paper changes the engine, these schedulers use what vLLM's
engine allows instead: order, placement, waiting outside of the engine, held prompts.
"""
