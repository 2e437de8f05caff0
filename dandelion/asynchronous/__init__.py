"""Asynchronous invocations: the node accepts one, runs it, and keeps its result.

Files: `records` (what is stored and shown), `failures` (errors), `life` (the pure state machine),
with `kept`, `actions`, `waiting` and `invariants`, `stored_sets` (sets as bytes), `store` (the
contract of stores, and the one in memory), `callbacks` (which URLs may be called, and when),
`signing`, `handle` (what a caller gets).
"""
