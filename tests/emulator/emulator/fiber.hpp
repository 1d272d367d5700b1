// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#if !defined(EMULATOR_UCONTEXT) && !(defined(__x86_64__) && defined(__linux__))
#define EMULATOR_UCONTEXT
#endif
#ifdef EMULATOR_UCONTEXT
#include <ucontext.h>
#endif

#if defined(__SANITIZE_ADDRESS__)
#define EMULATOR_ASAN
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define EMULATOR_ASAN
#endif
#endif
#ifdef EMULATOR_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

#ifndef EMULATOR_UCONTEXT
// void espalier_emulator_switch(void** save, void* load): parks the caller's stack and continues on another one.
// ucontext would do, but costs two system calls each time.
asm(R"(
  .pushsection .text.espalier_emulator_switch, "axG", @progbits, espalier_emulator_switch, comdat
  .weak espalier_emulator_switch
  .type espalier_emulator_switch, @function
espalier_emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size espalier_emulator_switch, . - espalier_emulator_switch
  .popsection
)");
extern "C" void espalier_emulator_switch(void** save, void* load);
#endif

namespace emulator::detail {

//! Ends the program with one sentence.
template <class... Args>
[[noreturn]] void stop(const char* sentence, Args... args) {
  std::fflush(stdout);
  std::fputs("emulator: ", stderr);
  if constexpr (sizeof...(Args) == 0) {
    std::fputs(sentence, stderr);
  } else {
    std::fprintf(stderr, sentence, args...);
  }
  std::fputc('\n', stderr);
  std::abort();
}

//! A stack and the point at which it was left. A default fiber stands for the caller's own stack.
class fiber {
 public:
  fiber() = default;
  fiber(const fiber&) = delete;
  fiber& operator=(const fiber&) = delete;

  //! Starts at `entry`, which never returns, when first switched to. Stacks are kept until the program ends. Stacks
  //! with different `colour` begin at different cache lines.
  fiber(void (*entry)(), std::size_t colour) {
    constexpr std::size_t guard = 4096;
    size_ = stack_bytes();
    void* pages =
        mmap(nullptr, size_ + guard, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages == MAP_FAILED) stop("no memory for the stack of one more thread");
    mprotect(pages, guard,
             PROT_NONE);  // if the kernel refuses, the stack has no guard page
    bottom_ = static_cast<char*>(pages) + guard;
    char* top = bottom_ + size_ - colour % 16 * 256;
#ifdef EMULATOR_UCONTEXT
    getcontext(&context_);
    context_.uc_stack.ss_sp = bottom_;
    context_.uc_stack.ss_size = static_cast<std::size_t>(top - bottom_);
    context_.uc_link = nullptr;
    makecontext(&context_, entry, 0);
#else
    auto** frame = reinterpret_cast<void**>(top) - 8;  // six registers, the entry, and no return address
    for (int i = 0; i < 8; ++i)
      frame[i] = nullptr;
    frame[6] = reinterpret_cast<void*>(entry);
    saved_ = frame;
#endif
  }

  //! Leaves this fiber and continues `next`; returns when something switches back.
  void switch_to(fiber& next) {
#ifdef EMULATOR_ASAN
    void* fake = nullptr;
    __sanitizer_start_switch_fiber(&fake, next.bottom_, next.size_);
    last() = this;
#endif
#ifdef EMULATOR_UCONTEXT
    swapcontext(&context_, &next.context_);
#else
    espalier_emulator_switch(&saved_, next.saved_);
#endif
#ifdef EMULATOR_ASAN
    arrived(fake);
#endif
  }

  //! Prefetches the memory that switching to this fiber will read: its registers, and the stack around them.
  void fetch() const {
#ifndef EMULATOR_UCONTEXT
    const char* top = static_cast<const char*>(saved_);
    for (int line = 0; line < 5; ++line)
      __builtin_prefetch(top + 64 * line);
#endif
  }

  //! Called first by the entry of a fiber.
  static void arrived([[maybe_unused]] void* fake = nullptr) {
#ifdef EMULATOR_ASAN
    const void* bottom = nullptr;
    std::size_t size = 0;
    __sanitizer_finish_switch_fiber(fake, &bottom, &size);
    last()->bottom_ = const_cast<char*>(static_cast<const char*>(bottom)), last()->size_ = size;
#endif
  }

 private:
  static std::size_t stack_bytes() {
#ifdef EMULATOR_ASAN
    constexpr std::size_t kib = 256;
#else
    constexpr std::size_t kib = 64;
#endif
    static const char* text = std::getenv("ESPALIER_EMULATOR_STACK_KIB");
    return 1024 * (text != nullptr ? std::strtoul(text, nullptr, 10) : kib);
  }

#ifdef EMULATOR_ASAN
  static fiber*& last() {
    static fiber* left = nullptr;
    return left;
  }
#endif
#ifdef EMULATOR_UCONTEXT
  ucontext_t context_;
#else
  void* saved_ = nullptr;
#endif
  char* bottom_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace emulator::detail
