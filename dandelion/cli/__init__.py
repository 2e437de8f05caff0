"""The command line: a file for each verb, the parser, and shared code."""
