#!/usr/bin/env python3
"""Writes a `llama` GGUF of any shape and quantization with random weights.

For speed and memory tests the values do not matter: random blocks, quick to write. For conformance tests --from-f32
quantizes random floats with the gguf package's quantizers (it has none for the K types and IQ4), so that logits mean
something; output.weight is Q6_K for most types, so that these need --tied there. Needs: pip install gguf numpy

  synth_gguf.py --shape llama-3.2-1b --quant Q4_0 out.gguf
  synth_gguf.py --shape llama-3-8b --quant Q4_K_M out.gguf              (4.9 GB)
  synth_gguf.py --shape tiny --quant Q5_1 --from-f32 --tied --seed 7 out.gguf
"""

import argparse
from typing import NamedTuple

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as Type, GGUFWriter, quantize


class Shape(NamedTuple):
    layers: int
    dim: int
    hidden_dim: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    rope_base: float
    context: int


SHAPES = {
    "micro": Shape(1, 256, 256, 4, 2, 64, 320, 10000.0, 512),
    "tiny": Shape(2, 256, 512, 4, 2, 64, 512, 10000.0, 512),
    "smollm2-360m": Shape(32, 960, 2560, 15, 5, 64, 49152, 100000.0, 8192),
    "tinyllama": Shape(22, 2048, 5632, 32, 4, 64, 32000, 10000.0, 2048),
    "llama-3.2-1b": Shape(16, 2048, 8192, 32, 8, 64, 128256, 500000.0, 131072),
    "llama-3.2-3b": Shape(28, 3072, 8192, 24, 8, 128, 128256, 500000.0, 131072),
    "llama-2-7b": Shape(32, 4096, 11008, 32, 32, 128, 32000, 10000.0, 4096),
    "llama-3-8b": Shape(32, 4096, 14336, 32, 8, 128, 128256, 500000.0, 8192),
    "llama-2-13b": Shape(40, 5120, 13824, 40, 40, 128, 32000, 10000.0, 4096),
}

# Byte offsets of the f16 fields of a block and the values written there, so that random blocks give small weights.
F16_FIELDS = {
    Type.Q4_0: [(0, 0.004)],
    Type.Q4_1: [(0, 0.004), (2, -0.03)],
    Type.Q5_0: [(0, 0.002)],
    Type.Q5_1: [(0, 0.002), (2, -0.03)],
    Type.Q8_0: [(0, 0.0003)],
    Type.Q2_K: [(80, 0.002), (82, 0.002)],
    Type.Q3_K: [(108, 0.0008)],
    Type.Q4_K: [(0, 0.0001), (2, 0.0008)],
    Type.Q5_K: [(0, 0.00006), (2, 0.0008)],
    Type.Q6_K: [(208, 0.00002)],
    Type.IQ4_NL: [(0, 0.0003)],
    Type.IQ4_XS: [(0, 0.00001)],
}


def type_of(quant, name, layer, layers):
    """ggml type of a matrix. The _M mixes spend more bits on half of the attn_v and ffn_down matrices."""
    if name == "output.weight" and quant not in ("F32", "F16", "BF16", "Q8_0"):
        return Type.Q6_K
    if not quant.endswith(("_M", "_S")):
        return Type[quant]
    eighth = layers // 8
    more = layer is not None and (layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2)
    if quant.endswith("_M") and more and name.endswith(("attn_v.weight", "ffn_down.weight")):
        return Type.Q6_K
    return Type[quant[:-2]]


