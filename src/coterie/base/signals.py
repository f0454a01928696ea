"""Which signals ask a process to stop in order."""

import signal

ONE_REQUEST_MS = 300
"""`timeout` and other supervisors send a signal to a process and to its group: it is heard twice."""


def stop_signals() -> tuple[signal.Signals, ...]:
    """Return SIGTERM, and SIGHUP where the terminal's end is to be the process's: `nohup` has it ignored."""
    hangup = getattr(signal, "SIGHUP", None)  # Windows has none
    if hangup is None or signal.getsignal(hangup) is signal.SIG_IGN:
        return (signal.SIGTERM,)
    return signal.SIGTERM, hangup


class StopRequests:
    """How often a process has been asked to stop, by the signals that it has heard."""

    def __init__(self) -> None:
        self.count = 0
        self._heard_ms = 0

    def hear(self, now_ms: int) -> bool:
        """Return whether a signal asks once more; one that comes at once behind another is the same again."""
        same = self.count > 0 and now_ms - self._heard_ms < ONE_REQUEST_MS
        self._heard_ms = now_ms
        self.count += not same
        return not same
