"""What the tool survives, tried for real: `make harden` prints the table."""
