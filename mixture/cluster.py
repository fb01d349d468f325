"""The recipe's section ``cluster``: the machines that a run is planned for, and what is claimed of it."""

from typing import Self

from pydantic import Field, model_validator

from millstream.mixture.rules import Section
from millstream.mixture.units import Size


class Cluster(Section):
    """Machines that a run is planned for; they decide no result, so no identity depends on them."""

    ranks: int = Field(ge=1)
    """Processes, one an accelerator."""
    ranks_per_host: int = Field(1, ge=1)
    ranks_per_domain: int | None = Field(None, ge=1)
    """Consecutive ranks that the fast link joins, such as those of a rack; those of a host by default. All-to-alls
    should stay inside."""
    memory: Size = Field(ge=1)
    """Bytes that a rank's accelerator has."""
    reserve: Size = Field(0, ge=0)
    """Of those, left to the driver, to communication libraries and to the allocator's gaps."""
    peak_memory: Size | None = Field(None, ge=1)
    """Most bytes that a rank is claimed to allocate; ``plan`` and ``train --gate`` hold the claim."""
    flops: float | None = Field(None, gt=0)
    """Peak of a rank's accelerator for dense products in the recipe's precision, a second."""
    mfu: float | None = Field(None, gt=0, le=1)
    """Share of that peak that training is expected to reach; ``train --gate`` holds it."""
    link: Size | None = Field(None, ge=1)
    """Bytes a second that a rank sends inside its domain, one way."""
    network: Size | None = Field(None, ge=1)
    """Bytes a second that a rank sends to other domains, one way."""
    storage: Size | None = Field(None, ge=1)
    """Bytes a second that all ranks together write to where runs lie."""

    @property
    def domain(self) -> int:
        """Ranks that the fast link joins."""
        return self.ranks_per_domain or self.ranks_per_host

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.ranks % self.ranks_per_host:
            raise ValueError(f"ranks ({self.ranks}) is not a multiple of ranks_per_host ({self.ranks_per_host})")
        if self.domain % self.ranks_per_host:
            raise ValueError(
                f"ranks_per_domain ({self.domain}) is not a multiple of ranks_per_host ({self.ranks_per_host})"
            )
        if self.reserve >= self.memory:
            raise ValueError("reserve leaves nothing of memory")
        if self.mfu is not None and self.flops is None:
            raise ValueError("'mfu' is a share of 'flops', which is not given")
        return self
