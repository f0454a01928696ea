"""Which signals ask a process to stop in order."""

import signal


def stop_signals() -> tuple[signal.Signals, ...]:
    """Return SIGTERM, and SIGHUP where the terminal's end is to be the process's: `nohup` has it ignored."""
    hangup = getattr(signal, "SIGHUP", None)  # Windows has none
    if hangup is None or signal.getsignal(hangup) is signal.SIG_IGN:
        return (signal.SIGTERM,)
    return signal.SIGTERM, hangup
