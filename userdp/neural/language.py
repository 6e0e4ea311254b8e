"""Language models of the transformers library as modules: whole, or frozen with a low-rank adapter that is trained.

`LanguageModel` reads what `userdp.neural.samples` makes of tokens: 0 is padding and the place before the first token,
and token c arrives as c + 1. So 0 becomes the token that begins a text, and padding behind a text needs no mask: no
token sees later ones, and losses leave padding out. Classes are scored from whole texts, with a mask of padding.

Weights are read from safetensors files alone, and no code from a model's folder is run. The frozen base is read once a
process, and copies share its memory; what travels to other processes is the place of the base and the trained tensors.
"""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from userdp.errors import BadInput
from userdp.extras import check_extra
from userdp.neural.kernels.by_user import ByUser
from userdp.neural.shared import SharedModule

_MOST_NAMES = 12  # Names in a message.
_HEAD_DEVIATION = 0.02  # Of a new head's weights, as the library's models draw theirs.


@dataclass(frozen=True)
class Adapter:
    """A low-rank adapter (LoRA: Hu et al. 2022) W + (alpha / rank) B A of some linear layers, with B = 0 at first."""

    rank: int = 8
    alpha: float = 16.0
    targets: tuple[str, ...] | None = None
    """The ends of the names of layers that get one; None for those that peft knows for the kind of model."""


@dataclass(frozen=True)
class Language:
    """A factory of `LanguageModel`, picklable.

    ``place`` is a folder, or a name on the Hugging Face hub; samples have ``steps`` tokens of ``levels``; ``classes``
    are those of a target, None to predict the next token. Without ``adapter`` every parameter is trained, and without
    ``pretrained`` only the architecture is read. ``mixed`` computes in bfloat16, and holds frozen weights in it.
    Calling it raises `BadInput`, which names the field: a library or a model is missing, weights do not fit, targets
    match no layer, or samples have more tokens than the model.
    """

    place: str
    levels: int
    steps: int
    classes: int | None = None
    adapter: Adapter | None = None
    pretrained: bool = True
    mixed: bool = False

    def __call__(self) -> "LanguageModel":
        """Make the module; a new head, and an adapter, are drawn from torch's generator."""
        return LanguageModel(self)

    @property
    def told(self) -> str:
        """The beginning of messages."""
        return f"problem.model = 'hf:{self.place}'"

    def check(self) -> None:
        """Refuse what cannot be, without reading weights."""
        check_extra("language", self.told)
        if self.adapter is not None and not self.pretrained:
            raise BadInput(
                "problem.adapter with problem.pretrained = false: an adapter of random weights learns little"
            )
        text = self._configuration().get_text_config()
        tokens, most = text.vocab_size, getattr(text, "max_position_embeddings", self.steps)
        if self.levels > tokens:
            raise BadInput(
                f"{self.told} has {tokens} tokens, and samples have {self.levels}: name the tokenizer of this model "
                "for the text column"
            )
        if self.steps > most:
            raise BadInput(
                f"{self.told} reads {most} tokens at once, and samples have {self.steps}: shorten the window"
            )

    def model(self) -> Any:
        """Return a model that shares the memory of its parameters with all others of this process; a head is new."""
        if not self.pretrained:
            with _quiet(self):
                return self._kind().from_config(self._configuration(), dtype=torch.float32)
        with torch.random.fork_rng(devices=()):  # loading draws, and happens once in a process
            base, missing = _loaded(self)
        memory = {}
        for name, one in base.named_parameters():
            values = one.detach()
            if name in missing:  # drawn anew for each model
                values = torch.zeros_like(one) if one.ndim < 2 else _HEAD_DEVIATION * torch.randn_like(one)
            memory[id(one)] = nn.Parameter(values, requires_grad=False)
        return deepcopy(base, memory)

    def _kind(self) -> Any:
        import transformers  # noqa: PLC0415 -- optional, and slow to import

        return getattr(transformers, f"AutoModelFor{'CausalLM' if self.classes is None else 'SequenceClassification'}")

    def _configuration(self) -> Any:
        from transformers import AutoConfig  # noqa: PLC0415 -- optional, and slow to import

        with _quiet(self):
            found = AutoConfig.from_pretrained(self.place, trust_remote_code=False)
            if self.classes is not None:
                found.num_labels = self.classes
            found.get_text_config().use_cache = False
            return found


@contextmanager
def _quiet(language: Language) -> Iterator[None]:
    """Keep the libraries' bars and warnings away; turn their errors into `BadInput` that names what to do."""
    from transformers.utils import logging  # noqa: PLC0415 -- optional, and slow to import

    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        first = str(error).partition("\n")[0]
        fix = (
            "the folder has to hold config.json and model.safetensors of an architecture that transformers knows"
            if Path(language.place).is_dir()
            else "there is no such folder; where there is no network, name a folder that holds config.json "
            "and model.safetensors (`hf download NAME --local-dir FOLDER`, or `python research/pretrain.py FOLDER`)"
        )
        raise BadInput(f"{language.told} cannot be read ({type(error).__name__}: {first}): {fix}") from None
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def _loaded(language: Language) -> tuple[nn.Module, frozenset[str]]:
    """Return the base, read once per process, and the names of its parameters that files lack."""
    folder = Path(language.place)
    files = sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
    marks = tuple((file.name, file.stat().st_mtime_ns, file.stat().st_size) for file in files)
    halved = language.mixed and language.adapter is not None
    return _read(language.place, marks, language.classes, halved)


