"""Private gradients of a loop of one's own: their claim, on brute-force neighbours, and every way to misuse them."""

import copy
import math
import pickle
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from torch import nn

from userdp import BadInput, Privacy, RunFailed
from userdp.accounting.amplified import poisson_epsilon
from userdp.sampling.registry import SAMPLERS
from userdp.streams import DRAWN_SEED, GIVEN_SEED, SECURE_ASSUMPTIONS
from userdp.torch import PrivateGradients

USERS, COLUMNS, CLASSES, CLIP = 30, 3, 4, 0.25
BUDGET = Privacy(epsilon=8.0, delta=1e-3)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(COLUMNS, 5), nn.Tanh(), nn.Linear(5, CLASSES))


def planned(module=None, loss="cross_entropy", input_shape=(COLUMNS,), **settings):
    given = {"users": USERS, "cohort": 10, "rounds": 3, "clip_norm": CLIP, "privacy": BUDGET, "seed": 5}
    return PrivateGradients(network() if module is None else module, loss, input_shape, **{**given, **settings})


def people(seed=0):
    """Users with one to six samples each."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 7, USERS)
    return [(torch.tensor(rng.normal(size=(m, COLUMNS))), torch.tensor(rng.integers(0, CLASSES, m))) for m in sizes]


def gradient(private):
    return torch.cat([one.grad.double().flatten() for one in private._module.parameters()])


def nobody(user):
    """Samples of which none counts."""
    return torch.full((2, COLUMNS), math.nan), torch.zeros(2)


def released(samples_of, rounds=1, **settings):
    """The last round's gradient, from a plan and noise that are always the same."""
    private = planned(**settings)
    for _ in range(rounds):
        private.backward(samples_of)
    return gradient(private)


def asked(private, samples_of=None):
    """The users whom a round asks for."""
    found = []
    private.backward(lambda user: found.append(user) or (samples_of or nobody)(user))
    return found


def clipped_gradient(inputs, targets, clip=CLIP):
    """The clipped gradient of a user's mean loss, by torch alone."""
    module = network()
    nn.functional.cross_entropy(module(inputs.float()), targets).backward()
    row = torch.cat([one.grad.double().flatten() for one in module.parameters()])
    return row * min(1.0, clip / row.norm().item())


# The mean -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", ["poisson", "disjoint", "cyclic", "fixed_size"])
@pytest.mark.parametrize("clip", [0.05, 0.25, 9.0])
def test_the_mean_is_that_of_the_cohorts_clipped_gradients(sampling, clip):
    held, settings = people(), {"sampling": sampling, "clip_norm": clip}
    cohort = asked(planned(**settings))
    assert cohort == sorted(cohort)
    mean = released(held.__getitem__, **settings) - released(nobody, **settings)
    expected = sum(clipped_gradient(*held[user], clip) for user in cohort) / 10
    torch.testing.assert_close(mean, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("relation", "sampling"), [("add_or_remove", "poisson"), ("replace_one", "poisson")])
def test_no_neighbour_moves_the_mean_by_more_than_its_sensitivity(relation, sampling):
    """The noise of two plans with one seed is the same, so their difference is that of the means."""
    settings = {"relation": relation, "sampling": sampling}
    cohort, held, most = asked(planned(**settings)), people(), 0.0
    sensitivity = planned(**settings)._mechanism.l2_sensitivity
    assert sensitivity == pytest.approx((2 if relation == "replace_one" else 1) * CLIP / 10)
    extremes = [people(seed)[cohort[0]] for seed in range(1, 4)]
    extremes += [(side * 1e4 * torch.ones(9, COLUMNS), torch.full((9,), one)) for side in (-1, 1) for one in range(4)]
    extremes += [nobody(0), (torch.full((2, COLUMNS), math.inf), torch.zeros(2)), (torch.ones(1, COLUMNS), [99])]
    base = {user: held[user] for user in cohort}
    means = [released((base | {cohort[0]: other}).__getitem__, **settings) for other in extremes]
    absent = released((base | {cohort[0]: nobody(0)}).__getitem__, **settings)
    pairs = [(absent, one) for one in means] if relation == "add_or_remove" else [(a, b) for a in means for b in means]
    most = max((one - other).norm().item() for one, other in pairs)
    assert 0.6 * sensitivity < most <= sensitivity * (1 + 1e-5)


def test_a_user_who_is_not_drawn_changes_nothing():
    held, cohort = people(), asked(planned())
    other = next(user for user in range(USERS) if user not in cohort)
    changed = {**dict(enumerate(held)), other: nobody(other)}
    assert torch.equal(released(held.__getitem__), released(changed.__getitem__))


