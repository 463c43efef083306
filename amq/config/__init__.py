"""Configuration of a broker: `load(...)` → `BrokerConfig`. See schema.py for every option."""

from amq.config.loader import load
from amq.config.option import SECTIONS, Option, Setting, ValueKind
from amq.config.schema import BY_KEY, OPTIONS, BrokerConfig
from amq.config.transport_url import TransportUrl, is_loopback, parse_transport_url

__all__ = [
    "BY_KEY",
    "OPTIONS",
    "SECTIONS",
    "BrokerConfig",
    "Option",
    "Setting",
    "TransportUrl",
    "ValueKind",
    "is_loopback",
    "load",
    "parse_transport_url",
]
