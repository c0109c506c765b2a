"""Owns: reading GGUF files: bounds-checked container parsing and dequantisation of stored blocks.
Does not own: what the tensors of a model family mean.
Read first: reader.py.
"""
