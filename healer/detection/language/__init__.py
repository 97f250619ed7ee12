"""The rule language: a closed subset of Python's expressions over the signals of the catalogue.

`parse` reads and checks (no numpy), `compile` evaluates a whole fleet at once, `scalar` one row in plain
Python. `scalar` is the definition of the language, and hypothesis compares the two.
"""
