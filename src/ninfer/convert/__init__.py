"""Owns: other files to .ninfer: sources, tensor names per family, recipes, report, the model cache.
Does not own: how a .ninfer file is laid out.
Read first: convert.py.
"""
