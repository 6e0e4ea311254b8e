"""One line of explanation for every number that a plan or a metric table shows."""

NUMBERS = {
    "rounds": "exchanges with the nodes",
    "cohort": "users a round",
    "users": "n, the public number of training users",
    "users_needed": "fewest users with which this plan would be accepted",
    "noise": "expected l2 norm of the noise in a release",
    "signal": "largest l2 norm of what the noise is added to",
    "pass_probability": "chance that honest users pass every test, if the declared deviation is true",
    "batch": "users a step, fresh ones each time",
    "phases": "releases; each phase starts at the model released before",
    "steps": "steps of each phase",
    "learning_rate": "step size (of each phase)",
    "radius": "users' gradients count as agreeing within this radius (sup norm; l2 for outlier_removal)",
    "user_deviation": "assumed standard deviation of a coordinate of a user's gradient",
    "threshold": "concentration score that a batch must reach (at most the batch size)",
    "score_sensitivity": "most that one user can change the score",
    "test_epsilon": "share of epsilon spent on the test",
    "test_delta": "share of delta spent on the test",
    "noise_multiplier": "noise over sensitivity",
    "l2_sensitivity": "most that one user can move what is released (l2 norm)",
    "l1_sensitivity": "most that one user can move what is released (l1 norm)",
    "sup_sensitivity_of_a_step": "most that one user can move a robust gradient (sup norm)",
    "noise_deviation": "standard deviation of the noise per coordinate",
    "predicted_risk_bound": "bound on the excess risk that the plan minimised",
    "smoothness": "certified bound on the Hessian's row sums",
    "gradient_bound": "certified bound on a gradient's coordinates",
    "clip_norm": "l2 norm that gradients are clipped to",
    "l1_clip_norm": "l1 norm that gradients are clipped to as well",
    "sparsity": "most non-zeros of a sample's gradient",
    "noise_before": "expected l2 norm of the noise before the projection",
    "participations": "rounds that a user takes part in",
    "sampling": "how cohorts are drawn",
    "replace_one_epsilon": "what the promise means for replacing a user, to compare with other strategies",
    "replace_one_delta": "the delta that goes with it",
    "local_steps": "gradient steps of each user on its own data",
    "local_rate": "step size of each user",
    "clip_low": "smallest clip",
    "clip_high": "largest clip",
    "quantile": "share of users that the clip should leave unclipped",
    "count_noise": "standard deviation of the noise on the number of unclipped users",
    "sum_multiplier": "noise over sensitivity of the sum of what users send",
    "separation": "rounds between two participations of a user",
    "factorisation": "how noise is correlated over rounds",
    "radius_factor": "clip over the typical distance of users from the centre",
    "first_share": "share of the budget for the first epoch",
    "last_share": "share of the budget for the last epoch",
    "widths": "half-width of the clip of a gradient coordinate, by phase",
    "noise_per_user": "standard deviation of the noise that each user adds to each coordinate",
    "rotated_dimension": "coordinates after the rotation, a power of two",
    "interval": "half-width of the interval that each rotated coordinate is clamped to",
    "cells": "cells of the public grid in which intervals are sought",
    "selection_epsilon": "epsilon of choosing one coordinate's interval",
    "epochs": "passes over the users",
    "tolerance": "stop when a step moves no coordinate by more",
    "group": "samples of one user that the noise must cover",
    "groups": "random groups that samples are split into, anew each round",
    "group_samples": "samples of a group on average, the public divisor of its sum",
    "group_rho": "zero-concentrated budget of one group's mean in one round, for one sample",
    "accounting": "how the groups are accounted",
    "samples": "N, the public number of samples",
    "sample_level_epsilon": "epsilon for one single sample",
    "user_level_epsilon": "epsilon for a whole user, under the same relation",
    "accounted_epsilon": "what noise by the paper's formula really costs, by an accountant",
    "sample_batch": "samples a round, expected; the public divisor",
    "runs": "runs, each from the model of the one before",
    "scale": "gradient coordinates well below it count in full",
    "l1_radius": "models lie in the l1 ball of this radius",
    "fold": "users (samples, at sample level) of a round, the public divisor",
    "choice_epsilon": "epsilon of choosing one vertex",
    "vertex_error": "bound on how far a chosen vertex is from the best, in inner product with the gradient",
    "truncation": "features and targets are held to plus or minus this",
    "model_sparsity": "most entries of the model that are not zero",
    "level": "features and targets are cut at it",
    "coordinate_bound": "largest coordinate of a gradient of truncated data, to which it is held",
    "noise_scale": "scale of the noise of selecting entries and of releasing them",
    "selection_noise": "about the largest noise among the entries that are selected from",
    "inverse_variance": "of the noise that the truncation is smoothed by",
    "regularisation": "weight of the squared distance from the start, half of which is added to the loss",
    "solver_distance": "how far the last step can be from the exact minimiser (l2 norm)",
    "gradient_norm": "certified bound on a gradient (l2 norm)",
    "records": "n, users or samples, whichever are protected; the public divisor",
    "typical_rounds": "three runs in four have more rounds than this",
    "mean_cohort": "users a round, on average",
    "oracle_epsilon": "epsilon of one noisy mean, before amplification by sampling",
    "estimate_norm": "bound on the root mean square l2 norm of a round's gradient estimate",
}
"""Number of a plan -> what it means."""

METRICS = {
    "excess_risk": "expected loss above the best possible model, exact",
    "excess_loss": "loss on held-out users above that of the known optimum on the same samples",
    "test_loss": "loss on held-out users",
    "distance": "l2 distance of the model to the known optimum",
    "accuracy": "share predicted correctly",
    "log_loss": "loss of predicted probabilities",
    "squared_error": "mean squared error of predictions",
    "absolute_error": "mean absolute error of predictions",
    "deviance": "Poisson deviance",
}
"""Metric -> what it means."""


def shown(value: object) -> str:
    """A number for people: four digits, no more."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def percent(share: float) -> str:
    """A share for people: more digits near the whole, where they tell strategies apart."""
    whole = 100.0 * share
    digits = 0 if abs(whole) < 99 or whole > 101 or whole < 0 else 2
    return f"{whole:,.{digits}f} %"