def random_blocks(rng, ggml_type, rows, columns):
    """Random bytes with sane scales. They repeat after 65536 blocks, which no speed test can tell."""
    if ggml_type in (Type.F32, Type.F16):
        values = rng.standard_normal((rows, columns), dtype=np.float32) * 0.02
        return values.astype(np.float16) if ggml_type == Type.F16 else values
    elements, size = GGML_QUANT_SIZES[ggml_type]
    if ggml_type not in F16_FIELDS or columns % elements != 0:
        raise SystemExit(f"cannot make random {ggml_type.name} blocks for rows of {columns}: try --from-f32")
    blocks = rows * columns // elements
    pool = rng.integers(0, 256, (min(blocks, 1 << 16), size), dtype=np.uint8)
    for offset, value in F16_FIELDS[ggml_type]:
        pool[:, offset : offset + 2] = np.frombuffer(np.float16(value).tobytes(), np.uint8)
    return np.resize(pool, (blocks, size)).reshape(rows, columns // elements * size)


class Synthesizer:
    """Draws tensors in a fixed order from one generator, so that a seed means a file."""

    def __init__(self, args):
        self.args = args
        self.shape = SHAPES[args.shape]
        self.rng = np.random.default_rng(args.seed)
        self.writer = GGUFWriter(args.out, "llama")

    def write(self):
        self.metadata()
        self.tokenizer()
        self.tensors()
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()

    def metadata(self):
        args, shape, writer = self.args, self.shape, self.writer
        writer.add_name(f"synthetic {args.shape} {args.quant}")
        writer.add_context_length(shape.context)
        writer.add_embedding_length(shape.dim)
        writer.add_block_count(shape.layers)
        writer.add_feed_forward_length(shape.hidden_dim)
        writer.add_head_count(shape.heads)
        writer.add_head_count_kv(shape.kv_heads)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_rope_freq_base(shape.rope_base)
        writer.add_rope_dimension_count(shape.head_dim)
        writer.add_vocab_size(shape.vocab)
        if shape.head_dim * shape.heads != shape.dim:
            writer.add_key_length(shape.head_dim)
            writer.add_value_length(shape.head_dim)
        if args.experts:
            writer.add_expert_count(args.experts)
            writer.add_expert_used_count(2)
        if args.rope_scaling:
            kind, factor, *original = args.rope_scaling.split(":")
            writer.add_string("llama.rope.scaling.type", kind)
            writer.add_float32("llama.rope.scaling.factor", float(factor))
            if original:
                writer.add_uint32("llama.rope.scaling.original_context_length", int(original[0]))

    def tokenizer(self):
        """A small SentencePiece vocabulary: specials, all bytes, letters, a few merges, and filler."""
        vocab, writer = self.shape.vocab, self.writer
        tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
        types = [2, 3, 3] + [6] * 256
        scores = [0.0] * len(tokens)
        letters = list("abcdefghijklmnopqrstuvwxyz")
        merges = ["▁t", "he", "▁the", "in", "er", "an", "▁a", "re", "on", "at"]
        for rank, piece in enumerate(["▁"] + letters + merges):
            tokens.append(piece)
            types.append(1)
            scores.append(-float(rank))
        while len(tokens) < vocab:
            tokens.append(f"▁w{len(tokens)}")
            scores.append(-1000.0 - len(tokens))
            types.append(1)
        writer.add_tokenizer_model("llama")
        writer.add_token_list(tokens[:vocab])
        writer.add_token_scores(scores[:vocab])
        writer.add_token_types(types[:vocab])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_unk_token_id(0)

    def tensors(self):
        args, shape = self.args, self.shape
        q_rows, kv_rows = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.matrix("token_embd.weight", shape.vocab, shape.dim)
        for layer in range(shape.layers):
            prefix = f"blk.{layer}."
            self.norm(prefix + "attn_norm.weight")
            self.matrix(prefix + "attn_q.weight", q_rows, shape.dim, layer)
            self.matrix(prefix + "attn_k.weight", kv_rows, shape.dim, layer)
            self.matrix(prefix + "attn_v.weight", kv_rows, shape.dim, layer)
            self.matrix(prefix + "attn_output.weight", shape.dim, q_rows, layer)
            if args.bias:
                for name, size in (("q", q_rows), ("k", kv_rows), ("v", kv_rows), ("output", shape.dim)):
                    self.vector(f"{prefix}attn_{name}.bias", 0.2 * self.rng.standard_normal(size))
            self.norm(prefix + "ffn_norm.weight")
            if args.experts:
                router = self.rng.standard_normal((args.experts, shape.dim)) / np.sqrt(shape.dim)
                self.vector(prefix + "ffn_gate_inp.weight", router)
            put, suffix = (self.experts, "_exps") if args.experts else (self.matrix, "")
            put(f"{prefix}ffn_gate{suffix}.weight", shape.hidden_dim, shape.dim, layer)
            put(f"{prefix}ffn_up{suffix}.weight", shape.hidden_dim, shape.dim, layer)
            put(f"{prefix}ffn_down{suffix}.weight", shape.dim, shape.hidden_dim, layer)
        self.norm("output_norm.weight")
        if args.rope_freqs:
            self.vector("rope_freqs.weight", np.linspace(1, 8, shape.head_dim // 2))
        if not args.tied:
            self.matrix("output.weight", shape.vocab, shape.dim)

    def vector(self, name, values):
        self.writer.add_tensor(name, values.astype(np.float32))

    def norm(self, name):
        self.vector(name, 1 + 0.1 * self.rng.standard_normal(self.shape.dim))

    def matrix(self, name, rows, columns, layer=None):
        ggml_type = type_of(self.args.quant, name, layer, self.shape.layers)
        if self.args.from_f32:
            values = (self.rng.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)
            data = self.quantize(values, ggml_type)
        else:
            data = random_blocks(self.rng, ggml_type, rows, columns)
        self.put(name, data, ggml_type)

    def experts(self, name, rows, columns, layer):
        ggml_type = type_of(self.args.quant, name, layer, self.shape.layers)
        count = self.args.experts
        values = (self.rng.standard_normal((count, rows, columns)) / np.sqrt(columns)).astype(np.float32)
        self.put(name, np.stack([self.quantize(expert, ggml_type) for expert in values]), ggml_type)

    def quantize(self, values, ggml_type):
        try:
            return quantize(values, ggml_type)
        except NotImplementedError:
            raise SystemExit(f"the gguf package cannot quantize to {ggml_type.name}") from None

    def put(self, name, data, ggml_type):
        # Floats carry their type in their array; everything else is bytes of a named type.
        raw = None if data.dtype in (np.float32, np.float16) else ggml_type
        self.writer.add_tensor(name, data, raw_dtype=raw)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--shape", default="tiny", choices=SHAPES)
    parser.add_argument("--quant", default="Q4_0", help="a ggml type, or a mix such as Q4_K_M")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--from-f32", action="store_true", help="quantize random floats instead of random blocks")
    parser.add_argument("--tied", action="store_true", help="no output.weight")
    parser.add_argument("--rope-freqs", action="store_true", help="a rope_freqs.weight from 1 to 8")
    parser.add_argument("--experts", type=int, default=0, help="Mixtral-style experts, two used per token")
    parser.add_argument("--bias", action="store_true", help="biases on q, k, v and output")
    parser.add_argument("--rope-scaling", help="linear:FACTOR or yarn:FACTOR:ORIGINAL_CONTEXT")
    Synthesizer(parser.parse_args()).write()


if __name__ == "__main__":
    main()
