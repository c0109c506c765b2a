"""Owns: the .ninfer file: directory, mapped reader, writer, verify, inspect.
Does not own: what tensors mean to a model.
Read first: reader.py.
"""
