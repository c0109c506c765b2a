"""Owns: implementations of the op contracts.
Does not own: the contracts.
Read first: base.py.
"""
