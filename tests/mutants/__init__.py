"""Mutants: small errors put into the code on purpose, each of which some test must find (`make mutants`).

A mutant is data: a file of the package, a text that occurs once in it, the text that replaces it, and the tests that
must fail. `rooms` lists them by room; `run.py` applies them one at a time in a copy of the tree; docs/mutants.md keeps
the table. `test_mutants.py` checks that the list still fits the code.
"""
