"""Owns: quantised weights of Hugging Face checkpoints: which tensors belong together and what they mean.
Does not own: names of models, our own formats.
Read first: gather.py, then nvfp4.py.
"""
