"""The host end of the guest channel: one multiplexed stream to the agent in the machine."""
