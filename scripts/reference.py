#!/usr/bin/env python3
"""The `llama` architecture in float64 over dequantized weights: what sayfa's logits are measured against.

Prints one JSON object: nll of every token after the first, their mean, and the ten best logits at the last position.
With a third argument the log-probabilities of all positions are saved there too. Needs: pip install gguf numpy

  reference.py MODEL.gguf TOKENS.json [OUT.npz]        (TOKENS.json: [ids] or {"tokens": [ids]})
"""

import json
import sys

import numpy as np
from gguf import GGUFReader, dequantize


class Model:
    def __init__(self, path):
        reader = GGUFReader(path)
        self.fields = {
            key: field.contents() for key, field in reader.fields.items() if not key.startswith("tokenizer.")
        }
        self.weights = {}
        for tensor in reader.tensors:
            shape = tuple(int(dim) for dim in tensor.shape)[::-1]
            values = dequantize(tensor.data, tensor.tensor_type)
            self.weights[tensor.name] = values.reshape(shape).astype(np.float32)
        self.layers = self.get("block_count")
        self.dim = self.get("embedding_length")
        self.heads = self.get("attention.head_count")
        self.kv_heads = self.get("attention.head_count_kv", self.heads)
        self.head_dim = self.get("attention.key_length", self.dim // self.heads)
        self.rope_dims = self.get("rope.dimension_count", self.head_dim)
        self.eps = self.get("attention.layer_norm_rms_epsilon")

    def get(self, key, *default):
        value = self.fields.get(f"llama.{key}", *default)
        if value is None:
            raise SystemExit(f"the model has no llama.{key}")
        return value

    def rope_frequencies(self):
        """(inverse frequencies (rope_dims / 2), factor on cos and sin)"""
        base = self.get("rope.freq_base", 10000.0)
        n = self.rope_dims
        inverse = base ** (-np.arange(0, n, 2, dtype=np.float64) / n)
        if "rope_freqs.weight" in self.weights:
            inverse = inverse / self.weights["rope_freqs.weight"].astype(np.float64)
        kind = self.get("rope.scaling.type", "none")
        factor = self.get("rope.scaling.factor", 1.0)
        if kind == "linear":
            return inverse / factor, 1.0
        if kind != "yarn":
            return inverse, 1.0
        original = self.get("rope.scaling.original_context_length", self.get("context_length"))

        def correction_dim(rotations):
            return n * np.log(original / (rotations * 2 * np.pi)) / (2 * np.log(base))

        low = max(0, np.floor(correction_dim(32.0)))
        high = min(n - 1, np.ceil(correction_dim(1.0)))
        kept = 1 - np.clip((np.arange(n // 2) - low) / max(0.001, high - low), 0, 1)
        return inverse / factor * (1 - kept) + inverse * kept, 1 + 0.1 * np.log(factor)

    def norm(self, x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * self.weights[name]

    def linear(self, x, name):
        return x @ self.weights[name + ".weight"].T + self.weights.get(name + ".bias", 0.0)

    def logits(self, tokens):
        """(tokens, vocab) float64"""
        inverse, scale = self.rope_frequencies()
        angles = np.outer(np.arange(len(tokens)), inverse)
        rotation = scale * np.cos(angles)[:, None, :], scale * np.sin(angles)[:, None, :]
        x = self.weights["token_embd.weight"][tokens].astype(np.float64)
        for layer in range(self.layers):
            prefix = f"blk.{layer}."
            x = x + self.attention(self.norm(x, prefix + "attn_norm.weight"), prefix, rotation)
            x = x + self.feed_forward(self.norm(x, prefix + "ffn_norm.weight"), prefix)
        x = self.norm(x, "output_norm.weight")
        return x @ self.weights.get("output.weight", self.weights["token_embd.weight"]).T

    def attention(self, h, prefix, rotation):
        tokens = len(h)

        def heads_of(name, count):
            return self.linear(h, prefix + name).reshape(tokens, count, self.head_dim)

        q = self.rotate(heads_of("attn_q", self.heads), rotation)
        k = self.rotate(heads_of("attn_k", self.kv_heads), rotation)
        v = heads_of("attn_v", self.kv_heads)
        group = self.heads // self.kv_heads
        k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
        mask = np.triu(np.full((tokens, tokens), -np.inf), 1)
        scores = softmax(np.einsum("thd,shd->hts", q, k) / np.sqrt(self.head_dim) + mask)
        mixed = np.einsum("hts,shd->thd", scores, v).reshape(tokens, -1)
        return self.linear(mixed, prefix + "attn_output")

    def rotate(self, x, rotation):
        """Adjacent pairs, as the converters to this architecture lay them out."""
        cos, sin = rotation
        even, odd = x[..., 0 : self.rope_dims : 2], x[..., 1 : self.rope_dims : 2]
        out = x.copy()
        out[..., 0 : self.rope_dims : 2] = even * cos - odd * sin
        out[..., 1 : self.rope_dims : 2] = even * sin + odd * cos
        return out

    def feed_forward(self, h, prefix):
        names = ("ffn_gate", "ffn_up", "ffn_down")
        if prefix + "ffn_gate_inp.weight" not in self.weights:
            return gated(h, *(self.weights[f"{prefix}{name}.weight"] for name in names))
        gate, up, down = (self.weights[f"{prefix}{name}_exps.weight"] for name in names)
        routes = softmax(self.linear(h, prefix + "ffn_gate_inp"))
        out = np.zeros_like(h)
        for t, route in enumerate(routes):
            chosen = np.argsort(-route)[: self.get("expert_used_count")]
            for expert, weight in zip(chosen, route[chosen] / route[chosen].sum()):
                out[t] += weight * gated(h[t], gate[expert], up[expert], down[expert])
        return out


def gated(h, gate, up, down):
    a = h @ gate.T
    return a / (1 + np.exp(-a)) * (h @ up.T) @ down.T


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def main():
    if len(sys.argv) not in (3, 4):
        raise SystemExit(__doc__)
    with open(sys.argv[2], encoding="utf-8") as file:
        tokens = json.load(file)
    if isinstance(tokens, dict):
        tokens = tokens["tokens"]
    logits = Model(sys.argv[1]).logits(tokens)
    shifted = logits - logits.max(-1, keepdims=True)
    log_probabilities = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    nll = -log_probabilities[np.arange(len(tokens) - 1), tokens[1:]]
    best = np.argsort(-logits[-1])[:10]
    print(
        json.dumps(
            {
                "mean_nll": float(nll.mean()),
                "nll": [round(float(x), 6) for x in nll],
                "top": [[int(i), round(float(logits[-1, i]), 5)] for i in best],
            }
        )
    )
    if len(sys.argv) == 4:
        np.savez_compressed(sys.argv[3], logprobs=log_probabilities.astype(np.float32))


if __name__ == "__main__":
    main()
