"""The MTP head as a torch module: one decoder layer of the target's own kind that reads (hidden, next token) columns.

    e = rms_norm(embed[x_{p+1}], embed_norm);  h = rms_norm(h_p, hidden_norm)      h_p: after the target's last norm
    x = fc concat(e, h)                                                           embedding half first
    m_p = rms_norm(layer(x), norm);  logits = head m_p                            predicts x_{p+2}

Column p has rotary position p and attends to columns <= p. While drafting, column p+1 has no target hidden yet and
takes m_p in its place, and so on. `MTPHead.forward` computes one such step for all columns at once: step d of a
sequence is what a draft does at every column c when the last d columns before it, and c itself, are its own.
Source: the multi-token prediction module of DeepSeek-V3 (2024) as Qwen's checkpoints carry it; the steps are ours.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ninfer import formats
from ninfer.artifact import Artifact
from ninfer.errors import UnsupportedError
from ninfer.models.blocks import attention_shapes, gated_mlp_shapes
from ninfer.models.llama import LlamaConfig
from ninfer.models.registry import read_config
from ninfer.ops.frequencies import rope_frequencies


@dataclass(frozen=True, eq=False)
class FrozenTarget:
    """What a draft shares with its target and never changes. embed: bf16 `[V, H]`; head: bf16 `[V, H]`, the same when
    tied."""

    config: LlamaConfig
    embed: Tensor
    head: Tensor
    norm: Tensor


def layer_shapes(config: LlamaConfig) -> dict[str, tuple[int, ...]]:
    """Weights of a layer of the target's shape, by their names in a companion."""
    shapes = attention_shapes("layer", config.hidden_size, config.heads, gated=False)
    shapes |= gated_mlp_shapes("layer", config.hidden_size, config.intermediate_size)
    norms = dict.fromkeys(("mix_norm", "mlp_norm"), (config.hidden_size,))
    return {name.removeprefix("layer."): shape for name, shape in {**norms, **shapes}.items()}


def load_target(artifact: Artifact) -> FrozenTarget:
    """Decode what a draft needs of a target; UnsupportedError for a family without a trainable head here."""
    config = read_config(artifact.architecture, artifact.config, file=artifact.path)
    if not isinstance(config, LlamaConfig):
        raise UnsupportedError(f"drafts are trained for llama models; this one is {artifact.architecture!r}")

    def weight(name: str) -> Tensor:
        entry = artifact.tensors[name]
        values = formats.get(entry.format).unpack(artifact.planes(name)).astype(np.float32)
        return torch.from_numpy(values.reshape(entry.shape))

    embed = weight("embed").to(torch.bfloat16)
    return FrozenTarget(
        config=config,
        embed=embed,
        head=embed if config.tied_head else weight("head").to(torch.bfloat16),
        norm=weight("norm"),
    )


@dataclass(eq=False)
class Columns:
    """Keys and values of the steps so far, each `[B, Hkv, S, D]`: step 0 has those of true hidden rows."""

    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)


