"""Attention backends over page tables."""
