"""What all tests need."""

import signal

# A shell gives programs that it runs in the background SIGINT ignored, and they and all their children keep it. Tests
# send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
