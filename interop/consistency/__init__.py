"""Clients at work over brokers, databases and connections that fail; what they saw is checked afterwards.

After Jepsen's checks of Kafka: clients write down each request and its outcome (`history`), pure functions
look for what may not be (`checks`), and a schedule that a seed gives says what fails when (`schedule`).
"""
