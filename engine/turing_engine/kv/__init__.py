"""KV page formats."""
