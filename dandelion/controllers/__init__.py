"""Controllers without a clock: measurements in, decisions out. The scheduler applies them.

`throughput` measures how fast a device is, `climbing` finds how many calls it should run at once,
and `cores` divides cores between compute and I/O.
"""
