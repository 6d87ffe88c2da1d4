"""What three shared gradients tell about sixteen people of the Adult census.

python examples/first_audit.py
"""

import leakscope as ls
from leakscope import models, training

data = ls.load("adult").without("sex")  # a property: the column is not among the inputs
train, _, public = data.split(ls.seeded(0, "split"), secret="sex")
model = models.build(ls.MLP((32, 16)), train, ls.seeded(0, "model"))
rounds = training.fit(model, train, rounds=3, rng=ls.seeded(0, "training"))

game = ls.Inference(train, secret="sex", batch=16)
channel = ls.GradientChannel(model, rounds[:3])
knowledge = ls.Knowledge(game.on(public), channel, trials=1_000, prior=game.chances)
transcript = ls.play(game, channel, ls.Posterior(), knowledge, trials=1_000, rng=ls.seeded(0, "play"))

print(f"guessing {ls.guessing(transcript):.3f}")
for measure in (ls.success_rate, ls.advantage, ls.auroc, ls.tpr_at_fpr):
    print(measure(transcript))
