"""What a worker does and when, as pure decisions: events in, actions out. Does no I/O."""
