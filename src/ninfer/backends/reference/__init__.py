"""Owns: a NumPy float64 interpreter of a graph, built from the oracles.
Does not own: speed.
Read first: executable.py.
"""