class MTPHead(nn.Module):
    """The trained weights, by the names of the exported file."""

    def __init__(self, target: FrozenTarget, generator: torch.Generator) -> None:
        """A random layer of the target's shape that adds nothing yet; `start.fit_start` sets what goes around it.

        A copy of the target's last layer is no better start: its MLP has inputs of a hundred times the size here, and
        the first steps of the optimiser through them undo the fit.
        """
        super().__init__()
        self.config = target.config
        hidden = self.config.hidden_size
        self.embed_norm = nn.Parameter(torch.ones(hidden))
        self.hidden_norm = nn.Parameter(torch.ones(hidden))
        self.fc = nn.Parameter(torch.zeros(hidden, 2 * hidden))
        self.layer = nn.ParameterDict()
        for name, shape in layer_shapes(self.config).items():
            if len(shape) == 1:
                value = torch.ones(shape)
            elif name in ("o", "down"):
                value = torch.zeros(shape)
            else:
                value = torch.randn(shape, generator=generator) / shape[1] ** 0.5
            self.layer[name] = nn.Parameter(value)
        self.norm = nn.Parameter(target.norm.clone())
        self._frequencies = torch.tensor(rope_frequencies(self.config.head_dim, self.config.rope_theta))

    def forward(self, embedded: Tensor, hidden: Tensor, columns: Columns) -> Tensor:
        """One step for all columns: `embedded` and `hidden` `[B, S, H]` to m `[B, S, H]`.

        Row c is the embedding of x_{c+1} and, in step 0, the target's h_c; in step d the m of row c-1 of step d-1.
        `columns` holds the earlier steps and gains this one. Rows below d of step d mean nothing.
        """
        x = functional.linear(self.joined(embedded, hidden), self.fc)
        x = x + self._attention(self._norm(x, self.layer["mix_norm"]), columns)
        z = self._norm(x, self.layer["mlp_norm"])
        gated = functional.silu(functional.linear(z, self.layer["gate"])) * functional.linear(z, self.layer["up"])
        x = x + functional.linear(gated, self.layer["down"])
        return self._norm(x, self.norm)

    def joined(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        """What `fc` reads: the two normalised rows `[..., H]` side by side."""
        return torch.cat([self._norm(embedded, self.embed_norm), self._norm(hidden, self.hidden_norm)], dim=-1)

    def _attention(self, a: Tensor, columns: Columns) -> Tensor:
        config, (B, S, _) = self.config, a.shape
        angles = torch.arange(S, dtype=torch.float64)[:, None] * self._frequencies
        q = _rotate(_heads(functional.linear(a, self.layer["q"]), config.num_heads), angles)
        k = _rotate(_heads(functional.linear(a, self.layer["k"]), config.num_kv_heads), angles)
        columns.keys.append(k)
        columns.values.append(_heads(functional.linear(a, self.layer["v"]), config.num_kv_heads))
        step = len(columns.keys) - 1
        q = q.reshape(B, config.num_kv_heads, -1, S, config.head_dim) * config.head_dim**-0.5
        # Step 0 sees all columns <= c; step d sees true columns <= c - d and one column of each step after.
        true = q @ columns.keys[0][:, :, None].transpose(-1, -2)
        hidden_from = torch.ones(S, S, dtype=torch.bool).triu(1 - step)
        scores = [true.masked_fill(hidden_from, float("-inf"))]
        own_values = []
        for i in range(1, step + 1):
            key = _shift(columns.keys[i], step - i)[:, :, None]
            scores.append((q * key).sum(-1, keepdim=True))
            own_values.append(_shift(columns.values[i], step - i)[:, :, None])
        weights = torch.cat(scores, dim=-1).softmax(-1)
        out = weights[..., :S] @ columns.values[0][:, :, None]
        for i, value in enumerate(own_values):
            out = out + weights[..., S + i, None] * value
        out = out.reshape(B, config.num_heads, S, config.head_dim).transpose(1, 2).reshape(B, S, -1)
        return functional.linear(out, self.layer["o"])

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + self.config.rms_norm_eps).rsqrt() * weight


def chain(head: MTPHead, embedded: Tensor, hidden: Tensor, steps: int) -> list[Tensor]:
    """m of steps 0 .. steps-1, each `[B, S, H]`: row c of step d is what a draft has at column c as its token d+1."""
    columns, outputs = Columns(), [hidden]
    for step in range(steps):
        outputs.append(head(embedded, outputs[-1] if step == 0 else _shift_rows(outputs[-1]), columns))
    return outputs[1:]


def _heads(x: Tensor, num_heads: int) -> Tensor:
    """`[B, S, heads * D]` to `[B, heads, S, D]`."""
    return x.reshape(*x.shape[:2], num_heads, -1).transpose(1, 2)


def _rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Rotary embedding of half pairs (`ninfer.ops.rope`): x `[B, heads, S, D]`, angles `[S, D/2]`."""
    cos, sin = angles.cos().float(), angles.sin().float()
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def _shift(x: Tensor, count: int) -> Tensor:
    """`[B, heads, S, D]` with row c - count in place of row c; the first rows are zero."""
    return x if count == 0 else functional.pad(x[:, :, :-count], (0, 0, count, 0))


def _shift_rows(x: Tensor) -> Tensor:
    """`[B, S, H]` with row c - 1 in place of row c; the first row is zero."""
    return functional.pad(x[:, :-1], (0, 0, 1, 0))
