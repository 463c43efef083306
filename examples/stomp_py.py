"""A sender that is not ours: stomp.py sends through any number of takeovers, and each message is stored once.

Slaves do not listen, so stomp.py, which tries its hosts in turn, finds the master. The program connects in the loop
that sends, and not in `on_disconnected`, because stomp.py does not call that again for an attempt that failed. It sends
a message without a receipt again; the broker stores it once because of `_AMQ_DUPL_ID`.

    pip install stomp.py
    python examples/stomp_py.py HOST:PORT HOST:PORT
"""

import queue
import sys
import time

import stomp


class Sender(stomp.ConnectionListener):
    """One connection to whichever of `hosts`, (host, port) pairs, is master."""

    def __init__(self, hosts):
        self.events = queue.Queue()
        self.connection = stomp.Connection12(hosts, reconnect_attempts_max=1)
        self.connection.set_listener("", self)

    def on_receipt(self, frame):
        self.events.put(frame.headers["receipt-id"])

    def on_disconnected(self):
        self.events.put("disconnected")

    def send(self, destination, body, id):
        """Return when the broker has stored the message, through as many takeovers as it takes."""
        while True:
            try:
                if not self.connection.is_connected():
                    self.connection.connect(wait=True)
                self.events = queue.Queue()
                self.connection.send(destination, body, receipt=id, headers={"_AMQ_DUPL_ID": id})
                if self.events.get(timeout=30) == id:
                    return
            except (stomp.exception.StompException, OSError, queue.Empty):
                time.sleep(0.1)


if __name__ == "__main__":
    sender = Sender([(host, int(port)) for host, port in (address.split(":") for address in sys.argv[1:])])
    sender.send("/queue/orders", "one pizza", id="order-1")
