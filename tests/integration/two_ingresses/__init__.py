"""One application behind two ingresses: recognised conversations, and traces."""
