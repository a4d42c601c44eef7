"""Attacks: what somebody who sees the messages can find out. A robustness figure always names its adversary."""