@pytest.mark.parametrize("array", [torch.from_numpy, lambda one: one], ids=["tensor", "array"])
def test_a_loader_that_fills_one_array_for_every_user_gives_each_its_own_samples(array):
    """Else the last user of a cohort would stand in everybody's place, and move the mean by more than one clip."""
    held, inputs, targets = people(), np.zeros((1, COLUMNS), np.float32), np.zeros(1, np.float32)

    def filled(user):
        inputs[:], targets[:] = held[user][0][:1], held[user][1][:1]
        return array(inputs), array(targets)

    fresh = released(lambda user: (held[user][0][:1], held[user][1][:1]))
    torch.testing.assert_close(released(filled), fresh)


def test_a_sample_with_a_nan_counts_for_nobody():
    held = people()
    spoilt = [(torch.cat([x, nobody(0)[0]]), torch.cat([y, torch.zeros(2)])) for x, y in held]
    torch.testing.assert_close(released(spoilt.__getitem__), released(held.__getitem__), rtol=1e-5, atol=1e-7)
    assert torch.isfinite(released(nobody)).all()


def test_a_cohort_of_nobody_releases_noise_and_costs_a_round():
    private = planned(users=3, cohort=1, privacy=Privacy(8.0, 1e-3), rounds=40, seed=1)
    sizes = [len(asked(private)) for _ in range(40)]
    assert 0 in sizes
    assert private.spent_epsilon == pytest.approx(private.guarantee.epsilon)
    assert gradient(private).norm() > 0


def test_codes_pictures_dropout_and_tied_weights_are_computed():
    words = nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), nn.Linear(12, 2))
    planned(words, levels=7).backward(lambda user: (torch.tensor([[1, 2, 6]]), torch.zeros(1)))
    pictures = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Dropout(0.5), nn.Flatten(), nn.Linear(8, 2))
    planned(pictures, input_shape=(1, 4, 4)).backward(lambda user: (torch.ones(2, 1, 4, 4), torch.zeros(2)))
    tied = nn.Sequential(nn.Linear(COLUMNS, COLUMNS), nn.Tanh(), nn.Linear(COLUMNS, COLUMNS))
    tied[2].weight = tied[0].weight
    private = planned(tied)
    for _ in range(2):
        private.backward(lambda user: (torch.ones(2, COLUMNS), torch.zeros(2)))
        torch.optim.SGD(tied.parameters(), 0.1).step()
    assert len(gradient(private)) == COLUMNS * (COLUMNS + 2)


def test_a_module_of_double_precision_keeps_it():
    module = network().double()
    private = planned(module)
    private.backward(people().__getitem__)
    assert all(one.grad.dtype == torch.float64 for one in module.parameters())


# Noise and price ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "noise",
    ["seeded", pytest.param("secure", marks=pytest.mark.skipif(not find_spec("opendp"), reason="needs opendp"))],
)
def test_the_noise_is_that_of_the_promised_epsilon(noise):
    """Chi-square of 3 x 14,000 entries: five deviations are 1.7 %, so a right product fails once in 10^6 seeds."""
    module = nn.Linear(100, 139)
    private = planned(
        module, input_shape=(100,), privacy=Privacy(8.0, 1e-3, noise=noise), seed=None if noise == "secure" else 5
    )
    entries = []
    for _ in range(3):
        private.backward(lambda user: (torch.full((1, 100), math.nan), torch.zeros(1)))
        entries.append(gradient(private))
    noises = torch.stack(entries)
    deviation = noises.square().mean().sqrt().item()
    multiplier = deviation * 10 / CLIP
    assert multiplier == pytest.approx(private._mechanism.noise_multiplier, rel=0.02)
    assert poisson_epsilon(multiplier * 1.02, 10 / USERS, 3, 1e-3, "add_or_remove") <= 8.0
    assert poisson_epsilon(multiplier * 0.96, 10 / USERS, 3, 1e-3, "add_or_remove") > private.guarantee.epsilon
    correlation = torch.corrcoef(noises)
    assert (correlation - torch.eye(3)).abs().max() < 5 / math.sqrt(noises.shape[1])


