#!/bin/sh
# First process of a trial guest: that it runs is all that is asked. Another process has registers of its own.
/bin/true && echo "a program runs in the guest"
exec sleep 600
