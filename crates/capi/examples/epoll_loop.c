// An event loop of the program's own: it waits on the session's descriptor beside its other descriptors, and keeps reads under way.
//
//   cc epoll_loop.c $(pkg-config --cflags --libs portcullis) -o epoll_loop
//   ./epoll_loop shm:portcullis.sock           (without an address: a node within the program)
#define _GNU_SOURCE
#include <portcullis.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

enum { DEPTH = 16, READS = 2000, BYTES = 256 };

static void check(int result, const char *what) {
  if (result == 0) return;
  portcullis_error error;
  portcullis_last_error(&error);
  fprintf(stderr, "%s: %s (%d %s)\n", what, error.text, error.number, portcullis_error_name(error.number));
  exit(1);
}

static void watch(int loop, int descriptor) {
  struct epoll_event event = {.events = EPOLLIN, .data.fd = descriptor};
  if (epoll_ctl(loop, EPOLL_CTL_ADD, descriptor, &event) != 0) {
    perror("epoll_ctl");
    exit(1);
  }
}

int main(int count, char **arguments) {
  portcullis_session session;
  portcullis_node node = {0};
  if (count > 1) {
    check(portcullis_connect(arguments[1], NULL, &session), "connect");
  } else {
    check(portcullis_node_start(64 << 20, NULL, &node), "start a node");
    check(portcullis_node_connect(node, "loop", NULL, &session), "connect");
  }
  portcullis_allocate_options asked = {.size = DEPTH * BYTES, .lifetime = 10000000};
  portcullis_permission permission;
  check(portcullis_allocate(session, &asked, &permission), "allocate");

  int descriptor;
  check(portcullis_descriptor(session, &descriptor), "descriptor");
  int loop = epoll_create1(EPOLL_CLOEXEC);
  // Something else that the loop waits for: a tick every millisecond.
  int ticks = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
  struct itimerspec every = {.it_interval.tv_nsec = 1000000, .it_value.tv_nsec = 1000000};
  if (loop < 0 || ticks < 0 || timerfd_settime(ticks, 0, &every, NULL) != 0) return 1;
  watch(loop, descriptor);
  watch(loop, ticks);

  static char places[DEPTH][BYTES];
  portcullis_operation operations[DEPTH];
  memset(operations, 0, sizeof operations);
  for (uint64_t place = 0; place < DEPTH; place++) {
    memset(places[place], 'A' + (int)place, BYTES);
    check(portcullis_write(permission, place * BYTES, places[place], BYTES), "write");
    operations[place] = (portcullis_operation){.kind = PORTCULLIS_OPERATION_READ,
                                               .tag = place,
                                               .permission = permission,
                                               .offset = place * BYTES,
                                               .data = places[place],
                                               .length = BYTES};
  }
  check(portcullis_submit(session, operations, DEPTH), "submit");

  unsigned long begun = DEPTH, ended = 0, ticked = 0;
  while (ended < READS) {
    portcullis_completion completions[DEPTH];
    size_t got = 0;
    check(portcullis_wait(session, completions, DEPTH, 0, 0, &got), "take completions");
    for (size_t at = 0; at < got; at++) {
      check(completions[at].error, "read");
      uint64_t place = completions[at].tag;
      if (places[place][BYTES - 1] != 'A' + (int)place) return 1;
      ended++;
      if (begun < READS) {
        memset(places[place], 0, BYTES);
        check(portcullis_submit(session, &operations[place], 1), "submit");
        begun++;
      }
    }
    if (got > 0) continue;
    // Nothing has ended: sleep until something does. Arming comes last, because every other call undoes it.
    uint64_t microseconds;
    check(portcullis_arm(session, &microseconds), "arm");
    int milliseconds = microseconds == UINT64_MAX ? -1 : (int)((microseconds + 999) / 1000);
    struct epoll_event events[2];
    int woken = epoll_wait(loop, events, 2, milliseconds);
    for (int at = 0; at < woken; at++) {
      uint64_t times;
      if (events[at].data.fd == ticks && read(ticks, &times, sizeof times) == sizeof times) ticked += times;
    }
  }
  printf("%lu reads ended in an event loop that ticked %lu times\n", ended, ticked);

  close(loop);
  close(ticks);
  check(portcullis_revoke(permission, false), "revoke");
  check(portcullis_session_close(session), "close");
  if (count == 1) check(portcullis_node_stop(node), "stop the node");
  return 0;
}
