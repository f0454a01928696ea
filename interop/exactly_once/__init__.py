"""Exactly once over brokers that die by turns: whoever coordinates the transactions, whoever coordinates the
group whose offsets they commit, and whoever leads what they write to.
"""
