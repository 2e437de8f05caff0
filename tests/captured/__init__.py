"""Modules that functions of the tests use; see `tests/test_capture.py`."""
