"""What only people can say about a training run's content, for the summary that the EU AI Act asks for.

A YAML file, every field optional; what is left out stays ``to be provided``.
"""

from typing import Literal

from pydantic import Field

from millstream.mixture.rules import Section

FORMAT: Literal["millstream-disclosures/1"] = "millstream-disclosures/1"
TO_BE_PROVIDED = "to be provided"

Category = Literal["public", "licensed", "private", "crawled", "user", "synthetic", "other"]


class Provider(Section):
    """Who places the model on the market (section 1.1 of the template)."""

    name_and_contact: str = TO_BE_PROVIDED
    authorised_representative: str = TO_BE_PROVIDED


class ModelFacts(Section):
    """The model (1.2)."""

    name: str | None = None
    """By default the recipe's title or name."""
    dependencies: str = TO_BE_PROVIDED
    """Models that it was made from."""
    placed_on_the_market: str = TO_BE_PROVIDED


class Content(Section):
    """The training content as a whole (1.3)."""

    types_of_text: str = TO_BE_PROVIDED
    latest_acquisition: str = TO_BE_PROVIDED
    continues_after: str = TO_BE_PROVIDED
    """Whether the model goes on being trained on new data."""
    other_characteristics: str = TO_BE_PROVIDED


class Crawling(Section):
    """Crawlers of the provider or on its behalf (2.3)."""

    crawlers: str = TO_BE_PROVIDED
    purposes: str = TO_BE_PROVIDED
    behaviour: str = TO_BE_PROVIDED
    """robots.txt, captchas, paywalls."""
    period: str = TO_BE_PROVIDED


class Processing(Section):
    """Data processing (3)."""

    reservations_of_rights: str = TO_BE_PROVIDED
    """Measures before and during the collection to respect opt-outs from text and data mining (3.1)."""
    code_of_practice: str = TO_BE_PROVIDED
    """Whether the provider signed it."""
    illegal_content: str = TO_BE_PROVIDED
    """Measures to avoid or remove it (3.2)."""
    other: str = TO_BE_PROVIDED


class SourceFacts(Section):
    """One source of the recipe."""

    category: Category | None = None
    title: str | None = None
    link: str | None = None
    description: str | None = None
    language: str | None = None
    """Of documents that say none themselves and that no pattern of ``languages`` names."""
    generated_by: str | None = None
    """Models that wrote it."""


class Disclosures(Section):
    """The whole file."""

    format: Literal["millstream-disclosures/1"]
    provider: Provider = Provider()
    model: ModelFacts = ModelFacts()
    content: Content = Content()
    crawling: Crawling = Crawling()
    user_data: str = TO_BE_PROVIDED
    processing: Processing = Processing()
    sources: dict[str, SourceFacts] = Field(default_factory=dict)
    """By the source's name."""
    languages: dict[str, str] = Field(default_factory=dict)
    """Languages by a pattern of document ids, ``*`` and ``?``; the first that matches."""
    language_field: str = Field("language", pattern=r"^[^']+$")
    """Field of a document's metadata with its language."""
    small_enterprise: bool = False
    """Lists of internet domains may be shorter then."""
