"""The network: a small GPT-2 of Hugging Face's `transformers`, its loss on decisions, and its decoding.

This module and those that import it need the extra `language`. Checked in
tests/tuner/language/test_network.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from transformers import DynamicCache, GPT2Config, GPT2LMHeadModel

from tuner.language.examples import MAX_POSITIONS, Batch
from tuner.language.vocabulary import TOKENS


class NetworkShape(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The network's size; the defaults give 0.7 million parameters."""

    layers: int = 3
    width: int = 128
    heads: int = 4

    def __post_init__(self) -> None:
        if min(self.layers, self.width, self.heads) < 1 or self.width % self.heads:
            raise ValueError(
                f"{self.layers} layers of width {self.width} with {self.heads} heads are no network; all are "
                "at least 1, and heads divide the width"
            )


class Network:
    """A GPT-2 over the tensor language's vocabulary; its weights change while it is trained."""

    def __init__(self, shape: NetworkShape, *, seed: int = 0) -> None:
        """Draw weights at random; equal seeds give equal ones."""
        self.shape = shape
        config = GPT2Config(
            vocab_size=len(TOKENS),
            n_positions=MAX_POSITIONS,
            n_embd=shape.width,
            n_layer=shape.layers,
            n_head=shape.heads,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=None,
            eos_token_id=None,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.model = GPT2LMHeadModel(config)
        self.model.eval()  # type: ignore[no-untyped-call]  # transformers declares it so

    @property
    def num_parameters(self) -> int:
        """How many weights there are, the ones shared by input and output counted once."""
        return sum(each.numel() for each in self.model.parameters())

    def loss(self, batch: Batch) -> tuple[torch.Tensor, float]:
        """Return the summed cross-entropy of what was decided, and the weight that it sums over."""
        seen = torch.from_numpy(batch.seen)[:, None]
        mask = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
        hidden = self.model.transformer(
            input_ids=torch.from_numpy(batch.ids),
            position_ids=torch.from_numpy(batch.positions),
            attention_mask=mask,
            use_cache=False,
        ).last_hidden_state
        rows, columns = np.nonzero(batch.weights)
        before = hidden[torch.from_numpy(rows), torch.from_numpy(batch.predicted_from[rows, columns])]
        targets = torch.from_numpy(batch.ids[rows, columns])
        weights = torch.from_numpy(batch.weights[rows, columns])
        entropy = torch.nn.functional.cross_entropy(self.model.lm_head(before), targets, reduction="none")
        return (entropy * weights).sum(), float(weights.sum())

    def start(self, prompt: Sequence[int], count: int) -> Writing:
        """Process a prompt once, for several texts that continue it."""
        return Writing(self.model, prompt, count)


class Writing:
    """Texts that grow from one prompt, all by one token at a time."""

    def __init__(self, model: GPT2LMHeadModel, prompt: Sequence[int], count: int) -> None:
        self._model = model
        self._cache = DynamicCache()
        self._position = 0
        first = self._read(torch.tensor([list(prompt)]))
        self._cache.batch_repeat_interleave(count)
        self.logits: npt.NDArray[np.float64] = np.repeat(first, count, axis=0)
        """Of each text's next token, shape (count, vocabulary)."""

    def append(self, ids: Sequence[int]) -> None:
        """Add one token to each text."""
        self.logits = self._read(torch.tensor(ids)[:, None])

    def _read(self, ids: torch.Tensor) -> npt.NDArray[np.float64]:
        positions = torch.arange(self._position, self._position + ids.shape[1])[None].expand(len(ids), -1)
        self._position += ids.shape[1]
        with torch.inference_mode():
            found = self._model(
                input_ids=ids,
                position_ids=positions,
                past_key_values=self._cache,
                use_cache=True,
                logits_to_keep=1,
            )
        logits: npt.NDArray[np.float64] = found.logits[:, -1].double().numpy()
        return logits
