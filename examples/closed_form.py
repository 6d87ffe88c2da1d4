"""Where the best possible attack is known: how near ours come to it, and that none passes it.

python examples/closed_form.py
"""

import leakscope as ls
from leakscope import models
from leakscope.data import synthetic, synthetic_bayes

shift, positive = 0.5, 0.7
data = synthetic(records=12_000, shift=shift, positive=positive)
train, _, public = data.split(ls.seeded(0, "split"), secret="group", train=6_000, public=3_000)
model = models.build(ls.Linear(zeros=True), train, ls.seeded(0, "model"))
channel = ls.GradientChannel(model, (models.parameters(model),))

for batch in (1, 4, 16, 64):
    game = ls.Inference(train, secret="group", batch=batch, prior="uniform")
    knowledge = ls.Knowledge(game.on(public), channel, trials=2_000)
    attack = ls.Posterior(head=ls.QDA(), reduce=ls.Flat())
    found = ls.play(game, channel, attack, knowledge, trials=2_000, rng=ls.seeded(0, batch))
    best = synthetic_bayes(shift=shift, batch=batch, positive=positive)
    print(f"batch {batch}: the best attack is right in {best:.3f}, ours: {ls.success_rate(found)}")
