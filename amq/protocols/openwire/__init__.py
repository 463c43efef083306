"""OpenWire, the protocol of ActiveMQ's own clients (JMS, NMS, C++), in its loose encoding, versions 6 to 12.

Source: the marshallers of Apache ActiveMQ 5.17, checked against recorded frames. See docs/openwire.md.
"""
