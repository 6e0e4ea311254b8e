"""A byte-level transformer of about a million parameters, trained on PUBLIC text, as a folder that transformers loads.

The defaults give a Llama in about 15 minutes on two processor cores, to be fine-tuned on users' text with privacy:
problem.model = 'hf:FOLDER'. Never give it text of the users who are to be protected.

    python research/pretrain.py base
    python research/pretrain.py base --text novels.txt letters.txt --minutes 10
    python research/pretrain.py base --width 256 --layers 8 --steps 20000 --minutes 600
"""

import argparse
import json
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from public_texts import DEFAULTS, documents
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from simulations.reports.progress import OnStep, counting_bar
from userdp.errors import BadInput

FACTS = "pretraining.json"
END = "<|endoftext|>"
"""The token after each document, and before the first byte of a window; users' rows are joined by it, too."""
_BATCH, _CONTEXT = 8, 256
_STEP_SIZE, _WARM_UP, _LONGEST = 3e-3, 0.05, 1.0
_SLACK = 0.02
_HELD_OUT = 0.05
_MOST_MEASURED = 512


@dataclass(frozen=True, kw_only=True)
class Pretraining:
    """The settings of a base model.

    Attributes:
        steps: of AdamW, 8 windows of 256 bytes each, with a step size that falls along a cosine.
        minutes: the longest training may take; a slower machine makes fewer steps, and another model.
        layers, width: of the Llama architecture, with heads of 32 and feed-forward layers of 8/3 times the width.
        seed: of the initial weights, the order of documents, and the windows.
    """

    steps: int = 6400
    minutes: float = 30.0
    layers: int = 5
    width: int = 128
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value, least in (("steps", self.steps, 1), ("layers", self.layers, 1), ("seed", self.seed, 0)):
            if value < least:
                raise BadInput(f"--{name} {value}: must be at least {least}")
        if not (math.isfinite(self.minutes) and self.minutes > 0):
            raise BadInput(f"--minutes {self.minutes}: must be a finite number above 0")
        if self.width < 32 or self.width % 32:
            raise BadInput(f"--width {self.width}: must be a multiple of 32, the width of a head")


def pretrain(folder: Path, files: Sequence[Path], settings: Pretraining, on_step: OnStep) -> dict[str, Any]:
    """Train on `documents` of ``files``, write the model, its tokenizer and a README into a new folder.

    Returns the facts of `FACTS`: parameters, bytes read, steps made, seconds, and bits a byte on held-out documents.
    Raises `BadInput` for a folder with files in it, and as `documents` does.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(f"the folder {folder} is not empty; name a new one")
    began, tokenizer = time.perf_counter(), byte_tokenizer()
    texts = documents(files)
    stream = _stream(tokenizer, texts, settings.seed)
    held = min(max(_CONTEXT, round(_HELD_OUT * len(stream))), len(stream) // 2)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        model = _architecture(settings, len(tokenizer), tokenizer.eos_token_id)
        steps = _train(model, stream[:-held], settings, on_step)
    facts = {
        **asdict(settings),
        **{"steps": steps, "parameters": sum(each.numel() for each in model.parameters())},
        **{"documents": len(texts), "bytes": sum(len(text.encode()) for text in texts)},
        "bits_per_byte": bits_per_token(model, stream[-held:]),
        "seconds": time.perf_counter() - began,
        "texts": [str(file) for file in files] or [f"{one.name} ({one.license}), {one.address}" for one in DEFAULTS],
    }
    transformers.utils.logging.disable_progress_bar()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / FACTS).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(_card(facts), encoding="utf-8")
    return facts


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Make a tokenizer of 257 tokens: each byte of UTF-8 is one, and `END`."""
    byte_names = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = Tokenizer(models.BPE(vocab={name: code for code, name in enumerate(byte_names)}, merges=[]))
    tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokens.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokens, bos_token=END, eos_token=END)


def _stream(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str], seed: int) -> NDArray[np.int64]:
    """Return the tokens of all documents in a seeded order, each with `END` after it."""
    order = np.random.default_rng(seed).permutation(len(texts))
    tokens = tokenizer([texts[number] for number in order], add_special_tokens=False, verbose=False)["input_ids"]
    stream = np.concatenate([[*each, tokenizer.eos_token_id] for each in tokens]).astype(np.int64)
    if len(stream) < 2 * _CONTEXT:
        raise BadInput(f"the text has {len(stream)} bytes; give at least {2 * _CONTEXT}, better some millions")
    return stream


