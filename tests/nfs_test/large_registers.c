/* A host whose CPU has 11,008 bytes of registers (AMX), for User-mode Linux on a smaller one: it reads that many, and
 * refuses to set fewer. Preloaded, behind the preload that is tested. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/uio.h>

#define XSTATE ((void *)0x202)
#define BYTES 11008

long ptrace(enum __ptrace_request request, ...)
{
    static long (*next)(enum __ptrace_request, ...);
    va_list arguments;

    va_start(arguments, request);
    long pid = va_arg(arguments, long);
    void *address = va_arg(arguments, void *);
    struct iovec *data = va_arg(arguments, void *);
    va_end(arguments);
    if (!next)
        next = (long (*)(enum __ptrace_request, ...))dlsym(RTLD_NEXT, "ptrace");
    if (address != XSTATE || (request != PTRACE_SETREGSET && request != PTRACE_GETREGSET))
        return next(request, pid, address, data);
    if (request == PTRACE_SETREGSET && data->iov_len < BYTES) {
        errno = EFAULT;
        return -1;
    }
    size_t room = data->iov_len < BYTES ? data->iov_len : BYTES;
    long done = next(request, pid, address, data);
    if (request == PTRACE_GETREGSET && done == 0 && data->iov_len < room) {
        memset((char *)data->iov_base + data->iov_len, 0, room - data->iov_len);
        data->iov_len = room;
    }
    return done;
}
