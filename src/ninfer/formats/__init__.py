"""Owns: how numbers are stored: exact pack, unpack and size of every weight and KV format, and their byte layouts.
Does not own: files, kernels.
Read first: q4g32m.py, then layouts.py.
"""
