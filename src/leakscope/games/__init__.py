"""Who draws what: games about batches of records, and about the clients of a federation."""

from leakscope.games.federated import Clients, Membership
from leakscope.games.inference import Distribution, Inference, UserInference

__all__ = ["Clients", "Distribution", "Inference", "Membership", "UserInference"]
