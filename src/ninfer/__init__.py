"""NInfer: an exact, measured LLM inference engine.

Owns: the public names.
Does not own: any behaviour.
Read first: docs/how-it-works.md.
"""

__version__ = "0.1.0"
