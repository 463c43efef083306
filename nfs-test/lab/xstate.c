/* Preloaded into User-mode Linux 6.1, which sets the floating point registers of its processes from a buffer of fixed
 * size. On a CPU with more state than fits into it (AMX: 11 KiB) the host refuses so little, and the guest panics in
 * put_fp_registers. Here the registers are read whole, the guest's part is laid over them, and all are set.
 *
 *     cc -O2 -shared -fPIC -o xstate.so xstate.c -ldl
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/uio.h>

#ifndef NT_X86_XSTATE
#define NT_X86_XSTATE 0x202
#endif

long ptrace(enum __ptrace_request request, ...)
{
    static long (*next)(enum __ptrace_request, ...);
    static _Thread_local char registers[64 * 1024] __attribute__((aligned(64)));
    va_list arguments;

    va_start(arguments, request);
    long pid = va_arg(arguments, long);
    void *address = va_arg(arguments, void *);
    void *data = va_arg(arguments, void *);
    va_end(arguments);
    if (!next)
        next = (long (*)(enum __ptrace_request, ...))dlsym(RTLD_NEXT, "ptrace");
    if (request == PTRACE_SETREGSET && address == (void *)NT_X86_XSTATE) {
        const struct iovec *given = data;
        struct iovec whole = {registers, sizeof registers};
        if (next(PTRACE_GETREGSET, pid, address, &whole) < 0)
            return -1;
        memcpy(registers, given->iov_base, given->iov_len < whole.iov_len ? given->iov_len : whole.iov_len);
        return next(request, pid, address, &whole);
    }
    return next(request, pid, address, data);
}
