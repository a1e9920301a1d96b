"""What goes wrong between a policy agent and the hubs it serves."""

from veen.client.errors import ClientError

__all__ = ["PolicyNotEnforced"]


class PolicyNotEnforced(ClientError):
    """A hub does not enforce one of the two views, so it takes no records of it."""

    code = "POLICY.NOT_ENFORCED"
