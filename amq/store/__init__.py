"""The store of a group, by its ports, and the election of its master. docs/master-slave.md argues why it is one.

Import from the modules; this page is the map.

    open         open_store(name): the ports of a directory, a database, or a directory with its lock in a database
    port         Store: election, epochs, log, board
    election     Election (port): the lock, the claim, heartbeats and the release mark
    epoch        Epoch, Epochs (port): one number for each mastership, with what it sealed
    segment_log  SegmentLog (port): segments and checkpoints
    board        Board (port): small documents that all members see: seats (presence), slots (orders)
    workshop     Workshop (port): what a repair asks of a store besides
    locker       Locker (makes one master of election and epochs), LockerState, TRANSITIONS (the state table), Term
    lease        Lease (deadline up to which this broker may confirm), Watchdog (fences when it stays expired)
    host         Host (door: boot id, namespaces, is that process still there?), SystemHost, Owner
    document     the one format of what brokers write besides the journal: JSON with version and checksum
    presence     Presence (one broker per name), read_presence
    orders       Order, Orders, give: what an operator, or the master, wants of one broker
    silence      Silence: how long the holder of the lock has given no sign
    status       StoreStatus, store_status (read-only, for `amq status --store`)
    files/, postgres/   the adapters

How a member uses it, all from one thread, which may hang in the store, unless a comment says otherwise:

    store = open_store(name)                                     # ConfigError
    store.make()                                                 # StoreError, OSError
    owner = Owner.make(host, name=..., uuid=..., transport_urls=(...), lock_keep_alive_period_s=2.0)
    presence = Presence.open(store.board, owner)                 # NameInUseError
    locker = Locker(store, clock, host, owner)
    locker.check_place()                                         # StoreError: brokers have their lock elsewhere
    locker.try_acquire() -> bool                                 # never waits; OSError, StoreError
    locker.holder() -> str                                       # for the log: who holds it, "this process (…)"
    term = locker.take_over(pause=stop_event.wait, seal=lambda previous: {...})
        # Term, or None if pause() returned True; OwnershipLostError: the race is lost, poll again.
        # `seal(previous: Epoch | None) -> {segment name: sealed length in bytes}` names EVERY segment in the store:
        # - list the segments fresh: a plain listing may be seconds old on NFS;
        # - hold, then measure (opened anew) the segments of epoch `previous.number`: what a killed master wrote and
        #   never fsynced must not be sealed while it is only in memory;
        # - a segment named in `previous.sealed` keeps that length;
        # - a segment of an OLDER epoch that `previous.sealed` does not name was made by a deposed master after the
        #   seal: nothing in it was confirmed, its length is 0.
    term.epoch: Epoch; term.waited_s; term.lease: Lease
    lease = term.lease                                           # proved once already
    lease.check()                                                # every period / 3; OwnershipLostError = fence
    lease.deadline; lease.valid()                                # any thread, no lock
    watchdog = Watchdog(lease, clock, tick_s)                    # own thread, ticks every tick_s <= period / 2
    watchdog.tick() -> Verdict.OK | SUSPENDED | FENCE            # FENCE: lease.revoke(), close sockets, abandon
    locker.release()                                             # clean hand-over, after the journal's last fsync
    locker.abandon() -> bool                                     # fence; False: a call hangs, replace the process
    presence.update(role); presence.close()
"""
