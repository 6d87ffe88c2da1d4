"""Pruning spoils the guesses of an adversary who has not heard of it, and hardly those of one who has.

python examples/defense.py
"""

import leakscope as ls
from leakscope import models, training

data = ls.load("adult").without("sex")
train, _, public = data.split(ls.seeded(0, "split"), secret="sex")
defense = ls.Pruning(0.99)  # releases one entry of a hundred; any other defense goes here
model = models.build(ls.MLP((32, 16)), train, ls.seeded(0, "model"), defense=defense)
rounds = training.fit(model, train, rounds=3, rng=ls.seeded(0, "training"), defense=defense)

game = ls.Inference(train, secret="sex", batch=16)
channel = ls.GradientChannel(model, rounds[:3], defense)
believed = {"static": channel.undefended(), "adaptive": channel}  # what the adversary rehearses on
for name, belief in believed.items():
    knowledge = ls.Knowledge(game.on(public), belief, trials=1_000, prior=game.chances)
    found = ls.play(game, channel, ls.Posterior(), knowledge, trials=1_000, rng=ls.seeded(0, "play"))
    print(f"{name}: {ls.advantage(found)}; {ls.auroc(found)}")
