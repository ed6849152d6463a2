// How long a read takes from C. examples/read_lat.rs does the same from Rust; scripts/capi-figures compares them.
//
//   ./read_lat ADDRESS BYTES READS      prints the nanoseconds of one read
#define _GNU_SOURCE
#include <portcullis.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static void check(int result) {
  if (result == 0) return;
  portcullis_error error;
  portcullis_last_error(&error);
  fprintf(stderr, "%s\n", error.text);
  exit(1);
}

int main(int count, char **arguments) {
  if (count != 4) {
    fprintf(stderr, "usage: read_lat ADDRESS BYTES READS\n");
    return 2;
  }
  size_t bytes = strtoul(arguments[2], NULL, 10);
  unsigned long reads = strtoul(arguments[3], NULL, 10);
  portcullis_session session;
  portcullis_permission permission;
  check(portcullis_connect(arguments[1], NULL, &session));
  portcullis_allocate_options asked = {.size = bytes, .lifetime = 10000000};
  check(portcullis_allocate(session, &asked, &permission));
  char *into = malloc(bytes);
  if (into == NULL) return 1;
  struct timespec begun, ended;
  for (unsigned long at = 0; at < reads / 10; at++) check(portcullis_read(permission, 0, into, bytes));
  clock_gettime(CLOCK_MONOTONIC, &begun);
  for (unsigned long at = 0; at < reads; at++) check(portcullis_read(permission, 0, into, bytes));
  clock_gettime(CLOCK_MONOTONIC, &ended);
  double nanoseconds = (double)(ended.tv_sec - begun.tv_sec) * 1e9 + (double)(ended.tv_nsec - begun.tv_nsec);
  printf("%.1f\n", nanoseconds / (double)reads);
  free(into);
  check(portcullis_session_close(session));
  return 0;
}
