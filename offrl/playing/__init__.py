"""Playing a policy in a simulator and what it returned: the only room that imports an environment."""
