"""Election of the master of a store: lock, claim, epoch, lease. docs/master-slave.md argues why there is only one.

Import from the modules; this page is the map.

    host         Host (door: boot id, namespaces, is that process still there?), SystemHost, Owner
    document     the one format of everything the lock component stores: JSON with version and checksum
    election     Election (port): what a broker asks of a store to become its master; RETRY_DELAYS_S
    board        Board (port): small documents that all members see: seats (presence), slots (orders)
    locker       Locker (interface), LockerState, TRANSITIONS (the state table), Term
    files/       FileElection, FileBoard, SharedFileLocker (lock file, claim, takeover, release), watch
    epoch        Epoch, read_epochs, newest_epoch, link_epoch, prune_epochs
    lease        Lease (deadline up to which this broker may confirm), Watchdog (fences when it stays expired)
    presence     Presence (one broker per name), read_presence
    status       StoreStatus, store_status (read-only, for `amq status --store`)

How a service uses it, all from one thread, which may hang in the store, unless a comment says otherwise:

    owner = Owner.make(host, name=..., uuid=..., transport_urls=(...), lock_keep_alive_period_s=2.0)
    presence = Presence.open(open_board(vfs, store), owner)      # NameInUseError
    election = open_election(vfs, clock, host, store, directories)
    locker = election.locker(owner)                              # ConfigError if the period is 0
    locker.try_acquire() -> bool                                 # never waits; OSError, StoreError
    locker.holder() -> str                                       # for the log: who holds it, "this process (…)"
    mastership = locker.take_over(pause=stop_event.wait, seal=lambda previous: {...})
        # Term, or None if pause() returned True; OwnershipLostError: the race is lost, poll again.
        # `seal(previous: Epoch | None) -> {segment name: sealed length in bytes}` names EVERY segment in the store:
        # - list the journal with amq.store.files.vfs.listdir_fresh: a plain listing may be seconds old on NFS;
        # - lock, fsync, then measure (opened anew) the segments of epoch `previous.number`: what a killed master wrote
        #   and never fsynced must not be sealed while it is only in memory;
        # - a segment named in `previous.sealed` keeps that length;
        # - a segment of an OLDER epoch that `previous.sealed` does not name was made by a deposed master after the
        #   seal: nothing in it was confirmed, its length is 0.
    mastership.epoch: Epoch; mastership.waited_s; mastership.reason; mastership.lease: Lease
    lease = mastership.lease                                     # proved once already
    lease.check()                                                # every period / 3; OwnershipLostError = fence
    lease.deadline; lease.valid()                                # any thread, no lock
    watchdog = Watchdog(lease, clock, tick_s)                    # own thread, ticks every tick_s <= period / 2
    watchdog.tick() -> Verdict.OK | SUSPENDED | FENCE            # FENCE: lease.revoke(), close sockets, abandon
    locker.release()                                             # clean hand-over, after the journal's last fsync
    locker.abandon() -> bool                                     # fence; False: a call hangs, replace the process
    presence.update(role); presence.close()
"""
