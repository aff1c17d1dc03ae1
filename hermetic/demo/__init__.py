"""Floor 6: the whole pipeline on what the package ships: conversations, a tokenizer and a tiny model."""
