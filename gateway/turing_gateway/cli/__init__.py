"""The ``turing`` command: one server, a terminal chat and one-shot generation."""
