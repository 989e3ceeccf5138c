"""Pure state and decisions: no I/O, no clock, no event loop."""
