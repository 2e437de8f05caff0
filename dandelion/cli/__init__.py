"""The command line: a file for each verb, the parser, what they share."""
