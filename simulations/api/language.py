"""A trained language model as a folder that transformers, or peft with the same base, loads elsewhere.

With an adapter the folder holds adapter_config.json and adapter_model.safetensors, and `PeftModel.from_pretrained`
of base and folder gives the logits of the run; else config.json and model.safetensors of the whole model, with the
files of the base's tokenizer. README.md is a model card that states the guarantee.
"""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rich.console import Console

from simulations.records.run_directory import writing
from simulations.reports.explain import promise_texts
from userdp.accounting import Guarantee
from userdp.arrays.types import Vector
from userdp.errors import BadInput
from userdp.problems.base import Problem

if TYPE_CHECKING:
    from userdp.neural.problem import TorchProblem

CARD = "README.md"
_TOKENIZER = ("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt", "chat_template*")
_CARD = """\
---
base_model: {base}
library_name: {library}
tags: [{tags}]
---

# {name}

{what}, trained by userdp: {parameters:,} numbers.

## Guarantee

{guarantee}

It assumes:

{assumptions}

It covers the people in the training data. It says nothing of those whose texts the base was trained on.

## How to load it

```python
{code}
```

Training began every window with token {first}, which stands for the beginning of a text.
"""
_LOAD = {
    "peft": """\
from peft import PeftModel
from transformers import {auto}

base = {auto}.from_pretrained({base!r}{head})
model = PeftModel.from_pretrained(base, "this folder")""",
    "transformers": """\
from transformers import {auto}

model = {auto}.from_pretrained("this folder")""",
}


def write_language(problem: Problem, model: Vector, guarantee: Guarantee, name: str, folder: Path) -> None:
    """Write the model (p,) of a language model's problem; see `simulations.SavedModel.to_transformers`."""
    if problem.name != "torch":
        raise BadInput(f"to_transformers: problem.kind = {problem.name!r} is no language model; use to_onnx")
    module: Any = cast("TorchProblem", problem).module_at(model)
    from userdp.neural.language import LanguageModel  # noqa: PLC0415 -- torch is slow to import

    if not isinstance(module, LanguageModel):
        raise BadInput("to_transformers: the run names no problem.model; use to_onnx")
    language = module.language
    with writing(f"to_transformers({str(folder)!r}):", "name another folder"):
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise BadInput(f"to_transformers({str(folder)!r}): the folder is not empty; name a new one")
        module.model.save_pretrained(folder, safe_serialization=True)
        if language.adapter is None:
            for pattern in _TOKENIZER:
                for file in sorted(Path(language.place).glob(pattern)):
                    shutil.copyfile(file, folder / file.name)
        (folder / CARD).write_text(_card(module, guarantee, name), encoding="utf-8")


def _card(module: Any, guarantee: Guarantee, name: str) -> str:
    language = module.language
    library = "transformers" if language.adapter is None else "peft"
    auto = "AutoModelForCausalLM" if language.classes is None else "AutoModelForSequenceClassification"
    head = "" if language.classes is None else f", num_labels={language.classes}"
    return _CARD.format(
        base=language.place,
        library=library,
        tags="differential-privacy, user-level" if guarantee.holds and guarantee.unit == "user" else "",
        name=name,
        what=f"A {'model' if language.adapter is None else 'low-rank adapter'} of {language.place}",
        parameters=sum(module.get_parameter(one).numel() for one in module.trained),
        guarantee=guarantee.sentence(),
        assumptions="\n".join(f"- {one}" for one in guarantee.assumptions) or "- nothing",
        code=_LOAD[library].format(auto=auto, base=language.place, head=head),
        first=module.first,
    )


def language_files(folder: Path, guarantee: Guarantee) -> dict[str, Any]:
    """Return what `write_language` wrote, for JSON."""
    return {
        "folder": str(folder),
        "files": sorted(one.name for one in folder.iterdir()),
        "metadata": promise_texts(guarantee),
    }


def show_language_files(values: dict[str, Any], console: Console) -> None:
    """Print the files and the guarantee."""
    console.print(f"{values['folder']}: {', '.join(values['files'])}", highlight=False, soft_wrap=True)
    console.print(values["metadata"]["userdp.guarantee"], highlight=False, soft_wrap=True)
