"""Options that several commands declare alike."""

from pathlib import Path
from typing import Annotated

import typer

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Device = Annotated[
    str, typer.Option(help="Where to compute: auto (a GPU if there is one), cpu, cuda or mps.", metavar="DEVICE")
]
Force = Annotated[bool, typer.Option("--force", help="Replace a file that is there.")]
FinishedRun = Annotated[Path, typer.Argument(help="The folder of a finished run.")]
Results = Annotated[
    list[Path] | None,
    typer.Option(help="A results.jsonl or the folder of a sweep, to stand beside the paper's numbers; repeatable."),
]
Where = Annotated[
    list[str] | None,
    typer.Option(help="Use only results with this value: --where epochs=15; repeatable.", metavar="KEY=VALUE"),
]
