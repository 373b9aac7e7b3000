"""The start of a program on a device: showing text, counting, and the map of memory."""

START_ARM = """\
extern unsigned char _stack[];
int main(void);
void show(const char *text);
uint32_t ticks(void);
void reset(void);
static int call(int what, const void *with) {
    register int r0 __asm__("r0") = what;
    register const void *r1 __asm__("r1") = with;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
    return r0;
}
void show(const char *text) { call(4, text); }
#define TICK ((volatile uint32_t *)0xe000e010)
void reset(void) {
    TICK[1] = 0xffffff;
    TICK[2] = 0;
    TICK[0] = 5;
    main();
    call(0x18, (const void *)0x20026);
    for (;;) {}
}
uint32_t ticks(void) { return 0xffffff - TICK[2]; }
__attribute__((section(".first"), used)) static const void *const vectors[] = {_stack, reset};
"""

START_RISCV = """\
int main(void);
void show(const char *text);
uint32_t ticks(void);
static __attribute__((noinline)) int call(int what, const void *with) {
    register int a0 __asm__("a0") = what;
    register const void *a1 __asm__("a1") = with;
    __asm__ volatile(".option push\\n.option norvc\\n.option norelax\\n.balign 16\\n"
                     "slli x0, x0, 0x1f\\nebreak\\nsrai x0, x0, 7\\n.option pop"
                     : "+r"(a0) : "r"(a1) : "memory");
    return a0;
}
void show(const char *text) { call(4, text); }
void begin(void);
void begin(void) {
    main();
    call(0x18, (const void *)0x20026);
    for (;;) {}
}
uint32_t ticks(void) {
    register uint32_t count __asm__("a0");
    __asm__ volatile(".word 0xb0202573" : "=r"(count)); /* csrr a0, minstret */
    return count;
}
__asm__(".section .first,\\"ax\\"\\n.globl _start\\n_start:\\nla sp, _stack\\ntail begin\\n.text");
"""

START_AVR = """\
#include <avr/interrupt.h>
#include <avr/io.h>
#include <avr/pgmspace.h>
#include <avr/sleep.h>
#define GIVEN PROGMEM
#define READ memcpy_P
int main(void);
static void show(const char *text) {
    UCSR0A = _BV(U2X0);
    UCSR0B = _BV(TXEN0);
    TCCR1A = 0;
    TCCR1B = _BV(CS11); /* eight cycles a tick */
    for (; *text; text++) {
        while (!(UCSR0A & _BV(UDRE0))) {}
        UDR0 = *text == ' ' ? '\\n' : *text; /* the simulator breaks long lines */
    }
}
static uint32_t ticks(void) { return TCNT1; }
static void stop(void) { /* the simulator ends when nothing can wake it up */
    cli();
    sleep_enable();
    sleep_cpu();
}
"""

LINKER = """\
MEMORY {{ all (rwx) : ORIGIN = {origin}, LENGTH = {memory} }}
SECTIONS {{
    .text : {{ KEEP(*(.first)) *(.text*) *(.rodata* .srodata*) }} > all
    .data : {{ *(.data* .sdata*) }} > all
    .bss : {{ *(.bss* .sbss* COMMON) }} > all
    _stack = ORIGIN(all) + LENGTH(all);
}}
"""

NUMBERS = """\
#ifndef GIVEN
#define GIVEN
#define READ memcpy
#define stop() ((void)0)
#endif
static void show_hex(uint32_t x) {
    char text[10];
    for (int i = 0; i < 8; i++) text[i] = "0123456789abcdef"[(x >> (28 - 4 * i)) & 15];
    text[8] = ' ';
    text[9] = 0;
    show(text);
}
"""
