"""The HTTP interface of the original Dandelion, whose bodies are BSON.

Existing clients register executables and compositions, and invoke them, without a change. A request
is translated to the records of this project and goes the way of every other request; nothing else
in the project knows of BSON.

Files: `reader` (BSON), `requests` (what clients send), `writer` (replies), `names` (names that the
original allows and this project does not), `producers` (the names of sets in replies), `functions`
(to registration documents), `options` (settings), `preload` (a file that is registered at start),
`targets` (what an invocation resolves to), `adapter` (the routes).

BSON is read without a library, so that the data of items is not copied, elements are counted, and
a large array of integers, which is how clients send executables, does not hold the interpreter
lock. The tests compare reader and writer with pymongo's `bson`, which decodes such an array in the
same time, but copies all data.
"""
