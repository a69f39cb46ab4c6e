"""Engines: what runs a job request, here or somewhere else. `registry` finds them, `base` says what they are."""
