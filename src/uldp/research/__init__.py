"""Published algorithms that keep no guarantee, to be compared with, in simulation only."""
