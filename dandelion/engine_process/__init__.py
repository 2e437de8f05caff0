"""A process that hosts one engine: its main program, and what it and a node say to each other."""
