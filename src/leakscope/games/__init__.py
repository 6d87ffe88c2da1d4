"""Who draws what: games about batches of records, and about the clients of a federation."""

from leakscope.games.federated import Clients, Membership
from leakscope.games.inference import Distribution, Inference, UserInference
from leakscope.games.ratio import Ratio
from leakscope.games.reconstruction import Reconstruction

__all__ = ["Clients", "Distribution", "Inference", "Membership", "Ratio", "Reconstruction", "UserInference"]