def _architecture(settings: Pretraining, vocabulary: int, end: int) -> LlamaForCausalLM:
    heads = settings.width // 32
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=settings.width,
            intermediate_size=settings.width * 8 // 3 // 8 * 8,
            num_hidden_layers=settings.layers,
            num_attention_heads=heads,
            max_position_embeddings=1024,
            tie_word_embeddings=True,
            bos_token_id=end,
            eos_token_id=end,
        )
    )


def _train(model: LlamaForCausalLM, stream: NDArray[np.int64], settings: Pretraining, on_step: OnStep) -> int:
    """Train on random windows of the stream, and return the steps made: fewer if the time ends first."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=_STEP_SIZE, betas=(0.9, 0.99), weight_decay=0.1, fused=True)
    random, began, done, mean = np.random.default_rng([settings.seed, 1]), time.perf_counter(), 0, math.log(256)
    model.train()
    while done < settings.steps:
        share, spent = done / settings.steps, (time.perf_counter() - began) / (60 * settings.minutes)
        if spent >= 1:
            break
        share = spent if spent > share + _SLACK else share  # a machine in time makes the same model each time
        for group in optimiser.param_groups:
            group["lr"] = _STEP_SIZE * min(1.0, share / _WARM_UP + 1e-3) * 0.5 * (1 + math.cos(math.pi * share))
        first = random.integers(0, len(stream) - _CONTEXT + 1, _BATCH)
        optimiser.zero_grad()
        loss = _loss(model, stream[first[:, None] + np.arange(_CONTEXT)])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), _LONGEST)
        optimiser.step()
        done, mean = done + 1, mean + 0.02 * (loss.item() - mean)
        on_step(done, settings.steps, f"{mean / math.log(2):.2f} bits a byte")
    return done


def _loss(model: Any, windows: NDArray[np.int64]) -> torch.Tensor:
    """Compute the mean log loss of windows (N, L), of whose tokens the model sees the earlier ones and `END`."""
    targets = torch.as_tensor(windows)
    inputs = torch.roll(targets, 1, dims=1)
    inputs[:, 0] = model.config.eos_token_id
    return torch.nn.functional.cross_entropy(model(input_ids=inputs).logits.flatten(0, 1), targets.flatten())


def bits_per_token(model: Any, stream: NDArray[np.int64]) -> float:
    """Return the log loss in bits a token of whole windows of a stream, of 512 of them at most."""
    model.eval()
    context = min(_CONTEXT, len(stream))
    windows = stream[: len(stream) // context * context].reshape(-1, context)
    windows = windows[:: max(1, len(windows) // _MOST_MEASURED)][:_MOST_MEASURED]
    parts = np.array_split(windows, -(-len(windows) // _BATCH))
    with torch.no_grad():
        losses = [_loss(model, part).item() * len(part) for part in parts]
    return sum(losses) / len(windows) / math.log(2)


def _card(facts: dict[str, Any]) -> str:
    listed = "\n".join(f"- {text}" for text in facts["texts"])
    made = f"{facts['steps']} steps on {facts['bytes']:,} bytes in {facts['seconds']:.0f} seconds, seed {facts['seed']}"
    return f"""---
library_name: transformers
pipeline_tag: text-generation
---

# A small language model trained on public text

A byte-level Llama of {facts["parameters"]:,} parameters, made by `python research/pretrain.py`, to be fine-tuned on
users' text with user-level differential privacy. It has seen no user's text, so it costs no privacy.

{made}; {facts["bits_per_byte"]:.3f} bits a byte on held-out documents.

Texts:

{listed}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="new folder for the model")
    text = "PUBLIC text in UTF-8, whose documents empty lines separate; 5 MB of German sayings and speeches by default"
    parser.add_argument("--text", nargs="+", type=Path, default=[], metavar="FILE", help=text)
    default = Pretraining()
    parser.add_argument("--steps", type=int, default=default.steps, help="steps, of 2048 bytes each")
    parser.add_argument("--minutes", type=float, default=default.minutes, help="stop then, with fewer steps")
    parser.add_argument("--layers", type=int, default=default.layers, help="layers of the transformer")
    parser.add_argument("--width", type=int, default=default.width, help="width of its layers, a multiple of 32")
    parser.add_argument("--seed", type=int, default=default.seed, help="of initial weights, order and windows")
    chosen = vars(parser.parse_args())
    folder, files = chosen.pop("folder"), chosen.pop("text")
    try:
        with counting_bar("pretraining", "step {done} of {of}, {beside}") as progress:
            facts = pretrain(folder, files, Pretraining(**chosen), progress)
    except BadInput as error:
        parser.error(str(error))
    print(json.dumps(facts, indent=2))


if __name__ == "__main__":
    main()
