"""Model families: one decoder specification, two weight formats."""
