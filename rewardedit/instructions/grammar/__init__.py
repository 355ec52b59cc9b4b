"""Instructions read by rules: fast, without a model; other wordings go to a language model."""
