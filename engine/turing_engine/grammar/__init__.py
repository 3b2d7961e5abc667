"""Structured output: constraints compiled to grammars that say which tokens may come next."""
