"""Small residual networks for 32x32 images, with the parameter names of their published checkpoints.

Use them as the architecture in a model description, for example::

    architecture: tta_bench.models.zoo.cifar_resnet:cifar_resnet
    kwargs: {depth: 32}
    mean: [0.485, 0.456, 0.406]
    std: [0.229, 0.224, 0.225]
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn
from torch.nn import functional as F

WIDTHS = (16, 32, 64)


def _conv(width_in: int, width: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(width_in, width, kernel_size=3, stride=stride, padding=1, bias=False)


def _stage_lengths(depth: int) -> int:
    if depth < 8 or (depth - 2) % 6:
        raise ValueError(f"a residual network for CIFAR has a depth of 6n + 2, such as 20, 26, 32 or 56; got {depth}")
    return (depth - 2) // 6


class Block(nn.Module):
    """Convolution, norm, ReLU, convolution, norm, sum, ReLU; the shortcut is zero-padded on both sides."""

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv(width_in, width, stride), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = _conv(width, width), nn.BatchNorm2d(width)
        self.stride, self.new = stride, width - width_in

    def forward(self, x: Tensor) -> Tensor:
        """Maps (B, width_in, H, W) -> (B, width, H / stride, W / stride)."""
        shortcut = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.new // 2, self.new // 2))
        x = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(x)) + shortcut)


class PreActBlock(nn.Module):
    """Norm and ReLU before each convolution; the shortcut is average-pooled, and zero-padded at the end."""

    def __init__(self, width_in: int, width: int, stride: int, groups: int) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.GroupNorm(groups, width_in), _conv(width_in, width, stride)
        self.bn2, self.conv2 = nn.GroupNorm(groups, width), _conv(width, width)
        self.stride, self.new = stride, width - width_in

    def forward(self, x: Tensor) -> Tensor:
        """Maps (B, width_in, H, W) -> (B, width, H / stride, W / stride)."""
        shortcut = F.pad(F.avg_pool2d(x, self.stride), (0, 0, 0, 0, 0, self.new))
        x = self.conv1(F.relu(self.bn1(x)))
        return self.conv2(F.relu(self.bn2(x))) + shortcut


def _stages(block: Callable[[int, int, int], nn.Module], length: int) -> list[nn.Sequential]:
    widths = [WIDTHS[0], *WIDTHS]
    return [
        nn.Sequential(
            *(block(widths[i] if j == 0 else width, width, 2 if i > 0 and j == 0 else 1) for j in range(length))
        )
        for i, width in enumerate(WIDTHS)
    ]


class _CifarResNet(nn.Module):
    def __init__(self, depth: int, num_classes: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv(3, WIDTHS[0]), nn.BatchNorm2d(WIDTHS[0])
        self.layer1, self.layer2, self.layer3 = _stages(Block, _stage_lengths(depth))
        self.linear = nn.Linear(WIDTHS[-1], num_classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.layer3(self.layer2(self.layer1(F.relu(self.bn1(self.conv1(images))))))
        return self.linear(x.mean(dim=(2, 3)))


class _PreActCifarResNet(nn.Module):
    def __init__(self, depth: int, num_classes: int, groups: int) -> None:
        super().__init__()
        self.conv1 = _conv(3, WIDTHS[0])
        block = partial(PreActBlock, groups=groups)
        self.layer1, self.layer2, self.layer3 = _stages(block, _stage_lengths(depth))
        self.bn = nn.GroupNorm(groups, WIDTHS[-1])
        self.fc = nn.Linear(WIDTHS[-1], num_classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.layer3(self.layer2(self.layer1(self.conv1(images))))
        return self.fc(F.relu(self.bn(x)).mean(dim=(2, 3)))


def cifar_resnet(depth: int = 32, num_classes: int = 10) -> nn.Module:
    """Residual network with batch norm and parameter-free shortcuts (option A).

    Args:
        depth: 6n + 2.
        num_classes: K.

    Raises:
        ValueError: If the depth is not of this form.

    Source: He et al., CVPR 2016, Sec. 4.2; weights as in repository akamaster/pytorch_resnet_cifar10.
    """
    return _CifarResNet(depth, num_classes)


def preact_cifar_resnet(depth: int = 26, num_classes: int = 10, groups: int = 8) -> nn.Module:
    """Residual network with pre-activation and group norm, as used in test-time training.

    Args:
        depth: 6n + 2.
        num_classes: K.
        groups: Groups of each norm.

    Raises:
        ValueError: If the depth is not of this form.

    Source: He et al., ECCV 2016; Sun et al., ICML 2020, Sec. 3; weights as in repository zhangmarvin/memo.
    """
    return _PreActCifarResNet(depth, num_classes, groups)
