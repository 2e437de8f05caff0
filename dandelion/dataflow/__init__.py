"""Compositions as graphs: the model, the language, the Python DSL, sharding, drawing.

The package is called ``dataflow`` because ``dandelion.composition`` is the decorator of the DSL.
"""
