"""Near-duplicate rows and texts are found, others are not; groups are not chained."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unflip.data.arrays import Array
from unflip.data.columns import Table
from unflip.data.dataset import Dataset, Split
from unflip.data.options import DataOptions
from unflip.encoders.table import encode_raw
from unflip.issues.duplicates import DuplicateIndex, find_duplicates
from unflip.issues.similarity import MIN_TEXT, plain_text, text_similarity


def found_in(rows: Array) -> set[tuple[int, int]]:
    duplicates = find_duplicates(Dataset(Split(rows, None)), {"train": rows})
    first = np.unique(duplicates.keys, return_index=True)[1]
    return {tuple(sorted(pair)) for pair in first[duplicates.pairs].tolist()}


@pytest.mark.parametrize("scale", [1.0, 1e-4, 1e5])
def test_rows_that_differ_by_rounding_are_found(scale: float) -> None:
    rows = np.random.default_rng(0).normal(size=(400, 6)) * np.array([1, 10, 0.1, 3, 5, 1]) * scale
    rows[50:60] = rows[:10] + 0.001 * scale * np.random.default_rng(1).choice([-0.1, 0.1], (10, 6))
    assert found_in(rows) == {(i, 50 + i) for i in range(10)}


def test_rows_that_are_close_by_chance_are_not() -> None:
    assert found_in(np.random.default_rng(0).normal(size=(3000, 2))) == set()
    assert found_in(np.random.default_rng(0).normal(size=(3000, 3))) == set()


def encoded(texts: list[str], more: dict[str, list[float]] | None = None) -> tuple[Dataset, Table]:
    cells = Table(pa.table({"text": texts, **(more or {})}))
    labels = np.arange(len(texts)) % 2
    options = DataOptions(path="t", text_column=("text",), text_encoder="tfidf")
    return encode_raw(Dataset(Split(cells, labels)), options), cells


TEXTS = [
    "Where is my new card? I ordered it last week", "where is my new card i ordered it last weak",
    "Please send 500 pounds to my brother", "please send 600 pounds to my brother",
    "PLEASE SEND 500 POUNDS TO MY BROTHER!",
    *(f"a {color} {thing} stands in the {place}" for color in ("red", "green", "blue", "white", "black")
      for thing in ("table", "lamp", "piano") for place in ("kitchen", "garden", "hall")),
]  # fmt: skip


def test_texts_match_despite_case_punctuation_and_typos_but_not_with_other_numbers() -> None:
    data, cells = encoded(TEXTS)
    duplicates = find_duplicates(data, {"train": cells})
    numbers, scores = duplicates.group(len(TEXTS))
    assert numbers[0] == numbers[1]
    assert numbers[2] == numbers[4]
    assert len({numbers[0], numbers[2], numbers[3]}) == 3
    assert scores[4] > scores[0] > 0.9
    assert scores[3] == 0


def test_other_columns_of_a_table_must_agree_too() -> None:
    data, cells = encoded(TEXTS, {"amount": [float(i % 7) for i in range(len(TEXTS))]})
    assert len(find_duplicates(data, {"train": cells}).pairs) == 0


def edits(one: str, other: str) -> int:
    """Optimal string alignment by the table of all prefixes."""
    table = [[max(i, j) if not i or not j else 0 for j in range(len(other) + 1)] for i in range(len(one) + 1)]
    for i in range(1, len(one) + 1):
        for j in range(1, len(other) + 1):
            table[i][j] = min(
                table[i - 1][j] + 1, table[i][j - 1] + 1, table[i - 1][j - 1] + (one[i - 1] != other[j - 1])
            )
            if i > 1 and j > 1 and one[i - 1] == other[j - 2] and one[i - 2] == other[j - 1]:
                table[i][j] = min(table[i][j], table[i - 2][j - 2] + 1)
    return table[-1][-1]


@given(st.text("abc", max_size=8), st.text("abc", max_size=8))
def test_text_similarity_counts_edits(one: str, other: str) -> None:
    expected = 1 - edits(one, other) / max(1, len(one), len(other))
    if min(len(one), len(other)) < 0.9 * max(len(one), len(other)):
        assert expected < MIN_TEXT
        expected = 0
    got = text_similarity(np.array([one, other], object), np.array([[0, 1]]))
    assert float(got[0]) == pytest.approx(expected, abs=1e-6)


def test_plain_texts_keep_letters_digits_and_what_stands_for_itself() -> None:
    assert plain_text("\uff28ello,  WORLD_1! \N{SNOWMAN} नमस्ते") == "helloworld1\N{SNOWMAN}नमस्ते"


@settings(deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 25))
def test_members_of_a_group_are_equal_to_or_paired_with_one_of_them(seed: int, count: int) -> None:
    random = np.random.default_rng(seed)
    keys = np.unique(random.integers(0, count, count), return_inverse=True)[1]
    count_of_keys = int(keys.max()) + 1
    pairs = np.unique(np.sort(random.integers(0, count_of_keys, (count // 2, 2)), axis=1), axis=0)
    pairs = pairs[pairs[:, 0] < pairs[:, 1]]
    duplicates = DuplicateIndex({"train": count}, keys, pairs, random.uniform(0.9, 0.99, len(pairs)))
    numbers, scores = duplicates.group(count)
    paired = {tuple(pair) for pair in pairs.tolist()}
    for number in set(numbers.tolist()):
        members = np.flatnonzero(numbers == number)
        assert any(
            all(keys[m] == keys[lead] or tuple(sorted((keys[m], keys[lead]))) in paired for m in members)
            for lead in members
        )
        assert bool((scores[members] > 0).all()) == (len(members) > 1)
    for i in range(count):
        for j in range(count):
            assert keys[i] != keys[j] or numbers[i] == numbers[j]


@given(st.integers(0, 10_000))
def test_partners_are_the_most_similar_ones(seed: int) -> None:
    random = np.random.default_rng(seed)
    keys = random.permutation(np.concatenate([np.arange(12), random.integers(0, 12, 8)]))
    pairs = np.array([(i, j) for i in range(12) for j in range(i + 1, 12) if random.random() < 0.15]).reshape(-1, 2)
    scores = random.permutation(len(pairs)) / 1000 + 0.5
    duplicates = DuplicateIndex({"train": 12, "test": 8}, keys, pairs, scores)
    rows, others, similarity = duplicates.partners(duplicates.rows_of("train"), duplicates.rows_of("test"))
    by_pair = {tuple(pair): score for pair, score in zip(pairs.tolist(), scores.tolist(), strict=True)}
    expected: dict[int, tuple[float, int]] = {}
    for i in range(12):
        for j in range(12, 20):
            score = 1.0 if keys[i] == keys[j] else by_pair.get(tuple(sorted((keys[i], keys[j]))), 0.0)
            if score > expected.get(i, (0.0, 0))[0]:
                expected[i] = (score, j)
    assert {int(i): (float(s), int(j)) for i, j, s in zip(rows, others, similarity, strict=True)} == expected


def test_a_few_huge_values_do_not_hide_rows_that_are_nearly_the_same() -> None:
    random = np.random.default_rng(0)
    rows = random.normal(size=(1000, 6))
    rows[500:600] = rows[:100] + 1e-4 * random.choice([-1, 1], (100, 6))
    rows[600:610, 2] = 1e6 * (1 + random.random(10))
    rows[610, 3] = 1e9
    assert found_in(rows) == {(i, 500 + i) for i in range(100)}


def test_signs_that_count_are_no_punctuation() -> None:
    texts = ["he owes me -5", "he owes me +5", "5% of what I have", "$5 of what I have", "C++", "C#", "C", "???", "!"]
    assert len({plain_text(text) for text in texts}) == len(texts)
    pairs = np.array([(i, i + 1) for i in range(0, 8, 2)])
    assert text_similarity(np.array([plain_text(text) for text in texts], object), pairs).tolist() == [0.0] * 4
    assert plain_text("An e-mail, 2024-01-02 ...") == plain_text("an email 2024/01/02")


def test_removed_examples_have_no_duplicates() -> None:
    duplicates = DuplicateIndex(
        {"train": 5, "test": 3}, np.array([0, 0, 1, 2, 3, 0, 1, 9]), np.array([[1, 2]]), np.array([0.95])
    )
    assert duplicates.group(5)[0].tolist() == [0, 0, 1, 1, 3]
    assert duplicates.partners(duplicates.rows_of("test"), duplicates.rows_of("train"))[0].tolist() == [5, 6]
    left = duplicates.without(np.array([True, True, False, True, False]))
    assert sorted(np.unique(left.group(5)[0], return_counts=True)[1].tolist()) == [1] * 5
    assert left.partners(left.rows_of("test"), left.rows_of("train"))[0].tolist() == [6]


def test_rows_that_repeat_by_nature_are_neither_duplicates_nor_leakage() -> None:
    rows = np.random.default_rng(0).integers(0, 3, (300, 3)).astype(np.float32)
    data = Dataset(Split(rows, np.arange(300) % 2), tests={"test": Split(rows[:50], np.arange(50) % 2)})
    duplicates = find_duplicates(data, {"train": rows, "test": rows[:50]})
    assert len(np.unique(duplicates.group(300)[0])) == 300
    assert len(duplicates.partners(duplicates.rows_of("train"), duplicates.rows_of("test"))[0]) == 0
