"""Records made from what other programs wrote.

Owns: reading request logs of the C++ NInfer, llama-bench and vLLM's benchmark results; which of their words are ours.
Does not own: the record's schema, any judgement. What a source does not state stays unrecorded, what it states and
has no place here stays in `extra`.
Read first: importing.py.
"""
