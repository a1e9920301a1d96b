"""Adapters to other frameworks: one thin module for each, with its code in the room or product that it belongs to.

Public, as `veen`, `veen.ext` and `veen.testing` are: the names of each module's `__all__`. Importing a module needs its
framework. It may import everything, and nothing else of VEEN imports it.
"""
