"""Any request against any state: extreme requests, a live broker, and what must hold after each."""
