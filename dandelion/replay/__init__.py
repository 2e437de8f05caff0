"""Replaying a recording: offline, with other code, on other backends, or in a debugger.

`run` runs a whole recording on a node in this process. The platform's functions do nothing there:
`answers` gives their recorded answers. `debug` runs one Python function in this process.
"""
