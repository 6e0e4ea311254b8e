"""Files of old runs, which leave after a declared time.

*Formal guarantees.* *Claim.* Nothing that an account, its comparison with the results (`simulations.account.checking`)
or `userdp serve enter` needs is ever removed, nor anything of a run that is not done. *Why.* `NEEDED` stays in each
folder, and of what is done nothing is asked or resumed.
"""

import logging
import shutil
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from simulations.account.accounts import AccountsUnavailable
from simulations.records.checkpoints import in_use
from simulations.records.run_directory import TOKEN
from simulations.serving.keeper import OWNER, RELEASED, Keeper

log = logging.getLogger("userdp.serve")
NEEDED = {TOKEN, OWNER, "config.toml", "guarantee.json", "result.json"}
"""Files that stay: the entry of a run, whose it is, what it promised, and how it ended."""


@dataclass(frozen=True)
class Tidying(Keeper):
    """A keeper that removes the files of runs which are neither among the newest nor young enough.

    Without either number nothing is removed.
    """

    keep_runs: int | None = None
    keep_days: float | None = None

    def step(self) -> bool:
        """See `Keeper`."""
        moved = super().step()
        if (self.keep_runs, self.keep_days) != (None, None):
            try:
                self._clear()
            except (AccountsUnavailable, OSError) as error:
                log.warning("files of old runs are not removed yet: %s", error)
        return moved

    def _clear(self) -> None:
        done = [run for run in self.queue.runs() if run.state == "done" and run.folder is not None]
        for run in done[: -self.keep_runs] if self.keep_runs else done:
            folder = self.results / str(run.folder)
            if folder.parent != self.results or not (folder / "result.json").is_file() or in_use(folder):
                continue
            ended = datetime.fromtimestamp((folder / "result.json").stat().st_mtime, UTC)
            if self.keep_days is not None and self.now() - ended < timedelta(days=self.keep_days):
                continue  # before its files are listed: this is looked at in every step
            kept = {path.relative_to(folder).parts[0] for path in folder.rglob(TOKEN)}  # also runs in folders in it
            old = [path for path in folder.iterdir() if path.name not in NEEDED | kept]
            if not old:
                continue
            shutil.rmtree(self.results / RELEASED / folder.name, ignore_errors=True)
            for path in old:
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            log.info("run %d, %s: its files are removed, but for what its entry needs", run.number, run.name)
