"""Floor 6: thin adapters to training stacks, each in a module of its own that imports its stack."""
