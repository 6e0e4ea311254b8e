"""Tiny language models for tests, made here from random numbers; no network is asked."""

from pathlib import Path

import numpy as np
import torch

from userdp.data.block import Block
from userdp.data.shape import Sequence, Shape
from userdp.neural.settings import TorchSettings

TOKENS, STEPS = 23, 8
TARGETS = {"llama": ["q_proj", "v_proj"], "gpt2": ["c_attn", "c_fc"]}
SIZES = np.array([3, 1, 5, 2, 2, 4])
WINDOWS = Shape(STEPS, has_target=False, sequence=Sequence(STEPS, (TOKENS,)))
TEXTS = Shape(STEPS, has_target=True, code_levels=(TOKENS + 1,) * STEPS, classes=3)
"""A text a sample: 0 is padding, c + 1 is token c."""


def make_base(folder: Path, kind: str = "llama", *, start: int | None = 1) -> Path:
    """Write a model of two layers, as ``save_pretrained`` does."""
    import transformers

    torch.manual_seed(3)
    ends = {"bos_token_id": start, "eos_token_id": 2, "pad_token_id": 2}
    if kind == "gpt2":
        config = transformers.GPT2Config(vocab_size=TOKENS, n_positions=32, n_embd=16, n_layer=2, n_head=2, **ends)
        model = transformers.GPT2LMHeadModel(config)
    else:
        sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
        config = transformers.LlamaConfig(vocab_size=TOKENS, **sizes, max_position_embeddings=32, **ends)
        model = transformers.LlamaForCausalLM(config)
    transformers.utils.logging.disable_progress_bar()
    model.save_pretrained(folder)
    return folder


def lora(kind: str = "llama", **more):
    return {"kind": "lora", "rank": 2, "targets": TARGETS[kind], **more}


def build(folder: Path, shape=WINDOWS, seed=0, **settings):
    """The problem that a configuration with this model makes."""
    given = {"kind": "torch", "loss": "cross_entropy", "model": f"hf:{folder}", "precision": "double"}
    return TorchSettings.model_validate(given | settings).build(shape, seed)


def people(seed=0, sizes=SIZES, shape=WINDOWS):
    """A block of users with random windows, the last of which ends early, or random texts and classes."""
    random, count = np.random.default_rng(seed), sizes.sum()
    codes = random.integers(0, TOKENS, (count, STEPS)).astype(np.int32)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    codes[-1, STEPS // 2 :] = -1
    if shape is WINDOWS:
        return Block(codes, offsets)
    return Block(codes + 1, offsets, random.integers(0, 3, count).astype(np.float32))
