// What breaks the rules gets an error that says so: null, closed and foreign handles, two threads, a fork, wrong arguments.
#include "expect.h"
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

static portcullis_node node;

struct shared {
  portcullis_session session;
  portcullis_permission permission;
  atomic_bool stop;
  atomic_int refused;
};

// Uses the session of another thread.
static void *intrude(void *given) {
  struct shared *shared = given;
  char byte;
  while (!atomic_load(&shared->stop)) {
    int result = portcullis_read(shared->permission, 0, &byte, 1);
    if (result != 0) {
      FAILS(result, "in-use");
      atomic_fetch_add(&shared->refused, 1);
    }
  }
  return NULL;
}

static void two_threads(struct shared *shared) {
  pthread_t thread;
  EXPECT(pthread_create(&thread, NULL, intrude, shared) == 0);
  static char bytes[1 << 16];
  // Until the other thread was refused, and this one as well or not: each call is whole.
  while (atomic_load(&shared->refused) == 0) {
    int result = portcullis_read(shared->permission, 0, bytes, sizeof bytes);
    if (result != 0) FAILS(result, "in-use");
  }
  atomic_store(&shared->stop, true);
  EXPECT(pthread_join(thread, NULL) == 0);
  OK(portcullis_read(shared->permission, 0, bytes, sizeof bytes));
}

static void a_fork(struct shared *shared) {
  pid_t child = fork();
  EXPECT(child >= 0);
  if (child == 0) {
    char byte;
    size_t ended;
    FAILS(portcullis_read(shared->permission, 0, &byte, 1), "forked");
    FAILS(portcullis_revoke(shared->permission, true), "forked");
    FAILS(portcullis_poll(shared->session, &ended), "forked");
    FAILS(portcullis_session_close(shared->session), "forked");
    FAILS(portcullis_node_stop(node), "forked");
    _exit(0);
  }
  int status = 1;
  EXPECT(waitpid(child, &status, 0) == child);
  EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  char byte;
  OK(portcullis_read(shared->permission, 0, &byte, 1));
}

int main(void) {
  struct shared shared = {.refused = 0};
  portcullis_session none = {0}, made_up = {0x123456789abcdef0}, other;
  portcullis_permission no_permission = {0, 0}, permission;
  portcullis_table table = {0};
  portcullis_queue queue = {0};
  portcullis_allocate_options asked = {.size = 1 << 16, .lifetime = 9000000};
  portcullis_error error;
  uint64_t word;
  size_t size;
  bool found;

  portcullis_last_error(NULL);
  FAILS(portcullis_connect(NULL, NULL, &other), "null-argument");
  FAILS(portcullis_connect("shm:/nowhere", NULL, NULL), "null-argument");
  FAILS(portcullis_connect("shm:/nowhere", NULL, &other), "no-node");
  FAILS(portcullis_connect("\xff\xfe", NULL, &other), "not-text");
  FAILS(portcullis_connect("nowhere", NULL, &other), "unknown-address");
  OK(portcullis_node_start(64 << 20, NULL, &node));
  FAILS(portcullis_node_connect(node, NULL, NULL, &other), "null-argument");
  OK(portcullis_node_connect(node, "red", NULL, &shared.session));
  OK(portcullis_node_connect(node, "red", NULL, &other));
  OK(portcullis_allocate(shared.session, &asked, &shared.permission));

  FAILS(portcullis_poll(none, &size), "closed");
  FAILS(portcullis_poll(made_up, &size), "closed");
  FAILS(portcullis_poll(shared.session, NULL), "null-argument");
  FAILS(portcullis_allocate(shared.session, NULL, &permission), "null-argument");
  asked.rights = 64;
  FAILS(portcullis_allocate(shared.session, &asked, &permission), "bad-argument");
  FAILS(portcullis_read(no_permission, 0, &word, 8), "closed");
  FAILS(portcullis_read(shared.permission, 0, NULL, 8), "null-argument");
  FAILS(portcullis_read(shared.permission, 0, &word, SIZE_MAX), "bad-argument");
  FAILS(portcullis_fetch_and_add(shared.permission, 0, 1, NULL), "null-argument");
  // Handles of the wrong kind: a node, a session and a table are numbers of one sort.
  FAILS(portcullis_session_close((portcullis_session){node.id}), "closed");
  FAILS(portcullis_node_stop((portcullis_node){shared.session.id}), "closed");
  FAILS(portcullis_table_get((portcullis_table){shared.session.id}, "k", 1, NULL, 0, &size, &found), "closed");
  FAILS(portcullis_table_close(table), "closed");
  FAILS(portcullis_queue_push(queue, "x", 1), "closed");
  // A permission of another session.
  permission = (portcullis_permission){other.id, shared.permission.id};
  FAILS(portcullis_read(permission, 0, &word, 8), "closed");
  portcullis_operation foreign = {.kind = PORTCULLIS_OPERATION_READ, .permission = shared.permission, .data = &word, .length = 8};
  OK(portcullis_submit(other, &foreign, 1));
  portcullis_completion completion;
  OK(portcullis_wait(other, &completion, 1, 1, UINT64_MAX, &size));
  EXPECT(size == 1);
  FAILS(completion.error, "foreign-permission");
  portcullis_buffer buffer;
  void *data;
  FAILS(portcullis_buffer_take(other, UINT32_MAX, &buffer, &data), "arena-full");
  OK(portcullis_buffer_take(other, 8, &buffer, &data));
  FAILS(portcullis_read_buffer(shared.permission, 0, buffer), "foreign-buffer");
  FAILS(portcullis_submit(other, NULL, 1), "null-argument");
  OK(portcullis_submit(other, NULL, 0));
  FAILS(portcullis_names(other, NULL, NULL, NULL), "null-argument");
  FAILS(portcullis_publish(other, "", &(portcullis_object){{0}}), "object-name-length");

  two_threads(&shared);
  a_fork(&shared);

  // The session ends under operations that are under way, and under everything that it owns.
  static char place[1 << 16];
  portcullis_operation operation = {.kind = PORTCULLIS_OPERATION_READ, .permission = shared.permission, .data = place, .length = sizeof place};
  OK(portcullis_submit(shared.session, &operation, 1));
  OK(portcullis_session_close(shared.session));
  FAILS(portcullis_read(shared.permission, 0, &word, 8), "closed");
  portcullis_last_error(&error);
  EXPECT(error.fault == PORTCULLIS_FAULT_CALLER && strlen(error.text) > 0);
  // The node ends under a session.
  OK(portcullis_allocate(other, &(portcullis_allocate_options){.size = 64}, &permission));
  OK(portcullis_node_stop(node));
  FAILS(portcullis_read(permission, 0, &word, 8), "node-gone");
  portcullis_last_error(&error);
  EXPECT(error.fault == PORTCULLIS_FAULT_NODE);
  OK(portcullis_session_close(other));
  return 0;
}
