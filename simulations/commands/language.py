"""The verb that trains a small language model on public text."""

from pathlib import Path
from typing import Annotated

import typer

from simulations.terminal import Debug, Json, answer, argument, examples, option, working


@examples(
    "userdp pretrain base",
    "userdp pretrain base --text novels.txt --text letters.txt --minutes 10",
    "userdp pretrain base --width 256 --layers 8 --steps 20000 --minutes 600 --json | jq .bits_per_byte",
)
def pretrain(
    folder: Annotated[Path, argument("FOLDER", "New folder for the model, as transformers loads it.")],
    text: Annotated[
        list[Path] | None,
        option(
            "PUBLIC text in UTF-8, its documents separated by empty lines; repeatable. By default 4 MB of German "
            "sayings and speeches, downloaded once into the cache of public data.",
            metavar="FILE",
        ),
    ] = None,
    steps: Annotated[int, typer.Option(help="Steps, of 2048 bytes each.")] = 6400,
    minutes: Annotated[float, typer.Option(help="Stop after this time, with fewer steps.")] = 30.0,
    layers: Annotated[int, typer.Option(help="Layers of the transformer.")] = 5,
    width: Annotated[int, typer.Option(help="Width of its layers, a multiple of 32.")] = 128,
    seed: Annotated[int, typer.Option(help="Of initial weights, order and windows.")] = 0,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Train a small byte-level language model on PUBLIC text, to be fine-tuned on users' text with privacy.

    The defaults give a Llama of a million parameters, in about 15 minutes on two processor cores. Name its folder in a
    configuration: problem.model = 'hf:FOLDER'. Never give it text of the users who are to be protected.
    """
    with working(debug):
        from simulations.pretraining.base_model import Pretraining  # noqa: PLC0415
        from simulations.pretraining.base_model import pretrain as train  # noqa: PLC0415
        from simulations.reports.progress import counting_bar  # noqa: PLC0415

        settings = Pretraining(steps=steps, minutes=minutes, layers=layers, width=width, seed=seed)
        with counting_bar("pretraining", "step {done} of {of}, {beside}") as progress:
            facts = train(folder, text or (), settings, progress)
    made = f"{facts['parameters']:,} parameters, {facts['steps']} steps, {facts['seconds']:.0f} seconds"
    learnt = f"{facts['bits_per_byte']:.3f} bits a byte on held-out text"
    answer(as_json, facts, lambda: typer.echo(f"{made}: {learnt}\nModel: {folder}"))
