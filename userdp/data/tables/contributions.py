"""Selection of users and of their samples: contribution bounding, and splits by user."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from userdp.data.federation import Federation
from userdp.errors import BadInput, PopulationTooSmall
from userdp.randomness import stream, text_words


def bounded_rows(
    owner: NDArray[np.int64], max_samples: int | None, seed: int, names: Iterable[str] | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Choose at most ``max_samples`` rows of each owner, uniformly without replacement (stream "split").

    Every row gets a pseudo-random key from (seed, owner, number of earlier rows of this owner), and an owner keeps the
    rows with its smallest keys. *Formal guarantee*: the choice for one user depends on the seed, the user's number and
    the user's number of rows alone, so replacing one user's rows changes nothing for any other user, for every seed:
    keys are hashed element by element, and of two equal ones the earlier row wins. With ``names``, the (U,) labels of
    the users, an owner's name takes the place of its number, which follows from who else there is: so adding or
    removing a user changes nothing for others, either.

    The users ``owner`` (N,) are 0..U-1, each with a row, or -1 for rows that are left out. Returns row numbers, sorted
    by owner then row, and (U + 1,) offsets.
    """
    rows = np.argsort(owner, kind="stable")[np.count_nonzero(owner < 0) :]
    owners = owner[rows]
    sizes = np.bincount(owners)
    rank = np.arange(len(rows)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    if max_samples is not None:
        from pandas.util import hash_array  # noqa: PLC0415 -- slow to import

        word = stream(seed, "split", 1).integers(2**64, dtype=np.uint64)
        numbers = np.arange(len(sizes), dtype=np.uint64) if names is None else text_words("user", names)
        own_words = hash_array(numbers + word)
        keys = hash_array(own_words[owners] + rank.astype(np.uint64))
        # lexsort keeps owners together, so ``rank`` is now the rank of a row's key within its owner.
        rows = rows[np.sort(np.lexsort((keys, owners))[rank < max_samples])]
        sizes = np.minimum(sizes, max_samples)
    return rows, np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def public_order(
    labels: NDArray[np.object_], sizes: NDArray[np.int64], min_samples: int, users: int | None, seed: int
) -> NDArray[np.int64]:
    """Return the users who take part, in a seeded permutation of the sorted labels, without small users.

    The rule reads only which users exist and which hold at least ``min_samples``; the guarantee assumes that both are
    public. With one user's rows replaced the set of labels is the same, and so is the result.

    The (L,) distinct labels are sorted as text, with (L,) sizes. Of the eligible users the first ``users`` (the public
    size of the population; None: all) are kept; fewer raise `PopulationTooSmall`. Returns (n,) positions: user i of
    the federation is ``labels[result[i]]``.
    """
    order = stream(seed, "split", 0).permutation(len(labels))
    eligible = order[sizes[order] >= min_samples]
    wanted = 1 if users is None else users
    if len(eligible) < wanted:
        raise PopulationTooSmall(
            f"{len(eligible)} users hold at least min_samples = {min_samples} samples, but users = {wanted} are "
            "needed; lower users or min_samples"
        )
    return eligible[:users]


def held_out_users(test_fraction: float, users: int) -> int:
    """Return the number of held-out users: the share rounded, at least one; nobody if the share is zero."""
    return max(1, round(test_fraction * users)) if test_fraction else 0


def split(
    federation: Federation, *, test_fraction: float | None = None, test_users: int | None = None, seed: int = 0
) -> tuple[Federation, Federation]:
    """Split a federation into (train, test), each in the federation's order; a user is wholly in one of them.

    The split depends on the users' numbers, the public number of users and the seed, not on anybody's samples. Raises
    `BadInput` unless exactly one of the two is given, and for a share that leaves one side empty.

    Args:
        federation: all users.
        test_fraction: share of users for the test, in (0, 1), rounded to at least one user; or
        test_users: their number.
        seed: of the permutation that chooses them.
    """
    if (test_fraction is None) == (test_users is None):
        raise BadInput("give exactly one of test_fraction and test_users")
    count = test_users
    if test_fraction is not None:
        if not 0 < test_fraction < 1:
            raise BadInput(f"test_fraction must lie in (0, 1), got {test_fraction}")
        count = held_out_users(test_fraction, federation.users)
    if count is None or not 0 < count < federation.users:
        raise BadInput(f"the test part would hold {count} of {federation.users} users; both parts need at least one")
    training, held_out = slots(federation.users, count, seed)
    return federation.select(training), federation.select(held_out)


def slots(users: int, held_out: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rising positions, among all users, of those who train and of those who are held out; public both."""
    order = stream(seed, "split", 2).permutation(users)
    return np.sort(order[held_out:]), np.sort(order[:held_out])
