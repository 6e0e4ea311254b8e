"""Every line that userdp writes to a log, on whose machine, and what stands in it.

A test finds the calls in the source and looks each up here, with its level and the values that it shows.
"""

from simulations.records.log_kinds import LogLine, lines

_KIND_OF_ERROR = {"type(error).__name__": "kind of the error, never its text"}
_NODE = {"node": "number of the node"}
_OF_COHORT = {"plan.cohort": "of the plan", "plan.users": "n, public"}
_OF_PLAN = {"plan.rounds": "of the plan", **_OF_COHORT}
_OF_ITSELF = {"self.strategy": "its name", "self.rounds": "of it", "self.cohort": "of it", "self.users": "n, public"}
_USERS = {"users": "n, public"}
_NODES = {"connected": "nodes that are there", **_USERS}
_OF_NOISE = {"_short(plan.noise)": "of the plan", "_short(plan.signal)": "of the plan"}
_OF_ROUND = {"server_round": "number of the round", "plan.rounds": "of the plan"}
_REPLIES = {
    "record.missing_users": "users of the cohort whose node did not answer",
    "_short(record.seconds)": "wall time",
}
_SPENT = {"spent": "what the ledger says", "whole": "of the plan"}
_METRICS = {"record.metrics": "of the released model, on data that the server's evaluate_fn has"}
_PROMISED = "the guarantee in one sentence"

