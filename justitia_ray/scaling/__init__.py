"""The number of replicas that a model needs: the demand of its queue, and the sizing rule."""
