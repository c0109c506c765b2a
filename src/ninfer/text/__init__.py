"""Owns: text to token ids and back: tokenizer, chat template, streaming decoder, stop strings.
Does not own: files, models.
Read first: tokenizer.py, then guard.py for why user text cannot become control tokens.
"""
