"""The normalization layers that ``model.norm`` names, all over the last dimension or with statistics of its entries.

Shapes: R rows, T tokens, D width.
"""

from torch import Tensor, nn

EPS = 1e-5


class BatchNorm(nn.BatchNorm1d):
    """(R, T, D) -> (R, T, D), each channel by its statistics over all R * T positions of a micro-batch, padded ones included.

    The result for a sample depends on the others of its micro-batch and, within a row, on later positions. Evaluation uses
    the running statistics, which every micro-batch of an optimizer step moves once.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Normalize; while training also update the running statistics."""
        return super().forward(x.flatten(0, 1)).view(x.shape)


class GroupNorm(nn.GroupNorm):
    """(R, T, D) -> (R, T, D), groups of channels by their statistics at one position, so that no position sees another."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalize."""
        return super().forward(x.flatten(0, 1)).view(x.shape)


def make_norm(norm: str, width: int, groups: int = 1) -> nn.Module:
    """The layer called ``norm`` in a specification, for D = ``width``; ``groups`` is for groupnorm alone."""
    match norm:
        case "layernorm":
            return nn.LayerNorm(width, eps=EPS)
        case "layernorm_gain":
            return nn.LayerNorm(width, eps=EPS, bias=False)
        case "layernorm_plain":
            return nn.LayerNorm(width, eps=EPS, elementwise_affine=False)
        case "rmsnorm":
            return nn.RMSNorm(width, eps=EPS)
        case "batchnorm":
            return BatchNorm(width, eps=EPS)
        case "groupnorm":
            return GroupNorm(groups, width, eps=EPS)
        case "none":
            return nn.Identity()
    raise ValueError(f"norm={norm!r} passed validation")
