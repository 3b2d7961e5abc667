"""Turing Engine's stateless HTTP gateway and the commands that start it."""
