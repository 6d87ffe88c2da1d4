"""The made-up records of the golden plans, and a recorded federation of two sites that trained on some.

cd tests/golden && python records.py
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

import leakscope as ls
from leakscope import models, training


@dataclass(frozen=True)
class Named:
    """A recorder that calls clients site-0, site-1 and so on."""

    recorder: ls.Recorder

    def global_model(self, r, params):
        self.recorder.global_model(r, params)

    def update(self, r, client, params, **facts):
        self.recorder.update(r, f"site-{client}", params, **facts)


def write_people() -> torch.Tensor:
    """60 people of 8 records each, whose group shifts the first input. Returns the rows of the sites."""
    rng = ls.seeded(0, "people")
    person = torch.arange(480) // 8
    group = person % 2
    x = torch.randn(60, 6, generator=rng)[person] + 0.7 * torch.randn(480, 6, generator=rng)
    x[:, 0] += group
    y = (x[:, 1] + torch.randn(480, generator=rng) > 0).long()
    order = torch.randperm(480, generator=ls.seeded(2, "sites"))  # far from the limit of the check of members
    client = np.full(480, "nobody")
    client[order[:40]], client[order[40:80]] = "site-0", "site-1"
    secrets = {"client": client, "group": group.numpy(), "person": person.numpy()}
    np.savez_compressed("people.npz", x=x.numpy(), y=y.numpy(), **secrets)
    return order[:80]


def write_recording(rows: torch.Tensor) -> None:
    """Three rounds of two sites with 40 records each."""
    data = ls.from_npz("people.npz", secrets=["client"])
    model = models.build(ls.MLP((8,)), data, ls.seeded(0, "model"))
    recorder = Named(ls.Recorder("recording", model, model_name="mlp", rate=0.1))
    local = training.Local(0.1, batch=10, epochs=4)
    sites = [data.take(part) for part in rows.split(40)]
    training.federate(model, sites, rounds=3, rng=ls.seeded(0, "training"), local=local, recorder=recorder)


def write_pictures() -> None:
    """Stripes that lie or stand."""
    rng = ls.seeded(0, "pictures")
    kind = torch.arange(160) % 2
    wave = torch.arange(12)[None] * torch.randint(1, 4, (160, 1), generator=rng) // 3 % 2 * 160 + 40
    lying, standing = wave[:, :, None].expand(-1, 12, 12), wave[:, None, :].expand(-1, 12, 12)
    x = torch.where(kind[:, None, None] == 0, lying, standing).byte()
    y = torch.randint(2, (160,), generator=rng)
    np.savez_compressed("pictures.npz", x=x.numpy(), y=y.numpy(), kind=kind.numpy())


if __name__ == "__main__":
    write_recording(write_people())
    write_pictures()
