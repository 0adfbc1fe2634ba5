"""train: train on data with noisy labels."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from unflip.api.embed import EMBEDDING_USES, EmbedPlan, plan_embedding
from unflip.api.options import TRAIN, EmbeddingOptions, SourceOptions, option_tree
from unflip.api.result import Result
from unflip.compute import find_device
from unflip.data.columns import Table
from unflip.data.dataset import Dataset
from unflip.data.labeling import choose_labels
from unflip.data.loaders import check_used, load_raw
from unflip.data.memory import InMemory, take_memory
from unflip.data.options import ImageOptions
from unflip.encoders.columns import ColumnChoices
from unflip.encoders.table import TableEncoder
from unflip.engine.run import train_run
from unflip.errors import ConfigError, one_line
from unflip.progress import is_first_process, make_reporter
from unflip.report.run_report import report_finished
from unflip.runs import layout
from unflip.runs.config import Layers, RunConfig, Tree, check_section, make_layers, network_section, read_toml
from unflip.runs.folder import Claim, Run, as_run
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
) -> Result:
    """Train on data with noisy labels, and write a run folder with a report.

    This is the same as ``unflip train``, with the same options and defaults. Errors are ``unflip.errors.UnflipError``.
    Ctrl-C and SIGTERM save a checkpoint and raise ``unflip.errors.Stopped``.

    Args:
        data: a path, the name of a built-in data set, or data in memory as for `unflip.clean`, which is copied to the
            run folder. It may be None with ``resume``.
        out: the run folder.
        method: the training method; see ``unflip list methods``.
        epochs: passes over the data.
        seed: random seed.
        resume: resume the run in ``out``.
        force: replace the run in ``out``.
        options: see ``unflip.api.options.TRAIN`` and ``unflip train --help``. ``settings`` corresponds to ``--set``: a
            list of ``"key=value"`` strings, or a mapping from dotted keys to values. Other options take precedence over
            ``settings``, followed by ``config``, ``preset`` and the defaults.

    Returns:
        The finished run.
    """
    memory = None if data is None or isinstance(data, str | Path) else take_memory(data, options)
    tree, run = option_tree(TRAIN, {"method": method, "epochs": epochs, "seed": seed, **options}), as_run(out)
    execution = check_section(Execution, tree.pop("execution", {}))
    with Claim(run, resume=resume, force=force) as claim:
        find_device(execution.device)
        _train(claim, data if memory is None else memory, tree, execution)
        if is_first_process():
            report_finished(run)
    return Result(run.folder, memory)


def _train(claim: Claim, data: str | Path | InMemory | None, tree: Tree, execution: Execution) -> None:
    """Write data that is not a file, embed images, and train."""
    run = claim.run
    with claim.located(data) as path:
        embedding = check_section(EmbeddingOptions, tree.pop("embedding", {}))
        layers = layers_of(path, tree, read_toml(run.config_path) if claim.resume else None)
        if claim.resume:
            train_run(claim, layers.resolve(), execution)
            return
        config, raw, plan = plan_training(run, layers, embedding, execution)
        if plan is not None:
            claim.hold().begin()
            run.own(layout.EMBEDDED)
            raw = plan.run().features
        prepared = config.load_data(raw, make_reporter(execution.quiet).track)
    train_run(claim, config, execution, data=prepared)


def dry_run(data: str | Path | None, out: str | Path, *, force: bool = False, **options: Any) -> str:
    """Return the configuration, columns and classes of a run as text; train and write nothing.

    The arguments are those of :func:`train`. The text is valid TOML: the configuration, and comments.
    """
    tree, run = option_tree(TRAIN, options), as_run(out)
    execution = check_section(Execution, tree.pop("execution", {}))
    run.check_free(resume=False, force=force)
    find_device(execution.device)
    embedding = check_section(EmbeddingOptions, tree.pop("embedding", {}))
    layers = layers_of(data, tree)
    config, raw, plan = plan_training(run, layers, embedding, execution)
    own = layers.resolve().common.data
    labeled = choose_labels(raw, own)[0]
    lines = [] if plan is None else plan.encoder.describe()
    if isinstance(raw.train.inputs, Table):
        choices = ColumnChoices(numeric=own.numeric, categorical=own.categorical, text_column=own.text_column)
        lines = TableEncoder.fit(raw.train.inputs, choices, own.text_encoder).describe()
    names, counts = labeled.class_names or range(labeled.num_classes), labeled.given[labeled.given >= 0].bincount()
    classes = [(name, count) for name, count in zip(names, counts.tolist(), strict=False) if count]
    lines.append(f"{int(counts.sum()):,} training examples in {len(classes)} classes:")
    lines += [f"  {one_line(str(name))} {count:,}" for name, count in classes]
    return "\n".join([config.to_toml(), *(f"# {line}" for line in lines)])


def plan_training(
    run: Run, layers: Layers, embedding: EmbeddingOptions, execution: Execution
) -> tuple[RunConfig, Dataset, EmbedPlan | None]:
    """Return a run's configuration, its data and, if images become features, how; raise if an option is not used.

    The default network takes rows of features, so images are embedded first unless a network is chosen.
    """
    config = layers.resolve()
    config.check()
    data = config.common.data
    raw = load_raw(data)
    embeds = raw.holds_images and not any("network" in layer for layer in layers.trees)
    check_used(data, layers.typed("data"), EMBEDDING_USES if embeds else ())
    if not embeds:
        if unused := next(iter(embedding.model_fields_set), None):
            raise ConfigError(f"--{unused.replace('_', '-')} is not used: this run does not embed images")
        return config, raw, None
    labels = choose_labels(raw, data)[0].given  # fail before images are embedded
    config.check_size(len(labels), len(labels[labels >= 0].unique()), find_device(execution.device))
    plan = plan_embedding(raw, run.folder / layout.EMBEDDED, data, embedding, execution)
    defaults = {name: field.default for name, field in ImageOptions.model_fields.items()}
    own = data.model_copy(update=defaults | {"path": str(plan.out), "label_column": None, "annotator_columns": ()})
    return replace(config, common=config.common.model_copy(update={"data": own})), raw, plan


def layers_of(data: str | Path | None, tree: Tree, base: Tree | None = None) -> Layers:
    """Return the configuration layers of ``train``'s options; ``base`` is that of a resumed run."""
    sources = check_section(SourceOptions, tree.pop("sources", {}))
    if data is not None:
        tree = tree | {"data": tree.get("data", {}) | {"path": str(Path(data))}}
    layers = make_layers(tree, base=base, preset=sources.preset, config=sources.config, settings=sources.settings)
    if not sources.from_scratch:
        return layers
    section = network_section(layers.resolve().common.network)
    return replace(layers, flags=layers.flags | {section: {"pretrained": False}})
