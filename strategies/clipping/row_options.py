"""Settings that say which rows of embeddings train."""

from typing import Literal

from pydantic import Field

from strategies.clipping.clipped_rounds import ClippedOptions
from strategies.core.about import Fact

Which = Literal["all", "found", "each_round", "projected"]
CHOICES: tuple[Which, ...] = ("all", "found", "each_round", "projected")

ROW_FACTS = {"rows_trained": Fact("noised", "rows of embeddings that train, chosen by noisy counts")}
"""The facts of rounds that choose rows, by name."""

ROW_MEANINGS = {
    "table_rows": "rows of the module's embeddings",
    "least_noise": "value of embedding_rows with the least noise; any but all trains rare rows less, or not at all",
    "row_threshold": "noisy count, in users who touch one row each, above which a row trains",
    "noise_of_all": "expected l2 norm of a round's noise where all rows train",
    "noise_of_found": "the same, at most, where the rows that are found train",
    "noise_of_each_round": "the same, at most, where each round chooses its rows",
    "noise_of_projected": "the same, at most, after the projection",
}
"""The meanings of the plan's numbers of rows, by name."""


class RowOptions(ClippedOptions):
    """Settings of strategies that choose which rows of embeddings train."""

    embedding_rows: Which = "all"
    """Rows of a torch module's nn.Embedding and nn.EmbeddingBag that train and get noise: all; found: those whose noisy
    count of users in the first rounds, which move no model, passes a threshold; each_round: those that pass it in the
    round; projected: all, after the noisy mean has moved to the nearest one that users of max_rows rows can have. A
    user counts in the rows where its gradient is not zero, 1 / sqrt(their number) in each."""
    finding_rounds: int = Field(1, ge=1, description="Rounds that count, of all rounds, for embedding_rows = 'found'.")
    count_share: float = Field(0.1, gt=0, lt=1)
    """Share of a round's budget that counts take, for embedding_rows = 'each_round'."""
    false_rows: float = Field(0.01, gt=0, lt=0.5, description="Share of untouched rows that pass the threshold.")
    max_rows: int | None = Field(None, ge=1)
    """Most rows that a user touches, for 'projected' and the plan's comparison of noise; no privacy depends on it."""
