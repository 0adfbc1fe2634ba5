"""The field's words: replaced names, options and phrases do not come back in source, help, pages or docs."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SUFFIXES = {".py", ".md", ".html", ".js", ".toml"}
SEEDING = re.compile(r'(derive|generator|seed)\([^)]*"[^"]*"')
"""Seeding strings are part of every result and never change."""
MIGRATION = re.compile(r"^## Coming from unflip 0\.2$.*?(?=^## )", re.DOTALL | re.MULTILINE)
"""The one section that names what was replaced."""

WORDS = {
    r"strangers?": "outlier",
    r"suspects?|suspected": "label issue",
    r"a finding|findings": "issue, issues.csv",
    r"committees?": "cross-fitted ensemble",
    r"(un)?judg(e|es|ed|ing|ements?|ments?)": "score",
    r"belie(fs?|ves?|ved|ving)": "posterior, estimate",
    r"odd_images?|odd images?|weak_class(es)?|weak class(es)?": "image_quality, class_quality",
    r"likeliest": "top1, most likely",
    r"shorten(ed|s)?_gradients?": "clip_grad_norm",
    r"on[_-]nan": "(removed)",
    r"map_above_mb|most_broken|least_size|lr_share|head_epochs": "mmap_threshold_mb, max_broken, min_size, "
    "backbone_lr_scale, freeze_epochs",
    r"--on ray|--order (helpful|doubtful)": "--backend ray, --order informative or lowest-quality",
    r"(?<!majority )votes?": "gaussian_prob",
    r"alike": "similar, equally",
    r"by heart": "memorize",
    r"in spite of": "despite",
    r"as they came": "original",
    r"anew": "again",
    r"per cent": "percent",
    r"learnt|labell(ed|ing)|unlabelled|colours?|neighbours?|centred?|behaviour|favour\w*": "American spelling",
    r"(normal|standard|optim|initial|minim|maxim|general|summar|recogn)is(e|es|ed|er|ing|ation)": "American spelling",
}
"""Neither in source nor in docs; each with what to write instead."""

NAMES = {
    r"Alike|find_alike|same_images|Examined|Found|looks_wrong": "DuplicateIndex, image_similarity, AuditInput, "
    "CheckResult, is_label_issue",
    r"Setting|Outline|Observed|Judgement|Belief|Crew|News|Cells|LabelledSet|RawData|LabelledData": "TrainContext, "
    "RunShape, EpochOutputs, LabelScores, PosteriorState, WorkerPool, Event, Table, Split, Dataset",
    r"conclude|assemble|bare|carry_out|left_out|kind_for|beliefs": "score_examples, build_networks, unwrap, run_sweep, "
    "leave_group_out, storage_dtype, train_probs",
    r"deal|_deal|_aim|_look|_vote|_believe": "assign_folds, compute_targets, compute_views, fit_gaussians, "
    "update_posterior",
    r"background|believed_inequality|moved_shares|offsets_to|explained_noise": "uniform_noise_rate, prior_trust, "
    "temper_prior, fit_prior_offsets, class_conditional_noise",
    r"ahead|Processes|Averaged|last_change|is_error": "prefetch, Distributed, EMA, last_changed_epoch, is_label_issue",
}
"""Not defined or used in the source, where a name is followed by one of ``( : = . , [ )``."""


@cache
def lines(*places: str) -> list[tuple[str, str]]:
    """Return place and line of everything that people read or import."""
    return list(_read(places))


def _read(places: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for place in places:
        base = ROOT / place
        for path in sorted(base.rglob("*")) if base.is_dir() else [base]:
            if path.suffix in SUFFIXES:
                text = MIGRATION.sub(lambda section: "\n" * section[0].count("\n"), path.read_text("utf-8"))
                for number, line in enumerate(text.splitlines(), 1):
                    if not SEEDING.search(line):
                        yield f"{path.relative_to(ROOT).as_posix()}:{number}", line


def word(old: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![A-Za-z])({old})(?![A-Za-z])", re.IGNORECASE)


def name(old: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w\"' ])({old})\b[(:=.,\[)]|\b(def|class) ({old})\b|^\s*({old}) = |``({old})``")


@pytest.mark.parametrize(("old", "new"), WORDS.items())
def test_a_replaced_word_does_not_come_back(old: str, new: str) -> None:
    places = ("src", "docs", "README.md", "CONTRIBUTING.md", "SECURITY.md")
    hits = [f"{place}: {line.strip()}" for place, line in lines(*places) if word(old).search(line)]
    assert not hits, f"write instead: {new}\n" + "\n".join(hits)


@pytest.mark.parametrize(("old", "new"), NAMES.items())
def test_a_replaced_name_does_not_come_back(old: str, new: str) -> None:
    hits = [f"{place}: {line.strip()}" for place, line in lines("src") if ".py:" in place and name(old).search(line)]
    assert not hits, f"call it: {new}\n" + "\n".join(hits)


@pytest.mark.parametrize(
    "line",
    [
        "every label was judged by networks",
        '"""A committee of four."""',
        "unflip embed photos --on ray",
        "    def _vote(self) -> Tensor:",
        "network.conclude(rows)",
        "column vote_given",
    ],
)
def test_a_replaced_word_is_noticed(line: str) -> None:
    assert any(word(old).search(line) for old in WORDS) or any(name(old).search(line) for old in NAMES)


@pytest.mark.parametrize("line", ["by majority vote", "finding neighbors", "look ahead", "the background of a page"])
def test_ordinary_uses_are_allowed(line: str) -> None:
    assert not any(word(old).search(line) for old in WORDS)
    assert not any(name(old).search(line) for old in NAMES)
