"""Who was trained on: recorded updates of a federation, and three attacks on one client.

python examples/federation.py         # writes the recording to the folder run
"""

import torch

import leakscope as ls
from leakscope import models, training
from leakscope.data import synthetic

data = synthetic(records=2_400, inputs=100)  # made-up records: there is nothing to learn but who was there
parts = torch.arange(2_400).split([400, 500, 500, 1_000])
members, known, held, others = (data.take(rows) for rows in parts)
clients = training.shards(members, 4, ls.seeded(0, "shards"))  # 100 records each
model = models.build(ls.MLP((32,)), data, ls.seeded(0, "model"))
recorder = ls.Recorder("run", model, model_name="mlp")
local = ls.Local(rate=0.1, batch=25, epochs=2)
training.federate(model, clients, rounds=5, rng=ls.seeded(0, "train"), local=local, recorder=recorder)

channel = ls.RecordedChannel(ls.Recording("run"), model, ("0",))  # what client 0 uploaded
game = ls.Membership(clients[0], others, held)
knowledge = ls.Knowledge(game.on(known), channel, trials=len(known))  # records nobody trained on
for attack in (ls.Loss(), ls.Cosine(), ls.Whitened()):
    found = ls.play(game, channel, attack, knowledge, trials=2_000, rng=ls.seeded(0, "play"))
    print(type(attack).__name__, ls.auroc(found), ls.plr_at_fpr(found, fpr=0.05), sep="; ")
