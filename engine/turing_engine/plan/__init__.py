"""Pure scheduling policy: no torch, no sockets, no clock of its own."""
