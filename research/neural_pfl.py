"""pfl in research/neural.py: its simulation backend and its PyTorch model, as its own examples put them together."""

from typing import Any

import torch
from neural_models import MODELS, STEP_SIZE, STEPS, average_loss, initial_module
from neural_worker import asked
from numpy.typing import NDArray
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


class WithLoss(nn.Module):
    """A module as pfl wants it."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The mean loss of one user's samples."""
        return average_loss(self.module(inputs), targets)

    def metrics(self, inputs: Tensor, targets: Tensor) -> dict[str, Any]:
        """None: no round evaluates."""
        return {}


def main() -> None:
    work, total = asked()
    datasets = [PyTorchTensorDataset(tensors, user_id=str(user)) for user, tensors in enumerate(work.users())]
    sampler = get_user_sampler("minimize_reuse", list(range(len(datasets))))
    federation = FederatedDataset(datasets.__getitem__, sampler)
    clip = NormClippingOnly(2.0, MODELS[work.model].clip_norm)
    backend = SimulatedBackend(federation, federation, postprocessors=[clip])
    module = WithLoss(initial_module(work.model))
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    algorithm = FederatedAveraging()
    rounds = NNAlgorithmParams(
        central_num_iterations=2, evaluation_frequency=2, train_cohort_size=len(datasets), val_cohort_size=None
    )
    local = NNTrainHyperParams(local_batch_size=None, local_num_epochs=STEPS, local_learning_rate=STEP_SIZE)

    def run_round() -> NDArray[Any]:
        # Iteration 1 of those that evaluate every second one: a round that trains alone.
        contexts, _, _ = algorithm.get_next_central_contexts(model, 1, rounds, local)
        statistics, _ = backend.gather_results(model, algorithm, central_context=contexts[0])
        return torch.cat([statistics[name].flatten() for name in model.variable_map]).numpy()

    serve(("torch", "numpy", "pfl"), run_round, total)


if __name__ == "__main__":
    main()
