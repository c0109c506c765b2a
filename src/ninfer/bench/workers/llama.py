"""A worker that runs llama.cpp or ik_llama.cpp through its Python package.

Started as a plain script by the interpreter that has the peer installed, so it imports nothing of ninfer but its
neighbour `serving`. Token ids go straight to `llama_decode`; nothing is tokenized or sampled.

usage: llama.py llama.cpp|ik_llama.cpp
"""

import ctypes
import importlib.metadata
import os
import sys
from collections.abc import Sequence
from typing import Any

from serving import EngineError, Row, serve  # type: ignore[import-not-found]  # beside this script, not in a package

GGML_TYPES = {"f16": 1, "q8_0": 8}
PACKAGES = {"llama.cpp": "llama-cpp-python", "ik_llama.cpp": "ik-llama-cpp-python"}


class LlamaEngine:
    """The C interface of one of the two families, hiding where they differ."""

    def __init__(self, engine: str) -> None:
        self.is_ik = engine == "ik_llama.cpp"
        if self.is_ik:
            import ik_llama_cpp._ctypes_api as api

            api._lib.llama_kv_cache_seq_rm.argtypes = [ctypes.c_void_p] + [ctypes.c_int32] * 3
            api._lib.llama_kv_cache_seq_rm.restype = ctypes.c_bool
        else:
            import llama_cpp.llama_cpp as api
        self.api: Any = api
        system_info = api._lib.llama_print_system_info
        system_info.restype = ctypes.c_char_p
        self.greeting = {
            "engine": engine,
            "version": importlib.metadata.version(PACKAGES[engine]),
            "system": system_info().decode(),
        }
        api.llama_backend_init()

    def load(self, request: dict[str, Any]) -> "LlamaSession":
        return LlamaSession(self, request)

    def model_params(self, settings: dict[str, Any]) -> Any:
        params = self.api.llama_model_default_params()
        params.n_gpu_layers = 0
        if self.is_ik:
            params.repack_tensors = settings["repack"]
            params.use_thp = settings["huge_pages"]
        else:
            params.use_extra_bufts = settings["repack"]
        return params

    def context_params(self, request: dict[str, Any]) -> Any:
        settings = request["settings"]
        params = self.api.llama_context_default_params()
        params.n_ctx = params.n_batch = request["context"] * request["sequences"]
        params.n_ubatch = settings["ubatch"]
        params.n_seq_max = request["sequences"]
        params.n_threads = params.n_threads_batch = request["threads"]
        params.type_k = params.type_v = GGML_TYPES[settings["kv"]]
        if self.is_ik:
            params.flash_attn = settings["flash_attention"]
        else:
            params.flash_attn_type = int(settings["flash_attention"])
        return params


class LlamaSession:
    """One loaded model with one context and one reusable batch."""

    def __init__(self, engine: LlamaEngine, request: dict[str, Any]) -> None:
        self.facts: dict[str, Any] = {}
        self.sequences = request["sequences"]
        self.api, self.is_ik = engine.api, engine.is_ik
        path = os.fsencode(request["model"])
        self.model = self.api.llama_model_load_from_file(path, engine.model_params(request["settings"]))
        if not self.model:
            raise EngineError(f"the model {request['model']} did not load")
        self.context = self.api.llama_init_from_model(self.model, engine.context_params(request))
        if not self.context:
            raise EngineError(f"no context with {request['settings']}")
        self.batch = self.api.llama_batch_init(request["context"] * request["sequences"], 0, 1)

    def close(self) -> None:
        self.api.llama_batch_free(self.batch)
        self.api.llama_free(self.context)
        (self.api.llama_free_model if self.is_ik else self.api.llama_model_free)(self.model)

    def step(self, rows: Sequence[Row], *, all_logits: bool) -> None:
        batch, last = self.batch, len(rows) - 1
        for index, (token, position, sequence) in enumerate(rows):
            batch.token[index] = token
            batch.pos[index] = position
            batch.n_seq_id[index] = 1
            batch.seq_id[index][0] = sequence
            batch.logits[index] = all_logits or index == last
        batch.n_tokens = len(rows)
        code = self.api.llama_decode(self.context, batch)
        if code != 0:
            raise EngineError(f"llama_decode returned {code} for {len(rows)} rows")
        if not self.api.llama_get_logits_ith(self.context, last):
            raise EngineError("no logits for the last row")

    def forget(self, start: int) -> bool:
        if self.is_ik:
            memory, remove = self.context, self.api._lib.llama_kv_cache_seq_rm
        else:
            memory, remove = self.api.llama_get_memory(self.context), self.api.llama_memory_seq_rm
        # One by one: recurrent memory knows no "all sequences".
        return all(remove(memory, sequence, start, -1) for sequence in range(self.sequences))


if __name__ == "__main__":
    serve(lambda: LlamaEngine(sys.argv[1]))
