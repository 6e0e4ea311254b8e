"""pfl in research/peers.py: its simulation backend and its PyTorch model, as its own examples put them together."""

from typing import Any

import torch
from numpy.typing import NDArray
from peers_work import CLIP, NOISE, RIDGE, asked
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.model.pytorch import PyTorchModel
from pfl.privacy.privacy_mechanism import NormClippingOnly
from torch import Tensor, nn
from worker import serve


class Logistic(nn.Module):
    """Logistic regression with ridge, as pfl wants it."""

    def __init__(self, weights: Tensor) -> None:
        super().__init__()
        self.weights = nn.Parameter(weights)

    def loss(self, features: Tensor, targets: Tensor) -> Tensor:
        """The mean loss of one user's samples, plus the ridge."""
        fit = nn.functional.binary_cross_entropy_with_logits(features @ self.weights, targets)
        return fit + RIDGE / 2 * self.weights.square().sum()

    def metrics(self, features: Tensor, targets: Tensor) -> dict[str, Any]:
        """None: no round evaluates."""
        return {}


def main() -> None:
    work, total = asked()
    pairs = zip(torch.from_numpy(work.features), torch.from_numpy(work.targets), strict=True)
    datasets = [PyTorchTensorDataset(pair, user_id=str(user)) for user, pair in enumerate(pairs)]
    sampler = get_user_sampler("minimize_reuse", list(range(len(datasets))))
    federation = FederatedDataset(datasets.__getitem__, sampler)
    backend = SimulatedBackend(federation, federation, postprocessors=[NormClippingOnly(2.0, CLIP)])
    module = Logistic(torch.from_numpy(work.model).float())
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    algorithm = FederatedAveraging()
    rounds = NNAlgorithmParams(
        central_num_iterations=2, evaluation_frequency=2, train_cohort_size=len(datasets), val_cohort_size=None
    )
    local = NNTrainHyperParams(local_batch_size=None, local_num_epochs=1, local_learning_rate=1.0)

    def run_round() -> NDArray[Any]:
        # Iteration 1 of those that evaluate every second one: a round that trains alone.
        contexts, _, _ = algorithm.get_next_central_contexts(model, 1, rounds, local)
        statistics, _ = backend.gather_results(model, algorithm, central_context=contexts[0])
        (added,) = (statistics[name] for name in model.variable_map)
        _ = module.weights.detach() - (added / len(datasets) + NOISE * torch.randn_like(added))
        return -added.numpy()  # pfl adds up models less what they were sent as

    serve(("torch", "numpy", "pfl"), run_round, total)


if __name__ == "__main__":
    main()
