/* Answers the instruction CPUID with fewer instruction sets than the processor has.

   HIDDEN_LEVEL hides, each level with those before it: 1 AMX; 2 VNNI and later extensions of AVX-512; 3 AVX-512. The
   kernel makes CPUID raise SIGSEGV (ARCH_SET_CPUID); the handler executes it and clears bits of the answer. The bits are
   those of Intel's Software Developer's Manual, volume 2A, CPUID, leaves 7 and 1EH. */
#define _GNU_SOURCE
#include <cpuid.h>
#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

enum { ARCH_SET_CPUID = 0x1012 };
#define BIT(n) (1u << (n))

static int level;

static void fault(int number, siginfo_t *info, void *context) {
  greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
  const unsigned char *code = (const unsigned char *)registers[REG_RIP];
  (void)info;
  if (code[0] != 0x0f || code[1] != 0xa2) { /* another fault: let it end the process */
    level = 0;
    signal(number, SIG_DFL);
    return;
  }
  unsigned leaf = registers[REG_RAX], sub = registers[REG_RCX], a, b, c, d;
  syscall(SYS_arch_prctl, ARCH_SET_CPUID, 1);
  __cpuid_count(leaf, sub, a, b, c, d);
  syscall(SYS_arch_prctl, ARCH_SET_CPUID, 0);
  if (leaf == 7 && sub == 0) {
    d &= ~(BIT(22) | BIT(24) | BIT(25)); /* AMX: bfloat16, tiles, int8 */
    if (level >= 2) {
      c &= ~(BIT(11) | BIT(12) | BIT(14)); /* VNNI, BITALG, VPOPCNTDQ */
      d &= ~BIT(23);                       /* FP16 */
    }
    if (level >= 3) {
      b &= ~(BIT(16) | BIT(17) | BIT(21) | BIT(28) | BIT(30) | BIT(31)); /* F, DQ, IFMA, CD, BW, VL */
      c &= ~(BIT(1) | BIT(6));                                           /* VBMI, VBMI2 */
      d &= ~BIT(8);                                                      /* VP2INTERSECT */
    }
  }
  if (leaf == 7 && sub == 1) {
    a &= ~BIT(21); /* AMX: float16 */
    if (level >= 2) {
      a &= ~(BIT(4) | BIT(5));           /* AVX-VNNI, AVX-512 bfloat16 */
      d &= ~(BIT(4) | BIT(5) | BIT(10)); /* AVX-VNNI-INT8, AVX-NE-CONVERT, AVX-VNNI-INT16 */
    }
  }
  if (leaf == 0x1e) a = b = c = d = 0; /* AMX's geometry */
  registers[REG_RAX] = a;
  registers[REG_RBX] = b;
  registers[REG_RCX] = c;
  registers[REG_RDX] = d;
  registers[REG_RIP] += 2;
}

typedef int sigaction_type(int, const struct sigaction *, struct sigaction *);

/* Programs such as g++ handle SIGSEGV themselves, which would end them at the next CPUID: keep the handler above. */
int sigaction(int number, const struct sigaction *action, struct sigaction *before) {
  sigaction_type *real = (sigaction_type *)dlsym(RTLD_NEXT, "sigaction");
  return real(number, level && number == SIGSEGV ? NULL : action, before);
}

sighandler_t signal(int number, sighandler_t handler) {
  struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART}, before;
  return sigaction(number, &action, &before) ? SIG_ERR : before.sa_handler;
}

__attribute__((constructor)) static void begin(void) {
  const char *given = getenv("HIDDEN_LEVEL");
  struct sigaction action = {.sa_sigaction = fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
  if (!given) return;
  sigaction(SIGSEGV, &action, NULL); /* before `level` is set */
  level = atoi(given);
  syscall(SYS_arch_prctl, ARCH_SET_CPUID, 0);
}
