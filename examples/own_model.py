"""A PyTorch module of your own, and what each of its layers tells about a secret.

python examples/own_model.py
"""

from torch import nn

import leakscope as ls
from leakscope import models


class Net(nn.Module):
    """Two branches that are added: anything with named parameters will do."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.deep = nn.Sequential(nn.Linear(inputs, 24), nn.Tanh(), nn.Linear(24, classes))
        self.wide = nn.Linear(inputs, classes)

    def forward(self, x):
        return self.deep(x) + self.wide(x)


train, _, public = ls.load("adult").without("sex").split(ls.seeded(0, "split"), secret="sex")
model = models.build(Net(train.x.shape[1], train.classes), train, ls.seeded(0, "model"))
game = ls.Inference(train, secret="sex", batch=8, prior="uniform", balanced=True)
channel = ls.GradientChannel(model, (models.parameters(model),))
for layer, names in models.layers_of(model).items():
    through = ls.Through(channel, names)
    knowledge = ls.Knowledge(game.on(public), through, trials=500)
    found = ls.play(game, through, ls.Posterior(), knowledge, trials=500, rng=ls.seeded(0, "play"))
    print(f"{layer}: {ls.auroc(found)}")
