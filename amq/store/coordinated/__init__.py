"""Stores whose election, epochs and board are in a coordinator, and the coordinators: etcd, ZooKeeper, a register."""
