"""Text written by a model, a token at a time, with keys and values kept.

    prompt (S,) -> all at once, keys and values kept -> a token (N,) -> that alone -> a token ...

Shapes: N samples, S tokens, D hidden, K key-value heads, E head width, V vocabulary.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import orjson
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from millstream.errors import InputError, UsageError
from millstream.train.attention import Attend, rotation
from millstream.train.model import CausalLM
from millstream.train.pretrained import Pretrained


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """How tokens are chosen.

    ``temperature`` 0 takes the likeliest; ``top_p`` leaves out all but the likeliest that together have that much
    probability (nucleus sampling, Holtzman et al. 2020). Equal seeds give equal text on the same device.
    """

    temperature: float
    top_p: float
    seed: int


@dataclass(frozen=True, slots=True)
class Written:
    """A continuation: its ids without the end, its text, and whether the model ended the document."""

    ids: list[int]
    text: str
    ended: bool


def write(model: Pretrained, prompt: str, *, tokens: int | None, samples: int, sampling: Sampling) -> list[Written]:
    """Continue a prompt.

    Args:
        model: the model.
        prompt: text; special tokens in it are ordinary text.
        tokens: most that are written; None as many as the model was trained to see in a row.
        samples: number of continuations.
        sampling: how tokens are chosen.

    Raises:
        UsageError: prompt and tokens are more than the model was trained on in a row, or there is nothing to begin
            from.
        InputError: the prompt has tokens that the model does not know.
    """
    raw = orjson.loads(model.tokenizer)
    plain = Tokenizer.from_str(orjson.dumps({**raw, "added_tokens": [], "post_processor": None}).decode())
    ids = [*([] if model.bos is None else [model.bos]), *plain.encode(prompt).ids]
    if not ids:
        # What a document begins after.
        ids = sorted(model.ends)[:1]
    if not ids:
        raise UsageError("the prompt is empty, and the model has no token that begins or ends a document")
    vocab_size = len(model.network.lm_head.weight)
    if max(ids) >= vocab_size:
        raise InputError(f"the tokenizer gives id {max(ids)}, and the model knows {vocab_size}")
    room = model.longest - len(ids)
    most = room if tokens is None else tokens
    if room < max(most, 1):
        raise UsageError(
            f"the prompt is {len(ids)} tokens and {most} more are asked for; the model was trained on {model.longest} "
            "in a row"
        )
    device = model.network.lm_head.weight.device
    rows = torch.tensor(ids, device=device).expand(samples, -1)
    ends = torch.tensor(sorted(model.ends), device=device)
    columns: list[Tensor] = []
    over = torch.zeros(samples, dtype=torch.bool, device=device)
    for token_N in continuations(model.network, rows, most, sampling):
        columns.append(token_N)
        over |= torch.isin(token_N, ends)
        if bool(over.all()):
            break
    full = Tokenizer.from_str(model.tokenizer.decode())
    written = []
    for row in torch.stack(columns, 1).tolist():
        end = next((at for at, token in enumerate(row) if token in model.ends), None)
        written.append(Written(row[:end], full.decode(row[:end], skip_special_tokens=False), end is not None))
    return written


@torch.no_grad()
def continuations(network: CausalLM, prompt_NS: Tensor, most: int, sampling: Sampling) -> Iterator[Tensor]:
    """The tokens that follow, one of each sample at a time, int64 (N,).

    Args:
        network: in evaluation mode, with all experts of a layer here.
        prompt_NS: what is there already, int64.
        most: number of tokens.
        sampling: how they are chosen.
    """
    generator = torch.Generator(prompt_NS.device).manual_seed(sampling.seed)
    cache = Cache(network, len(prompt_NS), prompt_NS.shape[1] + most)
    fed = prompt_NS
    for _ in range(most):
        token_N = choose(cache.logits(fed), sampling, generator)
        yield token_N
        fed = token_N[:, None]


def choose(logits_NV: Tensor, sampling: Sampling, generator: torch.Generator) -> Tensor:
    """A token of each row of logits, int64 (N,)."""
    if sampling.temperature == 0:
        return logits_NV.argmax(-1)
    ordered, ids = torch.sort(logits_NV / sampling.temperature, descending=True, stable=True)
    chances = ordered.softmax(-1)
    # A token stays if those likelier than it do not suffice, so the likeliest always does.
    chances = chances.masked_fill(chances.cumsum(-1) - chances >= sampling.top_p, 0)
    return ids.gather(-1, torch.multinomial(chances, 1, generator=generator)).squeeze(-1)


class Cache:
    """Keys and values of a network's layers for what it was fed so far, each (N, most, K, E).

    Args:
        network: whose they are.
        samples: rows.
        most: tokens of a row.
    """

    def __init__(self, network: CausalLM, samples: int, most: int) -> None:
        self._network, self._samples, self._most, self._held = network, samples, most, 0
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}
        decoder = network.model
        self._rotation = rotation(most, decoder.rotary, decoder.theta, network.lm_head.weight)

    def logits(self, tokens_NS: Tensor) -> Tensor:
        """Logits after the last of the tokens that come next, fp32 (N, V)."""
        decoder = self._network.model
        here = slice(self._held, self._held + tokens_NS.shape[1])
        x_NSD = decoder.embed_tokens(tokens_NS)
        cos_SR, sin_SR = (part[here] for part in self._rotation)
        for number, layer in enumerate(decoder.layers):
            x_NSD, _ = layer(x_NSD, cos_SR, sin_SR, self._attend(number, here))
        self._held = here.stop
        return self._network.lm_head.logits(decoder.norm(x_NSD[:, -1]))

    def _attend(self, number: int, here: slice) -> Attend:
        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if number not in self._kept:
                shape = (self._samples, self._most, *k.shape[2:])
                self._kept[number] = (k.new_empty(shape), v.new_empty(shape))
            keys, values = self._kept[number]
            keys[:, here], values[:, here] = k, v
            mixed = F.scaled_dot_product_attention(
                q.transpose(1, 2),
                keys[:, : here.stop].transpose(1, 2),
                values[:, : here.stop].transpose(1, 2),
                # A single token comes after all that is kept; several come at the beginning only.
                is_causal=here.start == 0,
                enable_gqa=True,
            )
            return mixed.transpose(1, 2)

        return attend
