"""Folds: as many of every class in each, groups together; members take rows of other folds than their own."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from unflip.methods.unflip.folds import assign_folds, folds_without, members_rows


@given(st.integers(0, 1000), st.integers(2, 8), st.integers(1, 60))
def test_every_fold_has_as_many_of_every_class(seed: int, count: int, size: int) -> None:
    labels = torch.randint(4, (size,), generator=torch.Generator().manual_seed(seed))
    folds = assign_folds(labels, None, count, seed)
    assert set(folds.tolist()) <= set(range(count))
    for members in (folds, *(folds[labels == c] for c in range(4))):
        sizes = members.bincount(minlength=count)
        assert int(sizes.max() - sizes.min()) <= 1
    assert torch.equal(folds, assign_folds(labels, None, count, seed))


@given(st.integers(0, 1000), st.integers(2, 5), st.integers(1, 60))
def test_groups_share_a_fold_and_are_spread_themselves(seed: int, count: int, size: int) -> None:
    random = torch.Generator().manual_seed(seed)
    groups = torch.randint(size, (size,), generator=random) * 3  # some numbers belong to nobody
    labels = torch.randint(3, (3 * size,), generator=random)[groups]  # one class per group
    folds = assign_folds(labels, groups, count, seed)
    of_group = {int(group): int(fold) for group, fold in zip(groups, folds, strict=True)}
    assert [of_group[int(group)] for group in groups] == folds.tolist()
    for c in range(3):
        sizes = [0] * count
        for group in {int(group) for group in groups[labels == c]}:
            sizes[of_group[group]] += 1
        assert max(sizes) - min(sizes) <= 1
        if (labels == c).any():
            examples = folds[labels == c].bincount(minlength=count)
            assert int(examples.max() - examples.min()) <= int(groups[labels == c].bincount().max())


def test_folds_depend_on_the_seed_and_are_random() -> None:
    labels = torch.zeros(400, dtype=torch.long)
    first, other = (assign_folds(labels, None, 4, seed) for seed in (0, 1))
    assert 0.15 < float((first == other).float().mean()) < 0.35
    assert 0.15 < float((first[1:] == first[:-1]).float().mean()) < 0.35
    alone = torch.arange(400)
    assert torch.equal(assign_folds(labels, alone, 4, 0), first)  # groups of one are none


@given(st.lists(st.integers(0, 6), min_size=1, max_size=40), st.integers(1, 7))
def test_members_take_rows_of_other_folds_as_a_loop_does(folds: list[int], count: int) -> None:
    folds = [fold % count for fold in folds] if count > 1 else [-1] * len(folds)
    rows, present = members_rows(torch.tensor(folds), count)
    out = 2 if count >= 5 else 1
    size = max(2, round(len(folds) * (count - out) / count)) if count > 1 else len(folds)
    assert rows.shape == (count, size)
    for member, (taken, has_any) in enumerate(zip(rows.tolist(), present.tolist(), strict=True)):
        without = {(member + step) % count for step in range(out)}
        assert set(folds_without(member, count)) == without
        others = [i for i, fold in enumerate(folds) if fold not in without]
        assert has_any == bool(others)
        if others:
            assert taken == [others[i % len(others)] for i in range(size)]
