"""Training on Lightning at the speed of a bare loop: settings, loop, checkpoints, reports."""
