// What programs do to memory from malloc, by name of the part (first argument), under pressure from other memory. Ends with
// 0 if every byte is right, and with 77 where this machine cannot try it.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(x) do { if (!(x)) { fprintf(stderr, "line %d: %s (%s)\n", __LINE__, #x, strerror(errno)); exit(1); } } while (0)
static const size_t SIZE = 24 << 20, OTHER = 48 << 20, PAGE = 4096;
static unsigned char *block, *other;

static unsigned char want(size_t at) { return (unsigned char)(1 + (at / PAGE) % 251); }
static void fill(void) { for (size_t at = 0; at < SIZE; at += PAGE) memset(block + at, want(at), PAGE); }
static void press(void) { for (size_t at = 0; at < OTHER; at += PAGE) other[at]++; }
static void right(size_t from, size_t to) {
  for (size_t at = from; at < to; at += 512) if (block[at] != want(at)) { fprintf(stderr, "byte %zu is %d\n", at, block[at]); exit(1); }
}
static void zeros(size_t from, size_t to) {
  for (size_t at = from; at < to; at += 512) if (block[at]) { fprintf(stderr, "byte %zu is %d and not 0\n", at, block[at]); exit(1); }
}

static void allocators(void) {
  for (int turn = 0; turn < 3; turn++) {
    void *all[6] = {malloc(3 << 20), calloc(3, 1 << 20), aligned_alloc(4096, 3 << 20), memalign(512, 3 << 20), valloc(3 << 20), 0};
    CHECK(!posix_memalign(&all[5], 65536, 3 << 20));
    for (int i = 0; i < 6; i++) memset(all[i], 'a' + i, 3 << 20);
    press();
    all[0] = realloc(all[0], 5 << 20);
    for (int i = 0; i < 6; i++) { for (size_t at = 0; at < 3 << 20; at += PAGE) CHECK(((char *)all[i])[at] == 'a' + i); free(all[i]); }
  }
}
static void dropped(void) {
  for (int raw = 0; raw < 2; raw++) {
    fill(); press();
    int rc = raw ? (int)syscall(SYS_madvise, block, SIZE / 2, MADV_DONTNEED) : madvise(block, SIZE / 2, MADV_DONTNEED);
    CHECK(!rc);
    zeros(0, SIZE / 2); right(SIZE / 2, SIZE);
    memset(block, 'z', PAGE); press(); CHECK(block[5] == 'z' && !block[PAGE]); zeros(PAGE, SIZE / 2);
  }
  fill(); press();
  CHECK(!madvise(block, SIZE / 2, MADV_FREE));
  memset(block, 'w', SIZE / 4); press();
  for (size_t at = 0; at < SIZE / 4; at += 512) CHECK(block[at] == 'w');
  for (size_t at = SIZE / 4; at < SIZE / 2; at += 512) CHECK(block[at] == 0 || block[at] == want(at));
  CHECK(madvise(block, PAGE, MADV_REMOVE) == -1);
  right(SIZE / 2, SIZE);
}
static void advice(void) {
  static const int all[] = {MADV_RANDOM, MADV_HUGEPAGE, MADV_SEQUENTIAL, MADV_NORMAL, MADV_WILLNEED, MADV_NOHUGEPAGE, MADV_DONTDUMP};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    fill();
    madvise(block + (2 * i + 1) * (1 << 20) + 8 * PAGE, 64 * PAGE, all[i]);
    press(); right(0, SIZE); press(); right(0, SIZE);
  }
}
static void protections(void) {
  fill();
  for (size_t at = PAGE; at < SIZE; at += 1 << 20) CHECK(!mprotect(block + at, 3 * PAGE, (at >> 20) % 2 ? PROT_READ : PROT_NONE));
  press(); press();
  for (size_t at = PAGE; at < SIZE; at += 1 << 20) CHECK(!mprotect(block + at, 3 * PAGE, PROT_READ | PROT_WRITE));
  right(0, SIZE); fill(); press(); right(0, SIZE);
}
static void locks(void) {
  fill(); CHECK(!mlock(block, 2 << 20));
  for (int turn = 0; turn < 4; turn++) press();
  unsigned char there[512];
  CHECK(!mincore(block, 2 << 20, there));
  for (size_t i = 0; i < 512; i++) CHECK(there[i] & 1);
  right(0, SIZE); CHECK(!munlock(block, 2 << 20)); press(); right(0, SIZE);
  if (mlockall(MCL_CURRENT | MCL_FUTURE)) exit(77);
  unsigned char *more = malloc(4 << 20); memset(more, 7, 4 << 20); press(); right(0, SIZE); CHECK(more[3 << 20] == 7);
  CHECK(!munlockall()); free(more); press(); right(0, SIZE);
}
static void mappings(void) {
  fill(); press();
  CHECK(!munmap(block + (4 << 20), 1 << 20));
  unsigned char *hole = mmap(block + (4 << 20), 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  CHECK(hole == block + (4 << 20)); memset(hole, 'h', 1 << 20);
  unsigned char *moved = mremap(block + (8 << 20), 1 << 20, 1 << 20, MREMAP_MAYMOVE | MREMAP_FIXED, mmap(0, 1 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  CHECK(moved != MAP_FAILED);
  for (int turn = 0; turn < 3; turn++) press();
  for (size_t at = 0; at < 1 << 20; at += 512) { CHECK(hole[at] == 'h'); CHECK(moved[at] == want(at + (8 << 20))); }
  right(0, 4 << 20); right(5 << 20, 8 << 20); right(9 << 20, SIZE);
}
static void children(void) {
  fill(); press();
  int to[2]; CHECK(!pipe(to));
  pid_t child = fork(); CHECK(child >= 0);
  if (!child) {
    char go; CHECK(read(to[0], &go, 1) == 1);
    right(0, SIZE); memset(block, 'c', 1 << 20); right(1 << 20, SIZE);
    CHECK(!madvise(block + (2 << 20), 1 << 20, MADV_DONTNEED)); zeros(2 << 20, 3 << 20);
    pid_t grandchild = fork(); CHECK(grandchild >= 0);
    if (!grandchild) { right(3 << 20, SIZE); zeros(2 << 20, 3 << 20); CHECK(block[0] == 'c'); free(other); _exit(0); }
    int status; CHECK(waitpid(grandchild, &status, 0) == grandchild && !status);
    _exit(0);
  }
  // What the parent changes afterwards the child does not see.
  memset(block, 'p', SIZE); press(); press(); CHECK(write(to[1], "x", 1) == 1);
  int status; CHECK(waitpid(child, &status, 0) == child && !status);
  for (size_t at = 0; at < SIZE; at += PAGE) CHECK(block[at] == 'p');
  for (int i = 0; i < 20; i++) { child = fork(); CHECK(child >= 0); if (!child) execl("/bin/true", "true", (char *)0); CHECK(waitpid(child, &status, 0) == child && !status); }
  press(); for (size_t at = 0; at < SIZE; at += PAGE) CHECK(block[at] == 'p');
}
static void remotely(void) {
  fill(); press();
  pid_t parent = getpid(), child = fork(); CHECK(child >= 0);
  if (!child) {
    char x[64]; memset(x, 'R', 64);
    struct iovec ours = {x, 64}, theirs = {block + (12 << 20), 64}, far = {block + (2 << 20), 64};
    if (process_vm_writev(parent, &ours, 1, &theirs, 1, 0) != 64) _exit(errno == EPERM ? 77 : 1);
    CHECK(process_vm_readv(parent, &ours, 1, &far, 1, 0) == 64); _exit(x[5] == (char)want(2 << 20) ? 0 : 1);
  }
  int status; CHECK(waitpid(child, &status, 0) == child);
  if (WEXITSTATUS(status) == 77) exit(77);
  CHECK(!status && block[12 << 20] == 'R'); right(0, 12 << 20);
}
static volatile sig_atomic_t beats;
static void beat(int no) { (void)no; beats += block[(size_t)beats * 7919 * PAGE % SIZE] != 0; }
static void *churn(void *seed) {
  size_t at = (size_t)seed;
  for (int i = 0; i < 30000; i++) { at = (at * 6364136223846793005u + 1442695040888963407u); size_t page = at % (SIZE / PAGE) * PAGE; CHECK(block[page] == want(page)); if (i % 64 == 0) other[at % OTHER]++; }
  return 0;
}
static void threads(void) {
  fill();
  struct sigaction act = {.sa_handler = beat, .sa_flags = SA_RESTART}; sigaction(SIGALRM, &act, 0);
  ualarm(1000, 1000);
  pthread_t all[4]; for (size_t i = 0; i < 4; i++) CHECK(!pthread_create(&all[i], 0, churn, (void *)(i + 1)));
  for (int i = 0; i < 4; i++) pthread_join(all[i], 0);
  ualarm(0, 0); right(0, SIZE);
}
static void direct(void) {
  char path[] = "./far-direct-XXXXXX"; int fd = mkstemp(path); CHECK(fd >= 0); unlink(path);
  fcntl(fd, F_SETFL, O_DIRECT);
  unsigned char *at = (unsigned char *)(((uintptr_t)block + PAGE - 1) & ~(PAGE - 1)); size_t size = 16 << 20;
  for (int turn = 0; turn < 4; turn++) {
    memset(at, 'A' + turn, size); press();
    if (pwrite(fd, at, size, 0) != (ssize_t)size) exit(77);
    memset(at, 0, size); press();
    for (size_t part = 0; part < size; part += 1 << 20) CHECK(pread(fd, at + part, 1 << 20, part) == 1 << 20);
    press(); for (size_t i = 0; i < size; i += 512) CHECK(at[i] == 'A' + turn);
  }
}
int main(int argc, char **argv) {
  static const struct { const char *name; void (*run)(void); } parts[] = {{"allocators", allocators}, {"dropped", dropped}, {"advice", advice}, {"protections", protections}, {"locks", locks}, {"mappings", mappings}, {"children", children}, {"remotely", remotely}, {"threads", threads}, {"direct", direct}};
  block = malloc(SIZE + PAGE); block = (unsigned char *)(((uintptr_t)block + PAGE - 1) & ~(PAGE - 1)); other = calloc(1, OTHER);
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) if (argc > 1 && !strcmp(argv[1], parts[i].name)) { parts[i].run(); return 0; }
  return 2;
}
