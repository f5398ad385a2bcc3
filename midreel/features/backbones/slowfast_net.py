"""The network SlowFast 8x8 on ResNet-50: one vector per clip (Feichtenhofer et al., ICCV 2019, Table 1).

Two pathways process the same clip. The slow pathway has few frames and many channels, the fast pathway all frames and
few channels. Before each residual stage, the activations of the fast pathway are appended to those of the slow one.

Table 1 describes another instance (alpha 8, lateral kernels of 5 frames). Here the published weights set the numbers.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

NUM_FRAMES = 32
ALPHA = 4  # frames of the fast pathway per frame of the slow pathway
BETA_INVERSE = 8  # channels of the slow pathway per channel of the fast pathway
LATERAL_RATIO = 2  # channels of a lateral connection per channel of the fast pathway
LATERAL_KERNEL = 7
DEPTHS = (3, 4, 6, 3)  # blocks of res2 to res5
EXPANSION = 4  # output channels of a block per inner channel

Clip = Float[Tensor, "N _ _ _ _"]  # channels, frames, height, width


class ConvNorm(nn.Module):
    """A convolution with padding, and its batch norm. Only the stride changes the size.

    Args:
        width_in: The number of channels of the input.
        width_out: The number of channels of the output.
        kernel: The size in time, height and width. Odd numbers.
        stride: The stride in time, height and width.
    """

    def __init__(
        self, width_in: int, width_out: int, kernel: tuple[int, int, int], stride: tuple[int, int, int] = (1, 1, 1)
    ) -> None:
        super().__init__()
        time, height, width = kernel
        padding = (time // 2, height // 2, width // 2)
        self.conv = nn.Conv3d(width_in, width_out, kernel, stride, padding, bias=False)
        self.norm = nn.BatchNorm3d(width_out)

    def forward(self, clips: Clip) -> Clip:
        """Apply the convolution and the norm."""
        return self.norm(self.conv(clips))


class Bottleneck(nn.Module):
    """A residual block: a convolution over time to few channels, one over space, and one to many channels.

    Args:
        width_in: The number of channels of the input.
        width_inner: The number of channels inside the block. The output has `EXPANSION` times as many.
        kernel: The size of the convolution over time, in frames.
        stride: The stride in height and width.
    """

    def __init__(self, width_in: int, width_inner: int, *, kernel: int, stride: int) -> None:
        super().__init__()
        width_out, step = EXPANSION * width_inner, (1, stride, stride)
        self.reduce = ConvNorm(width_in, width_inner, (kernel, 1, 1))
        self.spatial = ConvNorm(width_inner, width_inner, (1, 3, 3), step)
        self.expand = ConvNorm(width_inner, width_out, (1, 1, 1))
        self.shortcut = ConvNorm(width_in, width_out, (1, 1, 1), step) if width_in != width_out else nn.Identity()

    def forward(self, clips: Clip) -> Clip:
        """Apply the three convolutions, and add the input."""
        inner = F.relu(self.spatial(F.relu(self.reduce(clips))))
        return F.relu(self.shortcut(clips) + self.expand(inner))


class Pathway(nn.Module):
    """A ResNet-50 over time and space.

    Args:
        width: The channels of the first convolution.
        kernels: The frames that the kernels of the first convolution and of each stage span.
        lateral: The channels from the other pathway, as a multiple of the channels of this one.
    """

    def __init__(self, width: int, *, kernels: tuple[int, int, int, int, int], lateral: float = 0) -> None:
        super().__init__()
        self.stem = ConvNorm(3, width, (kernels[0], 7, 7), (1, 2, 2))
        stages, width_in = [], width
        for number, (depth, kernel) in enumerate(zip(DEPTHS, kernels[1:], strict=True)):
            inner = width * 2**number
            first = Bottleneck(round(width_in * (1 + lateral)), inner, kernel=kernel, stride=2 if number else 1)
            width_in = EXPANSION * inner
            others = (Bottleneck(width_in, inner, kernel=kernel, stride=1) for _ in range(depth - 1))
            stages.append(nn.Sequential(first, *others))
        self.stages = nn.ModuleList(stages)

    def begin(self, clips: Clip) -> Clip:
        """Apply the first convolution and the max pooling."""
        return F.max_pool3d(F.relu(self.stem(clips)), (1, 3, 3), (1, 2, 2), (0, 1, 1))


class SlowFast(nn.Module):
    """The network without its classification layer.

    Args:
        width: The channels of the first convolution of the slow pathway.
    """

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        fast = width // BETA_INVERSE
        self.slow = Pathway(width, kernels=(1, 1, 1, 3, 3), lateral=LATERAL_RATIO / BETA_INVERSE)
        self.fast = Pathway(fast, kernels=(5, 3, 3, 3, 3))
        widths = (fast, *(EXPANSION * fast * 2**number for number in range(len(DEPTHS) - 1)))
        self.laterals = nn.ModuleList(
            ConvNorm(width, LATERAL_RATIO * width, (LATERAL_KERNEL, 1, 1), (ALPHA, 1, 1)) for width in widths
        )
        self.width_out = (width + fast) * EXPANSION * 2 ** (len(DEPTHS) - 1)

    def forward(self, clips: Float[Tensor, "N 3 F H W"]) -> Float[Tensor, "N E"]:
        """Return one vector per clip: the averages of both pathways, the slow one first."""
        slow = self.slow.begin(clips[:, :, slow_frames(clips.shape[2]).to(clips.device)])
        fast = self.fast.begin(clips)
        for lateral, slow_stage, fast_stage in zip(self.laterals, self.slow.stages, self.fast.stages, strict=True):
            slow = slow_stage(torch.cat((slow, F.relu(lateral(fast))), 1))
            fast = fast_stage(fast)
        return torch.cat((slow.mean((2, 3, 4)), fast.mean((2, 3, 4))), 1)


def slow_frames(num_frames: int) -> Int[Tensor, " T"]:
    """Return the frames of the slow pathway: evenly spaced from the first to the last, rounded down."""
    last = num_frames // ALPHA - 1
    return torch.arange(last + 1) * (num_frames - 1) // last
