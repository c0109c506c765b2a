"""An MTP module in float64, written from its formula with the oracles of ops: no graph, no pages, no batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ninfer.formats import kv_bf16
from ninfer.models.mtp import LAYER, MTPModule
from ninfer.ops import SPECS
from ninfer.ops.linear import exact

F64Array = np.ndarray


@dataclass(frozen=True)
class MTPOracle:
    """`weights` are float32 by name, `embed` and `head` the target's. Keys and values are rounded to bf16."""

    module: MTPModule
    weights: Mapping[str, np.ndarray]
    embed: np.ndarray
    head: np.ndarray

    def columns(self, hidden: F64Array, next_ids: F64Array) -> F64Array:
        """The rows m_p of columns 0 .. n-1, float64 `[n, H]`, from rows h_p and the tokens behind them."""
        m, w = self.module, {name: array.astype(np.float64) for name, array in self.weights.items()}
        joined = np.concatenate(
            [
                self._norm(self.embed[next_ids].astype(np.float64), w["mtp.embed_norm"]),
                self._norm(hidden.astype(np.float64), w["mtp.hidden_norm"]),
            ],
            axis=1,
        )
        x = joined @ w["mtp.fc"].T
        a = self._norm(x, w[f"{LAYER}.mix_norm"])
        q, k, v = (_product(a, w[f"{LAYER}.{part}"]) for part in ("q", "k", "v"))
        if m.gated:
            q, k = self._norm(q, w[f"{LAYER}.q_norm"]), self._norm(k, w[f"{LAYER}.k_norm"])
        angles = SPECS["rope_angles"].oracle(np.arange(len(x)), m.frequencies, m.magnitude)
        heads, head_dim = m.heads, m.heads.head_dim
        q = SPECS["rope"].oracle(q, angles, heads.num_heads, head_dim)
        k = SPECS["rope"].oracle(k, angles, heads.num_kv_heads, head_dim)
        shape = (len(x), -1, head_dim)
        mixed = SPECS["paged_attention"].oracle(
            q.reshape(shape), _stored(k.reshape(shape)), _stored(v.reshape(shape)), 0, head_dim**-0.5, quantized=False
        )
        if m.gated:
            mixed = SPECS["sigmoid_mul"].oracle(mixed, _product(a, w[f"{LAYER}.q_gate"]))
        x = x + _product(mixed, w[f"{LAYER}.o"])
        y = self._norm(x, w[f"{LAYER}.mlp_norm"])
        gate_up = np.concatenate([_product(y, w[f"{LAYER}.gate"]), _product(y, w[f"{LAYER}.up"])], axis=1)
        x = x + _product(SPECS["silu_mul"].oracle(gate_up), w[f"{LAYER}.down"])
        return self._norm(x, w["mtp.norm"])

    def logits(self, m: F64Array) -> F64Array:
        return _product(m, self.head.astype(np.float64))

    def draft(self, hidden: F64Array, tokens: np.ndarray, window: int) -> tuple[list[int], F64Array]:
        """Best tokens behind `tokens`, of which all but the last have rows in `hidden`, and the logits of each."""
        rows, ids = hidden.astype(np.float64), tokens[1:].tolist()
        drafted, logits = [], []
        for _ in range(window):
            m = self.columns(rows, np.array(ids))[-1:]
            logits.append(self.logits(m)[0])
            drafted.append(int(logits[-1].argmax()))
            rows, ids = np.concatenate([rows, m]), [*ids, drafted[-1]]
        return drafted, np.array(logits)

    def _norm(self, x: F64Array, w: F64Array) -> F64Array:
        return SPECS["rms_norm"].oracle(x, w, self.module.rms_norm_eps)


def _product(x: F64Array, w: F64Array) -> F64Array:
    return SPECS["linear"].oracle(x, [w], None, codecs=[exact])


def _stored(x: F64Array) -> F64Array:
    return kv_bf16.decode(kv_bf16.encode(x.astype(np.float32))).astype(np.float64)
