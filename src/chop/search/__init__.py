"""Search: spaces to choose from, samplers that choose, runners that measure."""
