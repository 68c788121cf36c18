"""The number of replicas that a model needs: its queue's demand, and the rule that sizes for it."""
