"""How many replicas a model needs: demand read from its queue, and the number that it asks for."""
