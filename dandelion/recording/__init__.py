"""Recordings: one invocation in a file, to be replayed and compared.

`records` has the format, `recorder` collects the calls of an invocation while it runs, `documents`
writes down the code that it used, `compare` finds the differences of two recordings. Running a
recording again needs a node, see `dandelion.replay`.
"""
