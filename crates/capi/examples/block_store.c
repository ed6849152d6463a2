// A block store in a node's memory: blocks of 4 KiB, each an object of its own, with a table that says which object has which
// number. A reader that holds a block while it is freed gets an error, and never somebody else's block.
//
//   cc block_store.c $(pkg-config --cflags --libs portcullis) -o block_store
//   ./block_store shm:portcullis.sock          (without an address: a node within the program)
#include <portcullis.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK_BYTES = 4096 };

struct store {
  portcullis_session session;
  portcullis_table blocks; // number of a block -> object that has its bytes
};

// Ends the program with what the last call has failed with.
static void check(int result, const char *what) {
  if (result == 0) return;
  portcullis_error error;
  portcullis_last_error(&error);
  fprintf(stderr, "%s: %s (%d %s)\n", what, error.text, error.number, portcullis_error_name(error.number));
  exit(1);
}

// Writes a block. Readers see the old one or the new one, because a block is never changed while its number leads to it.
static void put(struct store *store, uint64_t number, const void *bytes) {
  portcullis_object old;
  size_t length = 0;
  bool had_one = false;
  check(portcullis_table_get(store->blocks, &number, sizeof number, &old, sizeof old, &length, &had_one), "look up");

  portcullis_allocate_options block = {.size = BLOCK_BYTES, .lifetime = 5000000};
  portcullis_permission permission;
  check(portcullis_allocate(store->session, &block, &permission), "allocate");
  check(portcullis_write(permission, 0, bytes, BLOCK_BYTES), "write");
  portcullis_permission_info info;
  check(portcullis_info(permission, &info), "info");
  // Only now: a program that dies before has left nothing behind.
  check(portcullis_keep_object(store->session, &info.object, PORTCULLIS_KEEP_ATTACHED), "keep");
  check(portcullis_table_store(store->blocks, &number, sizeof number, &info.object, sizeof info.object, NULL, NULL),
        "store");
  check(portcullis_revoke(permission, false), "revoke");
  if (had_one) check(portcullis_free_object(store->session, &old, PORTCULLIS_HOLDERS_STAY), "free");
}

// Opens a block for reading, for as long as `lifetime` microseconds. Returns whether there is one.
static bool open_block(struct store *store, uint64_t number, uint64_t lifetime, portcullis_permission *permission) {
  portcullis_acquire_options wanted = {.rights = PORTCULLIS_READ, .is_shared = true, .lifetime = lifetime};
  size_t length = 0;
  bool is_found = false;
  check(portcullis_table_get(store->blocks, &number, sizeof number, &wanted.object, sizeof wanted.object, &length,
                             &is_found),
        "look up");
  if (!is_found) return false;
  check(portcullis_acquire(store->session, &wanted, permission), "acquire");
  return true;
}

int main(int count, char **arguments) {
  struct store store;
  portcullis_node node = {0};
  if (count > 1) {
    check(portcullis_connect(arguments[1], NULL, &store.session), "connect");
  } else {
    check(portcullis_node_start(64 << 20, NULL, &node), "start a node");
    check(portcullis_node_connect(node, "store", NULL, &store.session), "connect");
  }
  // A program that stands still for longer than the new table's first permission lives makes it anew.
  int made;
  do {
    made = portcullis_table_create(store.session, NULL, NULL, &store.blocks);
  } while (made == PORTCULLIS_ERROR_EXPIRED);
  check(made, "make a table");

  char block[BLOCK_BYTES], back[BLOCK_BYTES];
  for (uint64_t number = 0; number < 100; number++) {
    memset(block, 'a' + (int)(number % 26), sizeof block);
    put(&store, number, block);
  }
  portcullis_permission permission;
  for (uint64_t number = 0; number < 100; number++) {
    if (!open_block(&store, number, 5000000, &permission)) return 1;
    check(portcullis_read(permission, 0, back, sizeof back), "read");
    check(portcullis_revoke(permission, false), "revoke");
    memset(block, 'a' + (int)(number % 26), sizeof block);
    if (memcmp(block, back, sizeof back) != 0) return 1;
  }
  printf("100 blocks were written and read back\n");

  // A reader that is late: its permission has ended, and the block may have a new owner. It is told so.
  if (!open_block(&store, 7, 2000, &permission)) return 1;
  portcullis_permission_info info;
  do {
    check(portcullis_info(permission, &info), "info");
  } while (info.remaining > 0);
  memset(block, '?', sizeof block);
  put(&store, 7, block);
  int late = portcullis_read(permission, 0, back, sizeof back);
  portcullis_error error;
  portcullis_last_error(&error);
  printf("a late read: %d (%s)\n", late, portcullis_error_name(late));
  if (late == 0 || error.fault != PORTCULLIS_FAULT_ENDED) return 1;

  check(portcullis_table_destroy(store.blocks, NULL), "destroy the table");
  check(portcullis_session_close(store.session), "close");
  if (count == 1) check(portcullis_node_stop(node), "stop the node");
  return 0;
}
