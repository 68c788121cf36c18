"""The rules by which vLLM's scheduler assigns KV blocks and iterations, without a model.

The service's fake engine and the simulator use this package; a differential test compares it with
vLLM.
"""
