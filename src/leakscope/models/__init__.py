"""Nets that plans can name: each a frozen description that builds a module for a dataset."""

from __future__ import annotations

from leakscope.models.building import Architecture, build, parameters
from leakscope.models.convolutional import AlexNet, LeNet
from leakscope.models.densenet import DenseNet
from leakscope.models.frozen import Frozen
from leakscope.models.resnet import ResNet18
from leakscope.models.small import CNN, MLP, Linear

__all__ = [
    "CNN",
    "MLP",
    "AlexNet",
    "Architecture",
    "DenseNet",
    "Frozen",
    "LeNet",
    "Linear",
    "ResNet18",
    "build",
    "parameters",
]
