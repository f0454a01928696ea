"""Connections to brokers, requests and answers, and the cluster as a client sees it."""
