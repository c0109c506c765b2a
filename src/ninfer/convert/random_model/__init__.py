"""Owns: checkpoints with random weights, of published shapes or any other, as files of every kind.
Does not own: what the tensors mean (`convert.names`), how they are stored (`convert.encode`).
Read first: shapes.py, then values.py.
"""
