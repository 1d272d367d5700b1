/* SPDX-License-Identifier: BSL-1.0 */
/* Start-up of a Cortex-M4 or M7: memory as C++ expects it, constructors, main, and the end of the emulator. */
#include <stdint.h>
#include <string.h>

extern uint32_t stack_top[];
extern char data_begin[], data_end[], data_source[], bss_begin[], bss_end[];
extern void (*const constructors_begin[])(void);
extern void (*const constructors_end[])(void);
int main(void);

/* SYS_EXIT_EXTENDED: the emulator ends with this exit status. */
static void leave(uint32_t status) {
  const uint32_t block[2] = {0x20026, status};
  register uint32_t operation __asm("r0") = 0x20;
  register const uint32_t* argument __asm("r1") = block;
  __asm volatile("bkpt 0xab" : "+r"(operation) : "r"(argument) : "memory");
  for (;;) {
  }
}

static void fault(void) {
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

void reset(void) {
  *(volatile uint32_t*)0xE000ED88 |= 0xFU << 20; /* the FPU may be used */
  __asm volatile("dsb\n isb");
  memcpy(data_begin, data_source, (size_t)(data_end - data_begin));
  memset(bss_begin, 0, (size_t)(bss_end - bss_begin));
  paint_stack();
  for (void (*const* f)(void) = constructors_begin; f != constructors_end; ++f)
    (*f)();
  leave((uint32_t)main());
}

__attribute__((section(".vectors"), used)) static void* const vectors[] = {
    stack_top, (void*)reset, (void*)fault, (void*)fault, (void*)fault, (void*)fault, (void*)fault};
