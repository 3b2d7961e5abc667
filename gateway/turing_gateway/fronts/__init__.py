"""API fronts: HTTP to Call, Events to HTTP."""
