"""``@dandelion.function``: a function of a program as a function of compositions."""

from dandelion.decorators.python_function import PythonFunction, function

__all__ = ["PythonFunction", "function"]