@cache
def _read(place: str, marks: tuple[Any, ...], classes: int | None, halved: bool) -> tuple[nn.Module, frozenset[str]]:
    language = Language(place, 1, 1, classes)
    dtype = torch.bfloat16 if halved else torch.float32
    with _quiet(language):
        model, about = language._kind().from_pretrained(
            place,
            config=language._configuration(),
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    missing, heads = frozenset(about["missing_keys"]), ("score", "classifier", "classification_head")
    strange = sorted(name for name in missing if classes is None or not name.startswith(heads))
    if strange or about["mismatched_keys"]:
        wrong = strange or [str(one[0]) for one in about["mismatched_keys"]]
        raise BadInput(
            f"{language.told}: its files lack weights of {type(model).__name__}, such as {wrong[0]}; name a model "
            f"that was trained {'to predict the next token' if classes is None else 'on text'}"
        )
    return model.requires_grad_(False).eval(), missing


class LanguageModel(SharedModule):
    """A model of the transformers library, in evaluation mode: logits of tokens (N, L, V), or of classes (N, K).

    Inputs are (N, L) whole numbers, 0 for padding and c + 1 for token c. Its trainable parameters are the adapter and
    a new head, or all of them.

    Attributes:
        language: what it was made from.
        model: the library's module; with an adapter a `peft.PeftModel`.
        first: the token that begins every text.
        trained: the names of trainable parameters.
    """

    def __init__(self, language: Language) -> None:
        super().__init__()
        language.check()
        self.language, self.mixed, self.adapts = language, language.mixed, language.adapter is not None
        self.model = self._with_adapter(language.model()) if language.adapter else language.model().requires_grad_(True)
        self.model.eval()
        config = self.model.config.get_text_config()
        begins, ends, padding = config.bos_token_id, config.eos_token_id, config.pad_token_id
        self.first = next(one for one in (begins, ends, padding, 0) if isinstance(one, int))
        self._padding = next(one for one in (padding, ends, begins, 0) if isinstance(one, int))
        config.pad_token_id = self._padding  # a class is scored at the last token that is no padding
        for part in self.model.modules():
            if isinstance(part, nn.Embedding):
                part.padding_idx = None  # else a token would be trained or not by how users are grouped
        self.trained = frozenset(name for name, one in self.named_parameters() if one.requires_grad)

    def _with_adapter(self, base: Any) -> Any:
        import peft  # noqa: PLC0415 -- optional, and slow to import

        adapter, language = cast(Adapter, self.language.adapter), self.language
        linear = {name for name, part in base.named_modules() if hasattr(part, "weight") and part.weight.ndim == 2}
        endings = sorted({name.rpartition(".")[2] for name in linear} - {"wte", "wpe", "embed_tokens", "lm_head"})
        for target in adapter.targets or ():
            if not any(name == target or name.endswith(f".{target}") for name in linear):
                there = ", ".join(endings[:_MOST_NAMES])
                raise BadInput(f"problem.adapter.targets: {language.told} has no layer {target!r}; there are {there}")
        settings = peft.LoraConfig(
            r=adapter.rank,
            lora_alpha=cast(int, adapter.alpha),  # peft takes any number
            target_modules=None if adapter.targets is None else [*adapter.targets],
            task_type="CAUSAL_LM" if language.classes is None else "SEQ_CLS",
            fan_in_fan_out=any(type(part).__name__ == "Conv1D" for part in base.modules()),
            base_model_name_or_path=language.place,
        )
        with _quiet(language):
            model = peft.get_peft_model(base, settings)
        trained = {id(one) for one in model.parameters() if one.requires_grad}
        layers = [part for part in model.modules() if trained & {*map(id, part.parameters(recurse=False))}]
        self.side_by_side = all(type(part) is nn.Linear for part in layers)
        for part in layers:
            if type(part) is nn.Linear:
                part.__class__ = ByUser
        return model

    def forward(self, codes: Tensor) -> Tensor:
        """Return logits, in float32 at least."""
        there = codes > 0
        with torch.autocast(codes.device.type, torch.bfloat16, enabled=self.mixed and not self.adapts):
            if self.language.classes is None:
                logits = self.model(input_ids=(codes - 1).where(there, self.first)).logits
            else:
                tokens = (codes - 1).where(there, self._padding)
                logits = self.model(input_ids=tokens, attention_mask=there.long()).logits
        return cast(Tensor, logits.float() if logits.dtype == torch.bfloat16 else logits)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the place of the base, and the trained tensors: another process reads the base itself."""
        return _again, (self.language, {name: self.get_parameter(name).detach() for name in self.trained})


def _again(language: Language, trained: Mapping[str, Tensor]) -> LanguageModel:
    module = language()
    module.load_state_dict(trained, strict=False, assign=True)  # in place it would change all that share the memory
    return module