@pytest.mark.parametrize("sampling", sorted(SAMPLERS.places))
@pytest.mark.parametrize("relation", [None, "replace_one"])
def test_every_sampler_spends_what_it_promises_and_no_more(sampling, relation):
    sized = {"cohort": None, "participations": 1} if sampling == "allocation" else {}
    private = planned(sampling=sampling, relation=relation, **sized)
    spent = [private.spent_epsilon]
    for _ in range(3):
        private.backward(nobody)
        spent.append(private.spent_epsilon)
    assert spent == sorted(spent)
    assert spent[0] == 0
    assert spent[-1] == pytest.approx(private.guarantee.epsilon)
    assert private.guarantee.epsilon <= 8.0
    with pytest.raises(RunFailed, match="all 3 rounds are spent: plan more of them before the first"):
        private.backward(nobody)


def test_a_round_is_charged_before_anything_is_computed_or_released(monkeypatch):
    private = planned()
    monkeypatch.setattr("userdp.torch.Node.compute", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        private.backward(nobody)
    assert private.spent_epsilon > 0
    assert all(one.grad is None for one in private._module.parameters())


def test_the_guarantee_names_unit_relation_and_what_it_rests_on():
    promise = planned().guarantee
    assert (promise.unit, promise.relation, promise.holds) == ("user", "add_or_remove", True)
    words = repr(promise)
    for part in (
        "who takes part in which round stays secret",
        "no person has two numbers",
        "no printed loss",
        GIVEN_SEED,
    ):
        assert part in words
    assert "this process is trusted" in words
    assert DRAWN_SEED in planned(seed=None).guarantee.assumptions


def test_cohorts_and_noise_are_secret_unless_a_seed_is_given():
    several = [(planned(seed=None), asked) for _ in range(4)]
    cohorts = [tuple(ask(private)) for private, ask in several]
    assert len(set(cohorts)) > 1
    assert len({tuple(gradient(private).tolist()) for private, _ in several}) == 4
    assert torch.equal(released(nobody), released(nobody))
    assert not torch.equal(released(nobody), released(nobody, rounds=2))


@pytest.mark.skipif(not find_spec("opendp"), reason="secure noise needs opendp")
def test_secure_noise_takes_no_seed_and_computes_users_one_by_one():
    private = planned(privacy=Privacy(8.0, 1e-3, noise="secure"))
    assert private._asked.separate
    assert private._slack > 0
    assert private._sampler.seed is None
    assert set(SECURE_ASSUMPTIONS["user"]) <= set(private.guarantee.assumptions)
    private.backward(people().__getitem__)
    other = planned(privacy=Privacy(8.0, 1e-3, noise="secure"))
    other.backward(people().__getitem__)
    assert not torch.equal(gradient(private), gradient(other))


# Misuse ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("samples", "told"),
    [
        ((torch.ones(0, COLUMNS), torch.zeros(0)), r"has inputs \(0, 3\) .* for m from 1 to"),
        ((torch.ones(5, COLUMNS), torch.zeros(5)), "for m from 1 to 4"),
        ((torch.ones(2, COLUMNS + 1), torch.zeros(2)), r"inputs \(2, 4\) .*: give \(m, 3\) numbers and \(m,\)"),
        ((torch.ones(2, COLUMNS), torch.zeros(3)), r"targets \(3,\)"),
        ((torch.ones(2, COLUMNS), torch.zeros(2, CLASSES)), r"targets \(2, 4\)"),
        ((torch.ones(COLUMNS), torch.zeros(())), r"inputs \(3,\)"),
        ((torch.tensor(1.0), torch.tensor(1.0)), r"inputs \(\)"),
    ],
)
def test_samples_of_another_form_are_refused_and_nothing_is_spent(samples, told):
    private, first = planned(max_samples=4), []
    with pytest.raises(BadInput, match=told):
        private.backward(lambda user: first.append(user) or samples)
    assert private.spent_epsilon == 0
    assert asked(private)[: len(first)] == first


def test_codes_that_are_no_whole_numbers_are_refused():
    with pytest.raises(BadInput, match=r"whole numbers and"):
        planned(nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), nn.Linear(12, 2)), levels=7).backward(
            lambda user: (torch.ones(2, 3), torch.zeros(2))
        )


def test_an_error_of_the_loader_spends_nothing_and_the_same_users_are_asked_again():
    private = planned(seed=None)
    found = []

    def broken(user):
        found.append(user)
        raise OSError("gone")

    while not found:
        with pytest.raises(OSError, match="gone"):
            private.backward(broken)
    assert private.spent_epsilon == 0
    assert asked(private)[0] == found[0]


