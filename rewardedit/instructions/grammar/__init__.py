"""Parsing of instructions by rules: fast, without a model; other wordings are left to a language model."""
