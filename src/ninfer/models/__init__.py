"""Owns: model families written in ops, and loading one from an artifact.
Does not own: devices, instruction sets, requests.
Read first: llama.py.
"""