@pytest.mark.parametrize("name", ["1.running_mean", "0.weight"])
def test_a_buffer_or_a_frozen_parameter_that_a_forward_pass_may_have_filled_is_refused(name):
    module = nn.Sequential(nn.Linear(COLUMNS, 5), nn.BatchNorm1d(5), nn.Linear(5, CLASSES))
    module[0].requires_grad_(False)
    private = planned(module)
    private.backward(people().__getitem__)
    assert module[0].weight.grad is None
    module.eval()(torch.ones(9, COLUMNS))
    private.backward(people().__getitem__)
    if name == "1.running_mean":
        module.train()(torch.ones(9, COLUMNS))
    else:
        module[0].weight.data += 1
    with pytest.raises(BadInput, match=rf"(1\.\w+|{name}) of the module has changed since the plan"):
        private.backward(people().__getitem__)
    assert private.spent_epsilon < private.guarantee.epsilon


def test_a_buffer_that_is_new_is_refused():
    module = network()
    private = planned(module)
    module.register_buffer("seen", torch.ones(2))
    with pytest.raises(BadInput, match="seen of the module has changed since the plan"):
        private.backward(nobody)


def test_a_second_name_of_its_parts_releases_no_round_again():
    private = planned()
    other = copy.copy(private)
    asked(private)
    with pytest.raises(RunFailed, match=r"not those that the sampler drew|was drawn before"):
        other.backward(nobody)


@pytest.mark.parametrize("how", [copy.deepcopy, pickle.dumps, torch.save])
def test_it_cannot_be_copied_saved_or_sent(how, tmp_path):
    given = (tmp_path / "saved.pt",) if how is torch.save else ()
    with pytest.raises(BadInput, match="cannot be copied, because its budget is spent once"):
        how(planned(), *given)


def test_a_process_that_was_forked_has_a_copy_and_releases_nothing(monkeypatch):
    private = planned()
    monkeypatch.setattr("userdp.streams.os.getpid", lambda: -1)
    with pytest.raises(BadInput, match="cannot be copied"):
        private.backward(nobody)
    assert all(one.grad is None for one in private._module.parameters())


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"privacy": Privacy(8.0, 0.1)}, "permits publishing one user's data"),
        ({"privacy": Privacy(8.0, 0.0)}, "give a delta"),
        ({"privacy": Privacy(8.0, 1e-3, unit="sample")}, "leave out unit and trust"),
        ({"privacy": Privacy(8.0, 1e-3, trust="sum")}, "leave out unit and trust"),
        ({"cohort": USERS + 1}, "a batch takes 31 users and there are 30"),
        ({"rounds": 0}, "each must be at least 1"),
        ({"max_samples": 0}, "max_samples = 0: must be a whole number, one or more"),
        ({"clip_norm": 0.0}, "clip_norm = 0.0: must be a positive finite number"),
        ({"clip_norm": math.inf}, "clip_norm = inf: must be"),
        ({"sampling": "disjoint", "relation": "add_or_remove"}, "such cohorts are priced for replacing a user"),
        ({"loss": "cross_entropi"}, "is unknown"),
        ({"loss": nn.CrossEntropyLoss()}, r"one loss a sample \(reduction='none'\)"),
        ({"module": nn.LazyLinear(CLASSES)}, "a layer without shapes"),
        ({"module": torch.compile(nn.Linear(3, 4), backend="eager")}, "compiled by torch.compile"),
        ({"module": nn.Linear(COLUMNS, CLASSES).requires_grad_(False)}, "no trainable parameter"),
        ({"input_shape": (COLUMNS + 1,)}, "does not fit 4 columns"),
    ],
)
def test_what_cannot_be_planned_is_a_sentence(settings, told):
    with pytest.raises(BadInput, match=told):
        planned(**settings)


# Use ------------------------------------------------------------------------------------------------------------------


def test_a_loop_of_ten_lines_learns():
    rng = np.random.default_rng(0)
    features = torch.tensor(rng.normal(size=(400, 8, COLUMNS)), dtype=torch.float32)
    wanted = (features @ torch.tensor([1.0, -2.0, 0.5]) > 0).long()
    torch.manual_seed(0)
    module = nn.Linear(COLUMNS, 2)
    settings = {"users": 400, "cohort": 80, "rounds": 30, "privacy": Privacy(8.0, 1e-4), "seed": None}
    private, optimiser = planned(module, **settings), torch.optim.Adam(module.parameters(), 0.1)
    for _ in range(30):
        private.backward(lambda user: (features[user], wanted[user]))
        optimiser.step()
    assert (module(features).argmax(-1) == wanted).float().mean() > 0.85
