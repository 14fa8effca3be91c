"""Playing policies in simulators, and their returns: the only room that imports an environment."""