LOG_LINES: tuple[LogLine, ...] = (
    *lines(
        "userdp.nodes.node",
        (
            "warning",
            "the loss fails on users' data (%s): each such user counts as zero",
            "node",
            "private",
            {"told": "kind of the error; its text as well where users have no labels, as in a simulation"},
        ),
    ),
    *lines(
        "userdp.data.tables.tabular",
        (
            "warning",
            "%s",
            "holder",
            "private",
            {"sentence": "which column has no usable cell, declared level or positive value in any cell"},
        ),
    ),
    *lines(
        "userdp.data.tables.sources",
        (
            "warning",
            "%s",
            "holder",
            "private",
            {"sentence": "which column has no declared level or positive value in any cell"},
        ),
    ),
    *lines(
        "userdp.data.tables.streamed",
        (
            "info",
            "the samples of %s go to a temporary file, for they are larger than data.memory",
            "holder",
            "private",
            {"path.name": "of the table's file"},
        ),
        (
            "info",
            "%d of the table's %d rows are read",
            "holder",
            "private",
            {"start": "rows so far", "count": "rows of the file"},
        ),
    ),
    *lines(
        "userdp.neural.tuner",
        (
            "info",
            "the module is computed %s",
            "node",
            "environment",
            {"self.choice": "in which way, found on made-up users"},
        ),
    ),
    *lines(
        "strategies.samples.batch_rounds",
        (
            "warning",
            "a batch of %d samples was asked for where there are %d: every sample is in it",
            "server",
            "public",
            {"batch": "of the configuration", "samples": "the declared number of samples"},
        ),
    ),
    *lines(
        "strategies.non_private",
        (
            "warning",
            "training without privacy did not converge in %d rounds, so it is no measure of what privacy costs: "
            "raise strategy.rounds of non_private",
            "server",
            "private",
            {"self.rounds": "of the configuration"},
        ),
    ),
    *lines(
        "strategies.drop_in",
        (
            "warning",
            "some of the %d users have no node: they count as missing in every round",
            "server",
            "environment",
            _USERS,
        ),
        (
            "warning",
            "there are more nodes than the plan has users, %d: the others are not used",
            "server",
            "environment",
            _USERS,
        ),
    ),
    *lines(
        "strategies.drop_in_report",
        (
            "info",
            "Starting %s strategy: %d rounds of %d of %d users",
            "server",
            "public",
            {"name": "of the class"} | _OF_PLAN,
        ),
        ("info", "\t├── Noise: expected l2 norm %s, on updates of at most %s", "server", "public", _OF_NOISE),
        ("info", "\t└── Guarantee: %s", "server", "public", {"plan.guarantee.sentence()": _PROMISED}),
        ("info", "Waiting for nodes to connect: %d connected (required: %d)", "server", "environment", _NODES),
        ("info", "[ROUND %d/%d]", "server", "public", _OF_ROUND),
        ("info", "configure_train: Planned cohort of %d users (out of %d)", "server", "public", _OF_COHORT),
        ("info", "aggregate_train: %d failures, %s s", "server", "environment", _REPLIES),
        ("info", "\t└──> Privacy: epsilon %s of %s is spent", "server", "public", _SPENT),
        ("info", "\t└──> Global evaluation: %s", "server", "private", _METRICS),
        ("info", "Strategy execution finished in %s s", "server", "environment", {"_short(seconds)": "wall time"}),
        ("info", "Guarantee: %s", "server", "public", {"result.guarantee.sentence()": _PROMISED}),
    ),
    *lines("strategies.wire.client", ("exception", "this node cannot answer", "node", "private")),
    *lines(
        "strategies.wire.roster",
        (
            "warning",
            "some of the %d users have no node: they count as missing in every round",
            "server",
            "environment",
            {"len(self._owner)": "n, public"},
        ),
        (
            "warning",
            "node %d could not say whom it holds: %s",
            "server",
            "environment",
            _NODE | {"failure(reply)": "kind of the node's error, never its text"},
        ),
        (
            "warning",
            "node %d could not say whom it holds: %s",
            "server",
            "environment",
            _NODE | {"error": "what in its message does not follow the protocol"},
        ),
        ("warning", "node %d counts as absent: its key is that of another node", "server", "environment", _NODE),
    ),
    *lines(
        "strategies.wire.replies",
        (
            "warning",
            "node %d counts as missing: %s",
            "server",
            "environment",
            _NODE | {"complaint": "kind of the node's error, or what in its message does not follow the protocol"},
        ),
        (
            "warning",
            "a round is lost: not all of its nodes answered, so what hides their sum cannot be taken off",
            "server",
            "environment",
        ),
    ),
    *lines(
        "strategies.core.plan",
        ("info", "%s: %d rounds of %d of %d users", "server", "public", _OF_ITSELF),
        ("info", "%s", "server", "public", {"self.guarantee.sentence()": _PROMISED}),
        ("warning", "%s", "server", "public", {"warning": "of the plan"}),
    ),
    *lines(
        "strategies.core.run_state",
        ("warning", "a step overflows, and is not taken: lower the step size", "server", "private"),
        (
            "warning",
            "round %d had begun when the run was killed; it is charged and skipped, because drawing its noise "
            "again would be a second release",
            "server",
            "environment",
            {"self.lost": "number of the round"},
        ),
    ),
    *lines(
        "simulations.engines.grids",
        (
            "warning",
            "node %d cannot answer: %s",
            "server",
            "environment",
            {
                "message.metadata.dst_node_id": "number of the node",
                "error": "an error of userdp: field and remedy, no data",
            },
        ),
        ("warning", "time is up: the remaining nodes were not asked", "server", "environment"),
    ),
    *lines(
        "simulations.engines.ray_grid",
        (
            "warning",
            "%d actors were asked for and %d CPUs are free: nodes wait until there are more",
            "server",
            "environment",
            {"count": "actors", "free": "CPUs"},
        ),
        (
            "warning",
            "%s: starting another",
            "server",
            "environment",
            {"why": "that an actor died, with the kind of its error, or was late"},
        ),
    ),
    *lines(
        "simulations.server_app",
        ("info", "results are in %s", "server", "public", {"outcome.directory": "of the run"}),
    ),
    *lines(
        "simulations.comparison.jobs",
        (
            "warning",
            "the oracle could not look at the data (%s): it has no settings to try",
            "holder",
            "private",
            _KIND_OF_ERROR,
        ),
    ),
    *lines(
        "simulations.comparison.one_cell",
        (
            "warning",
            "a cell failed: unexpected %s",
            "holder",
            "private",
            {"type(caught).__name__": "kind of the error, never its text"},
        ),
    ),
    *lines(
        "simulations.deployment.gate",
        (
            "warning",
            "refused %s: %s %s is not for silos",
            "server",
            "environment",
            {"peer": "address", "request.method": "of the request", "path": "that was asked for"},
        ),
        ("warning", "the SuperLink does not answer (%s)", "server", "environment", _KIND_OF_ERROR),
        (
            "warning",
            "the SuperLink refused %s: %s gave %d",
            "server",
            "environment",
            {"peer": "address", "path": "that was asked for", "reply.status_code": "of the reply"},
        ),
    ),
    *lines(
        "simulations.deployment.superlink",
        (
            "warning",
            "the key of %s cannot be registered yet: %s",
            "server",
            "environment",
            {"path.stem": "name of the silo", "error": "what Flower's command said"},
        ),
        ("info", "the key of %s is registered", "server", "public", {"path.stem": "name of the silo"}),
    ),
    *lines(
        "simulations.deployment.submit",
        (
            "info",
            "run %s is submitted; its files go to %s",
            "server",
            "public",
            {"number": "of the run", "folder": "of the run"},
        ),
        ("info", "guarantee: %s", "server", "public", {"promised['sentence']": "the guarantee in one sentence"}),
        (
            "info",
            "the run is done: %s are in %s",
            "server",
            "public",
            {"', '.join(_NEEDED)": "names of files", "output": "folder"},
        ),
    ),
    *lines(
        "simulations.runs.silos",
        (
            "warning",
            "%s: a user holds fewer samples than data.min_samples = %d",
            "node",
            "private",
            {"folder / FILE": "file of the silo", "fewest": "of the configuration"},
        ),
    ),
    *lines(
        "simulations.runs.run",
        (
            "warning",
            "the reference without privacy could not be trained: %s",
            "holder",
            "environment",
            {"error": "why a run stops: field and remedy, no counts"},
        ),
    ),
    *lines(
        "simulations.api.prediction",
        (
            "warning",
            "%d of %d rows get no prediction (NaN): they hold a cell that the model cannot use (%s of them); correct "
            "these cells, or train with impute",
            "holder",
            "private",
            {"missing": "rows without", "rows": "rows of the table", "told": "columns, and unusable cells of each"},
        ),
        (
            "warning",
            "not measured: no row of the table has all cells that the model needs",
            "holder",
            "private",
            {},
        ),
        (
            "warning",
            "all targets of the table are one class: accuracy and loss do not say if the model tells any",
            "holder",
            "private",
            {},
        ),
    ),
    *lines(
        "simulations.records.named_code",
        (
            "warning",
            "code that %s names runs here: %s",
            "holder",
            "public",
            {"directory": "of the run", "told": "each place of code, and the SHA-256 that the run recorded"},
        ),
    ),
    *lines(
        "simulations.runs.build",
        (
            "warning",
            "%s. Every sample is set aside, and the model will be noise. %s",
            "holder",
            "private",
            {"sentence": "which column has no usable cell", "_PRIVATE": "that the line is private"},
        ),
        (
            "warning",
            "data.samples = %d is not the number of samples that the training users hold: means are divided by what is "
            "declared, so all gradients are too long or too short by the same factor",
            "holder",
            "private",
            {"facts.samples": "the declared number"},
        ),
    ),
    *lines(
        "simulations.runs.trackers",
        (
            "warning",
            "%s failed (%s): rounds from here on are only in the run directory",
            "server",
            "environment",
            {"self.name": "of the tracker"} | _KIND_OF_ERROR,
        ),
    ),
)
"""All of them."""
