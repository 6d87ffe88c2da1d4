"""Nets that plans can name: each a frozen description that builds a module for a dataset."""

from __future__ import annotations

from leakscope.models.building import Architecture, build, layers_of, parameters
from leakscope.models.convolutional import VGG9, AlexNet, LeNet, SigmoidNet, SmallAlexNet
from leakscope.models.deep import DenseNet, ResNet18
from leakscope.models.encoders import ImageEncoder, TableEncoder
from leakscope.models.frozen import Frozen
from leakscope.models.small import CNN, MLP, Linear, TextClf
from leakscope.models.transformers import Bert, TextTransformer

__all__ = [
    "CNN", "MLP", "VGG9", "AlexNet", "Architecture", "Bert", "DenseNet", "Frozen", "ImageEncoder", "LeNet",
    "Linear", "ResNet18", "SigmoidNet", "SmallAlexNet", "TableEncoder", "TextClf", "TextTransformer",
    "build", "layers_of", "parameters",
]  # fmt: skip
