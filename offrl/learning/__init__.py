"""Learning a policy: networks, updates, the compiled loop, soft actor-critic, learned models."""
