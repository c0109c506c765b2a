"""Owns: logits to accepted tokens: penalties, filters, sampler.
Does not own: models, text.
Read first: sampler.py.
"""
