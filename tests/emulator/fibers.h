// Stacks that one OS thread switches between. Included by cuda_emulator.h.
#pragma once
#include <ucontext.h>

#include <cstddef>

namespace emulator {

constexpr size_t kStackBytes = 128 * 1024;

#if defined(__x86_64__)
// Saves the callee-saved registers on the old stack and takes them from the new one; ucontext would cost two system
// calls a switch.
extern "C" void emulator_switch(void** from, void* to);
asm(R"(
.text
.weak emulator_switch
.type emulator_switch,@function
emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp,(%rdi)
  movq %rsi,%rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");
struct Context {
    void* stack_pointer = nullptr;
    void prepare(char* stack, void (*entry)()) {
        void** top = reinterpret_cast<void**>(stack + kStackBytes - 64);
        *--top = nullptr;  // keeps the stack aligned as after a call
        *--top = reinterpret_cast<void*>(entry);
        for (int i = 0; i < 6; ++i) *--top = nullptr;
        stack_pointer = top;
    }
};
inline void switch_context(Context& from, Context& to) { emulator_switch(&from.stack_pointer, to.stack_pointer); }
#else
struct Context {
    ucontext_t state;
    void prepare(char* stack, void (*entry)()) {
        getcontext(&state);
        state.uc_stack.ss_sp = stack;
        state.uc_stack.ss_size = kStackBytes;
        state.uc_link = nullptr;
        makecontext(&state, entry, 0);
    }
};
inline void switch_context(Context& from, Context& to) { swapcontext(&from.state, &to.state); }
#endif

}  // namespace emulator
