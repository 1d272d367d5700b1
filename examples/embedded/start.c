/* SPDX-License-Identifier: BSL-1.0 */
/* Start-up of a Cortex-M4 or M7, or of a RISC-V: memory as C++ expects it, constructors, main, and the end of the
   emulator. */
#include <stdint.h>
#include <string.h>

#include "semihosting.h"

extern uint32_t stack_top[];
extern char data_begin[], data_end[], data_source[], bss_begin[], bss_end[];
extern void (*const constructors_begin[])(void);
extern void (*const constructors_end[])(void);
int main(void);

/* SYS_EXIT_EXTENDED: the emulator ends with this exit status. */
static void leave(uintptr_t status) {
  const uintptr_t block[2] = {0x20026, status};
  for (;;)
    ask_debugger(0x20, block);
}

__attribute__((aligned(4))) static void fault(void) {
  leave(2);
}

/* The stack is painted at first; what has been used is no longer of this colour. */
static const uint32_t colour = 0xC0FFEE11;

int32_t used_stack(void) {
  const uint32_t* word = (const uint32_t*)bss_end;
  while (*word == colour)
    ++word;
  return (int32_t)((const char*)stack_top - (const char*)word);
}

__attribute__((noinline)) static void paint_stack(void) {
  uint32_t here;
  for (volatile uint32_t* word = (volatile uint32_t*)bss_end; word < &here - 16; ++word)
    *word = colour;
}

#if defined(__arm__)

/* A timer of the board counts down, at 25 MHz. With -icount shift=0 an instruction takes QEMU a nanosecond, so that
   each tick is 40 of them. */
struct timer {
  uint32_t control, value, reload;
};
static volatile struct timer* const timer = (struct timer*)0x40000000;

uint64_t instructions(void) {
  return (uint64_t)(0xFFFFFFFFU - timer->value) * 40;
}

/* The board's first serial port. Its clock of 25 MHz is divided to 115,200 bits a second. */
struct port {
  uint32_t data, state, control, interrupt, divisor;
};
static volatile struct port* const port = (struct port*)0x40004000;

static void send_byte(char byte) {
  while ((port->state & 1U) != 0) /* full */
    ;
  port->data = (uint8_t)byte;
}

static void start_processor(void) {
  *(volatile uint32_t*)0xE000ED88 |= 0xFU << 20; /* the FPU may be used */
  __asm volatile("dsb\n isb");
  port->divisor = 217;
  port->control = 1; /* it sends */
  timer->reload = timer->value = 0xFFFFFFFFU;
  timer->control = 1;
}

#elif defined(__riscv)

uint64_t instructions(void) {
#if __riscv_xlen == 64
  uint64_t n;
  __asm volatile("csrr %0, minstret" : "=r"(n));
  return n;
#else
  uint32_t high, low, again;
  do {
    __asm volatile("csrr %0, minstreth\n csrr %1, minstret\n csrr %2, minstreth" : "=r"(high), "=r"(low), "=r"(again));
  } while (high != again);
  return (uint64_t)high << 32 | low;
#endif
}

/* The board's serial port, a 16550, whose registers are bytes. */
static volatile uint8_t* const port = (uint8_t*)0x10000000;

static void send_byte(char byte) {
  while ((port[5] & 0x20U) == 0) /* the byte before is still there */
    ;
  port[0] = (uint8_t)byte;
}

static void start_processor(void) {
  __asm volatile("csrw mtvec, %0" : : "r"(fault));
  port[3] = 3; /* bytes of 8 bits */
}

#endif

void send(const char* text) {
  for (; *text != '\0'; ++text)
    send_byte(*text);
}

void start(void) {
  start_processor();
  memcpy(data_begin, data_source, (size_t)(data_end - data_begin));
  memset(bss_begin, 0, (size_t)(bss_end - bss_begin));
  paint_stack();
  for (void (*const* f)(void) = constructors_begin; f != constructors_end; ++f)
    (*f)();
  leave((uintptr_t)main());
}

#if defined(__arm__)

__attribute__((section(".vectors"), used)) static void* const vectors[] = {
    stack_top, (void*)start, (void*)fault, (void*)fault, (void*)fault, (void*)fault, (void*)fault};

#elif defined(__riscv)

/* The first instructions: a global pointer, a stack, and the FPU where there is one. */
__attribute__((naked, section(".vectors"), used)) void reset(void) {
  __asm volatile(
      ".option push\n .option norelax\n la gp, __global_pointer$\n .option pop\n"
      "la sp, stack_top\n"
      "li t0, 0x2000\n csrs mstatus, t0\n"
      "j start");
}

#endif
