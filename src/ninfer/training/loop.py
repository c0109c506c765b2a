"""The training loop: AdamW with warm-up and cosine, checkpoints that continue to the very same weights."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from ninfer.errors import ConfigError
from ninfer.training.data import Batch, Example, Ids, collate, endless_batches, epoch_batches
from ninfer.training.loss import chain_loss
from ninfer.training.module import FrozenTarget, MTPHead, chain
from ninfer.training.settings import TrainSettings
from ninfer.training.start import fit_start

CHECKPOINT = "checkpoint.pt"
CURVE = "curve.jsonl"

BETAS = (0.9, 0.95)
FINAL_SHARE = 0.1
"""Of the learning rate is left at the last step, as is usual for drafts of this kind."""


@dataclass(frozen=True)
class Point:
    """One step of the curve. agreement: share of rows whose draft was the target's choice among the compared words, by
    step of the chain; the later ones also where an earlier one was wrong."""

    step: int
    epoch: int
    loss: float
    agreement: tuple[float, ...]
    learning_rate: float
    gradient_norm: float
    seconds: float


class Training:
    """A head with its optimiser, somewhere between step 0 and `settings.steps`."""

    def __init__(self, target: FrozenTarget, words: Ids, settings: TrainSettings, *, threads: int = 1) -> None:
        """words: ids that the loss compares. threads: for all of torch; the weights depend on it in their last bits."""
        torch.set_num_threads(threads)
        self.settings = settings
        self.words = words
        self.step = 0
        self.head = MTPHead(target, torch.Generator().manual_seed(settings.seed))
        self._target = target
        self._rows = target.head[torch.from_numpy(words)].float()
        self._optimizer = torch.optim.AdamW(
            self.head.parameters(), lr=settings.learning_rate, betas=BETAS, weight_decay=0.0
        )

    def run(
        self,
        examples: Sequence[Example],
        directory: Path,
        progress: Callable[[Point], None] = lambda point: None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Train to the last step, or until `stop()`; goes on from the checkpoint in `directory` if there is one."""
        settings = self.settings
        resumed = self._resume(directory)
        with _bf16_products(), (directory / CURVE).open("a", encoding="utf-8") as curve:
            if not resumed:
                epoch = epoch_batches(examples, settings.batch_columns, seed=settings.seed, epoch=0)
                fit_start(self.head, self._target, map(collate, epoch))
            batches = endless_batches(examples, settings.batch_columns, seed=settings.seed, skip=self.step)
            while self.step < settings.steps and not stop():
                point = self._advance(*next(batches))
                curve.write(json.dumps(asdict(point)) + "\n")
                curve.flush()
                progress(point)
                if self.step % settings.checkpoint_every == 0:
                    self._save(directory)
        self._save(directory)

    def outputs(self, batch: Batch, steps: int) -> list[Tensor]:
        """m of a chain over a batch (`module.chain`)."""
        embedded = functional.embedding(batch.tokens, self._target.embed).float()
        return chain(self.head, embedded, batch.hidden[:, :-1].float(), steps)

    def _advance(self, epoch: int, batch: Batch) -> Point:
        began = time.monotonic()
        settings = self.settings
        rate = settings.learning_rate * rate_share(self.step, settings)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        loss, agreements = chain_loss(
            self.outputs(batch, settings.chain),
            batch.hidden,
            batch.drafts,
            self._rows,
            decay=settings.decay,
            floor=settings.floor,
            peak=settings.peak,
        )
        self._optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.head.parameters(), settings.clip, error_if_nonfinite=True)
        self._optimizer.step()
        self.step += 1
        shares = tuple(round(float(agrees.float().mean()), 4) for agrees in agreements)
        return Point(self.step, epoch, loss.item(), shares, rate, norm.item(), time.monotonic() - began)

    def _save(self, directory: Path) -> None:
        state = {
            "step": self.step,
            "settings": asdict(self.settings),
            "words": torch.from_numpy(self.words),
            "head": self.head.state_dict(),
            "optimizer": self._optimizer.state_dict(),
        }
        temporary = directory / f"{CHECKPOINT}.tmp"
        torch.save(state, temporary)
        os.replace(temporary, directory / CHECKPOINT)

    def _resume(self, directory: Path) -> bool:
        """Take over the checkpoint, if there is one, and cut the curve back to it; ConfigError for other settings."""
        path = directory / CHECKPOINT
        if not path.exists():
            (directory / CURVE).unlink(missing_ok=True)
            return False
        state = torch.load(path, weights_only=True)
        for declared in fields(self.settings):
            saved, wanted = state["settings"].get(declared.name), getattr(self.settings, declared.name)
            if saved != wanted and declared.name != "checkpoint_every":
                raise ConfigError(f"{path} was made with {declared.name} {saved}, not {wanted}; remove it or go on so")
        if not torch.equal(state["words"], torch.from_numpy(self.words)):
            raise ConfigError(f"{path} was made with other responses; remove it")
        self.step = state["step"]
        self.head.load_state_dict(state["head"])
        self._optimizer.load_state_dict(state["optimizer"])
        points = [point for point in read_curve(directory) if point.step <= self.step]
        text = "".join(json.dumps(asdict(point)) + "\n" for point in points)
        (directory / CURVE).write_text(text, encoding="utf-8")
        return True


@contextmanager
def _bf16_products() -> Iterator[None]:
    """Products of float32 round their inputs to bf16 where the CPU has units for that, and still add in float32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def rate_share(step: int, settings: TrainSettings) -> float:
    """Share of the peak rate at a step counted from 0: up in a line, down along a cosine to FINAL_SHARE."""
    warmup = max(round(settings.warmup * settings.steps), 1)
    if step < warmup:
        return (step + 1) / warmup
    way = (step - warmup) / max(settings.steps - warmup, 1)
    return FINAL_SHARE + (1 - FINAL_SHARE) * 0.5 * (1 + math.cos(math.pi * way))


def read_curve(directory: Path) -> list[Point]:
    lines = (directory / CURVE).read_text(encoding="utf-8").splitlines()
    values = [json.loads(line) for line in lines]
    return [Point(**{**value, "agreement": tuple(value["agreement"])}) for value in values]
