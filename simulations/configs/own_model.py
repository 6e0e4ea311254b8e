"""The module of own-model.toml: a predictor of the next song from the earlier ones."""

from torch import Tensor, nn

SONGS = 20


class NextSong(nn.Module):
    """Maps (N, L) codes to (N, L, songs + 1) scores: at each step of the next song."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(SONGS + 2, 16)  # every song, "another song", and 0 for nothing
        self.memory = nn.GRU(16, 32, batch_first=True)
        self.scores = nn.Linear(32, SONGS + 1)  # every song, and "another song"

    def forward(self, codes: Tensor) -> Tensor:
        """Return scores of every step, from the earlier steps."""
        return self.scores(self.memory(self.embedding(codes))[0])  # type: ignore[no-any-return]


def make() -> nn.Module:
    """Make the module; the configuration names this function, which takes no arguments."""
    return NextSong()
