"""The rules by which vLLM's scheduler gives out KV blocks and iterations, without a model.

The fake engine of the service and the simulator run on it; a differential test holds it to vLLM.
"""
