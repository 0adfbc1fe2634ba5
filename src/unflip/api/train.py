"""train: from data whose labels may be wrong to a finished run, with its report."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from unflip.api.embed import EMBEDDING_USES, EmbedPlan, plan_embedding
from unflip.api.options import TRAIN, EmbeddingOptions, SourceOptions, option_tree
from unflip.api.report import report_finished
from unflip.data.columns import Table
from unflip.data.dataset import Dataset
from unflip.data.hugging_face import write_dataset
from unflip.data.labeling import choose_labels
from unflip.data.loaders import check_used, load_raw
from unflip.data.options import ImageOptions
from unflip.encoders.columns import ColumnChoices
from unflip.encoders.table import TableEncoder
from unflip.engine.run import train_run
from unflip.errors import ConfigError, one_line
from unflip.parallel import find_device
from unflip.progress import make_reporter
from unflip.runs import layout
from unflip.runs.config import Layers, RunConfig, Tree, check_section, make_layers, network_section, read_toml
from unflip.runs.folder import Run
from unflip.runs.options import Execution


def train(
    data: Any,
    out: str | Path,
    *,
    method: str | None = None,
    epochs: int | None = None,
    seed: int | None = None,
    resume: bool = False,
    force: bool = False,
    **options: Any,
) -> Run:
    """Train on data whose labels may be wrong; write a run folder with a report and return it.

    Does what ``unflip train`` does, with the same options, defaults and errors, which are exceptions of
    ``unflip.errors.UnflipError``. Ctrl-C and SIGTERM, in the main thread, save and raise
    ``unflip.errors.Stopped``.

    Args:
        data: a path, the name of a built-in data set, or a ``Dataset`` or ``DatasetDict`` of Hugging Face, which is
            written to the run's folder first. With ``resume`` it may be None: everything comes from the run folder.
        out: the run's folder.
        method: how to learn: see ``unflip list methods``.
        epochs: passes over the data.
        seed: the random seed.
        resume: continue the run in ``out`` where it stopped.
        force: replace the run in ``out``.
        options: those of ``unflip.api.options.TRAIN``; ``unflip train --help`` describes them.
            ``settings`` are what ``--set`` takes: ``"key=value"`` strings, or a mapping from dotted keys to values.
            What is None comes from ``settings``, ``config``, ``preset`` or the defaults, in this order.
    """
    run = Run(Path(out))
    tree = option_tree(TRAIN, {"method": method, "epochs": epochs, "seed": seed, **options})
    execution = check_section(Execution, tree.pop("execution", {}))
    run.check_free(resume=resume, force=force)
    if data is not None and not isinstance(data, str | Path):
        own = tree.setdefault("data", {})
        run.begin()
        columns = {"label_column": own.pop("label_column", None), "ignore": own.pop("ignore", ())}
        data = write_dataset(data, run.own(layout.DATA), **columns)
    finished = _train(run, data, tree, execution, resume=resume, force=force)
    report_finished(finished)
    return finished


def dry_run(data: str | Path | None, out: str | Path, *, force: bool = False, **options: Any) -> str:
    """Return what :func:`train` would do, as text: configuration, columns and classes. Nothing is trained or written.

    The arguments are those of ``train``. The text is valid TOML: all but the configuration are comments.
    """
    run, tree = Run(Path(out)), option_tree(TRAIN, options)
    execution = check_section(Execution, tree.pop("execution", {}))
    run.check_free(resume=False, force=force)
    embedding = check_section(EmbeddingOptions, tree.pop("embedding", {}))
    layers = layers_of(data, tree)
    plan = plan_training(run, layers, embedding, execution)
    plan.config.check()
    find_device(execution.device)
    own = layers.resolve().common.data
    raw = load_raw(own, plan.config.parts) if plan.raw is None else plan.raw
    examples, _ = choose_labels(raw, own)
    assert examples.labels is not None
    lines = [] if plan.embedding is None else plan.embedding.encoder.describe()
    if isinstance(raw.train.inputs, Table):
        choices = ColumnChoices(numeric=own.numeric, categorical=own.categorical, text_column=own.text_column)
        lines = TableEncoder.fit(raw.train.inputs, choices, own.text_encoder).describe()
    names, counts = np.unique(examples.labels, return_counts=True)
    if raw.class_names is not None and names.dtype.kind in "iu":
        names = np.array(raw.class_names)[names]
    lines.append(f"{len(examples.labels):,} training examples in {len(names)} classes:")
    lines += [f"  {one_line(str(name))} {count:,}" for name, count in zip(names, counts, strict=True)]
    return "\n".join([plan.config.to_toml(), *(f"# {line}" for line in lines)])


def _train(run: Run, data: str | Path | None, tree: Tree, execution: Execution, *, resume: bool, force: bool) -> Run:
    embedding = check_section(EmbeddingOptions, tree.pop("embedding", {}))
    layers = layers_of(data, tree, read_toml(run.config_path) if resume else None)
    if resume:
        return train_run(run, layers.resolve(), execution, resume=True)
    plan = plan_training(run, layers, embedding, execution)
    if plan.embedding is None:
        return train_run(run, plan.config, execution, raw=plan.raw, force=force)
    run.begin()
    run.own(layout.EMBEDDED)
    made = plan.embedding.run(make_reporter(execution.quiet))
    return train_run(run, plan.config, execution, raw=made.features, force=force)


@dataclass(frozen=True)
class TrainPlan:
    """What a run learns from."""

    config: RunConfig
    raw: Dataset | None
    """The data, if it had to be read in order to know."""
    embedding: EmbedPlan | None
    """How images become the features that the run learns from; None where it learns from the data as it is."""


def plan_training(run: Run, layers: Layers, embedding: EmbeddingOptions, execution: Execution) -> TrainPlan:
    """Resolve a run's configuration; refuse options that somebody typed although nothing reads them.

    The default network is for rows, so where nobody chose one, images become features first, as `clean` does it.
    """
    config = layers.resolve()
    data, typed = config.common.data, layers.typed("data")
    chosen = any("network" in layer for layer in layers.trees)
    raw = None if chosen else load_raw(data, config.parts)
    of_images = raw is not None and raw.holds_images
    check_used(data, typed, EMBEDDING_USES if of_images else ())
    if raw is None or not of_images:
        if unused := next(iter(embedding.model_fields_set), None):
            flag = f"--{unused.replace('_', '-')}"
            raise ConfigError(f"{flag} is for features of images; this run learns from its examples: leave it out")
        return TrainPlan(config, raw, None)
    choose_labels(raw, data)  # before anything that takes long
    plan = plan_embedding(
        raw, run.folder / layout.EMBEDDED, data, embedding, execution, track=make_reporter(execution.quiet).track
    )
    plain = {name: field.default for name, field in ImageOptions.model_fields.items()} | {"label_column": None}
    own = data.model_copy(update=plain | {"path": str(plan.out)})
    return TrainPlan(replace(config, common=config.common.model_copy(update={"data": own})), raw, plan)


def layers_of(data: str | Path | None, tree: Tree, base: Tree | None = None) -> Layers:
    """Return what the options of ``train`` ask for, over the configuration of a run that is resumed."""
    sources = check_section(SourceOptions, tree.pop("sources", {}))
    if data is not None:
        tree = tree | {"data": tree.get("data", {}) | {"path": str(Path(data))}}
    layers = make_layers(tree, base=base, preset=sources.preset, config=sources.config, settings=sources.settings)
    return _from_scratch(layers) if sources.from_scratch else layers


def _from_scratch(layers: Layers) -> Layers:
    """Return layers in which the network starts from random weights."""
    section = network_section(layers.resolve().common.network)
    return replace(layers, flags=layers.flags | {section: {"pretrained": False}})
