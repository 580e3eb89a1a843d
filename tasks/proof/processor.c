/* Preloaded into a process, makes its processor look like an older one: every CPUID instruction is answered without the
 * instruction sets that NIGHTQUANT_PROCESSOR does not have. Libraries dispatch by CPUID, each with switches of its own
 * or none, and so all of them run what they would run on such a processor.
 *
 * It needs CPUID faulting (Intel since 2012, and virtual machines of KVM): the instruction then raises SIGSEGV, and the
 * handler here answers it. Threads inherit that from the thread that starts them. */
#define _GNU_SOURCE
#include <cpuid.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#define ARCH_SET_CPUID 0x1012

struct removed { unsigned leaf, subleaf, eax, ebx, ecx, edx; };

/* Intel's manual, volume 2A, CPUID: AMX and AVX-512 FP16; all that needs AVX-512; AVX-VNNI and its relatives. */
#define AMX {7, 0, 0, 0, 0, 1u << 22 | 1u << 24 | 1u << 25}, {7, 1, 1u << 21, 0, 0, 1u << 8}
#define AVX10 {7, 1, 0, 0, 0, 1u << 19}

static const struct removed avx512_vnni[] = {AMX, AVX10, {0}};
static const struct removed avx2[] = {
    AMX, AVX10,
    {7, 0, 0,
     1u << 16 | 1u << 17 | 1u << 21 | 1u << 26 | 1u << 27 | 1u << 28 | 1u << 30 | 1u << 31,
     1u << 1 | 1u << 6 | 1u << 11 | 1u << 12 | 1u << 14,
     1u << 2 | 1u << 3 | 1u << 8 | 1u << 23},
    {7, 1, 1u << 4 | 1u << 5 | 1u << 23, 0, 0, 1u << 4 | 1u << 5 | 1u << 10}, {0}};

/* By this name a process finds out whether it was preloaded: the dynamic loader goes on without what it cannot load. */
const struct removed *nightquant_processor;

static void answer(int number, siginfo_t *info, void *context) {
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    const unsigned char *at = (const unsigned char *)registers[REG_RIP];
    if (info->si_code != SI_KERNEL || at[0] != 0x0f || at[1] != 0xa2) {  /* another fault: as if this were not here */
        signal(number, SIG_DFL);
        return;
    }
    unsigned leaf = registers[REG_RAX], subleaf = registers[REG_RCX], eax, ebx, ecx, edx;
    syscall(SYS_arch_prctl, ARCH_SET_CPUID, 1);
    __cpuid_count(leaf, subleaf, eax, ebx, ecx, edx);
    syscall(SYS_arch_prctl, ARCH_SET_CPUID, 0);
    for (const struct removed *each = nightquant_processor; each->leaf; each++)
        if (each->leaf == leaf && each->subleaf == subleaf)
            eax &= ~each->eax, ebx &= ~each->ebx, ecx &= ~each->ecx, edx &= ~each->edx;
    registers[REG_RAX] = eax, registers[REG_RBX] = ebx, registers[REG_RCX] = ecx, registers[REG_RDX] = edx;
    registers[REG_RIP] += 2;
}

__attribute__((constructor)) static void start(void) {
    const char *wanted = getenv("NIGHTQUANT_PROCESSOR");
    nightquant_processor = !wanted ? NULL : !strcmp(wanted, "avx2") ? avx2 : !strcmp(wanted, "avx512_vnni") ? avx512_vnni : NULL;
    if (!nightquant_processor) return;
    struct sigaction action = {.sa_sigaction = answer, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGSEGV, &action, NULL);
    if (syscall(SYS_arch_prctl, ARCH_SET_CPUID, 0)) {
        static const char text[] = "nightquant: this processor's CPUID cannot be answered by others\n";
        (void)!write(2, text, sizeof text - 1);
        _exit(125);
    }
}
