"""Turing Engine's worker: it owns the device, the KV pages and the step loop."""
