"""Nets that plans can name: each a frozen description that builds a module for a dataset."""

from __future__ import annotations

from leakscope.models.building import Architecture, build, layers_of, parameters
from leakscope.models.convolutional import AlexNet, LeNet
from leakscope.models.densenet import DenseNet
from leakscope.models.encoders import ImageEncoder, TableEncoder
from leakscope.models.frozen import Frozen
from leakscope.models.resnet import ResNet18
from leakscope.models.shallow import VGG9, SigmoidNet, SmallAlexNet
from leakscope.models.small import CNN, MLP, Linear
from leakscope.models.text import TextClf

__all__ = [
    "CNN",
    "MLP",
    "VGG9",
    "AlexNet",
    "Architecture",
    "DenseNet",
    "Frozen",
    "ImageEncoder",
    "LeNet",
    "Linear",
    "ResNet18",
    "SigmoidNet",
    "SmallAlexNet",
    "TableEncoder",
    "TextClf",
    "build",
    "layers_of",
    "parameters",
]
