"""A model without weights whose next token is a hash of its whole context, *read back through the KV slots*.

One mis-mapped, leaked or prematurely freed slot changes the text, so that tests of everything around a model take
seconds.  Tokens are bytes; lower-case letters, the space and the end of text are likelier than the rest.
"""

from __future__ import annotations

import torch
from torch import Tensor

from radixrt.attention.base import ForwardContext
from radixrt.models.config import ModelShape

VOCAB_SIZE = 259
END_OF_TEXT = 256
END_OF_TURN = 258
MAX_CONTEXT = 8192
_LIKELY = (*b"abcdefghijklmnopqrstuvwxyz ", END_OF_TEXT)


class ToyModel:
    """K of a position is its token id; the hidden state is a 64-bit hash of the tokens up to there."""

    def __init__(self, *, context_length: int = MAX_CONTEXT, device: torch.device | str = "cpu") -> None:
        self.shape = ModelShape(
            architecture="ToyForCausalLM",
            vocab_size=VOCAB_SIZE,
            context_length=context_length,
            num_layers=1,
            num_kv_heads=1,
            head_dim=1,
            eos_token_ids=(END_OF_TEXT, END_OF_TURN),
        )
        self._weights = _mix(torch.arange(context_length, device=device)) | 1
        self._bias = torch.zeros(VOCAB_SIZE, device=device)
        self._bias[list(_LIKELY)] = 3.0

    def forward(self, input_ids: Tensor, positions: Tensor, context: ForwardContext) -> Tensor:
        """Return hashes [T, 1] int64 of the contexts of tokens [T]."""
        batch, pool = context.batch, context.pool
        k = input_ids.view(-1, 1, 1).float()
        pool.store(0, batch.slots, k, k)
        tokens = pool.k[0][batch.page_table].view(batch.page_table.shape).to(torch.int64)
        hashes = ((tokens + 1) * self._weights[: tokens.shape[1]]).cumsum(dim=1)
        counts = torch.as_tensor(batch.counts, device=tokens.device)
        rows = torch.arange(batch.num_rows, device=tokens.device).repeat_interleave(counts)
        return hashes[rows, positions].unsqueeze(1)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return float32 logits [S, V] of hashes [S, 1]."""
        noise = _mix(hidden + _mix(torch.arange(VOCAB_SIZE, device=hidden.device)))
        return (noise & 0xFFFFFF).float() * (4.0 / (1 << 24)) + self._bias


def _mix(x: Tensor) -> Tensor:
    """Scramble int64 values (arithmetic wraps around)."""
    for factor in (-0x61C8864680B583EB, -0x40A7B892E31B1A47):
        x = (x ^ (x >> 29)) * factor
    return x ^ (x >> 32)
