"""Owns: the native backend: the only importer of the compiled module.
Does not own: the kernels themselves, which live in native/.
Read first: executable.py.
"""
