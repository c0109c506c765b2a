"""Owns: what each model family calls its tensors and settings in other files, and their places in ours.
Does not own: reading files, encoding tensors.
Read first: rules.py, then llama.py.
"""
