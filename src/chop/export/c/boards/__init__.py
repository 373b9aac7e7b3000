"""Small devices: simulators of them, and packages for their build systems."""
