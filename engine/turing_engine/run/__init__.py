"""Runners: from a plan to tokens."""
