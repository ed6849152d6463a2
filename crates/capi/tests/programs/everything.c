// Each function does what the header says, in C.
#define _GNU_SOURCE
#include "expect.h"
#include <time.h>

static portcullis_node node;

static portcullis_session connected(const char *tenant) {
  portcullis_session session;
  OK(portcullis_node_connect(node, tenant, NULL, &session));
  return session;
}

static void accesses_that_wait(void) {
  portcullis_session session = connected("red");
  portcullis_allocate_options asked = {.size = 4096, .alignment = 4096, .lifetime = 5000000, .keep = PORTCULLIS_KEEP_ATTACHED};
  portcullis_permission permission;
  OK(portcullis_allocate(session, &asked, &permission));
  OK(portcullis_write(permission, 100, "hello, remote memory", 20));
  char bytes[20];
  OK(portcullis_read(permission, 100, bytes, sizeof bytes));
  EXPECT(memcmp(bytes, "hello, remote memory", 20) == 0);
  OK(portcullis_read(permission, 4096, NULL, 0));

  uint64_t before = 1;
  OK(portcullis_fetch_and_add(permission, 8, 41, &before));
  EXPECT(before == 0);
  OK(portcullis_compare_and_swap(permission, 8, 41, 7, &before));
  EXPECT(before == 41);
  OK(portcullis_compare_and_swap(permission, 8, 41, 8, &before));
  EXPECT(before == 7);
  FAILS(portcullis_fetch_and_add(permission, 4, 1, &before), "misaligned");
  FAILS(portcullis_read(permission, 4090, bytes, sizeof bytes), "outside-range");

  portcullis_permission_info info;
  OK(portcullis_info(permission, &info));
  EXPECT(info.length == 4096 && info.offset == 0 && !info.is_shared);
  EXPECT(info.rights == (PORTCULLIS_READ | PORTCULLIS_WRITE | PORTCULLIS_ATOMIC));
  EXPECT(info.remaining > 0 && info.remaining <= 5000000);
  OK(portcullis_extend(permission, 8000000));
  OK(portcullis_info(permission, &info));
  EXPECT(info.remaining > 5000000);

  char text[PORTCULLIS_OBJECT_TEXT_BYTES];
  portcullis_object back;
  OK(portcullis_object_to_text(&info.object, text, sizeof text));
  OK(portcullis_object_from_text(text, &back));
  EXPECT(memcmp(&back, &info.object, sizeof back) == 0);
  FAILS(portcullis_object_from_text("nothing", &back), "unknown-object-ref");
  FAILS(portcullis_object_to_text(&info.object, text, 5), "buffer-too-short");

  portcullis_acquire_options wanted = {.object = info.object, .wait = UINT64_MAX};
  portcullis_permission other;
  FAILS(portcullis_acquire(session, &wanted, &other), "conflict");
  OK(portcullis_revoke(permission, false));
  FAILS(portcullis_read(permission, 0, bytes, 1), "closed");
  wanted = (portcullis_acquire_options){
      .object = info.object, .offset = 100, .length = 20, .rights = PORTCULLIS_READ, .is_shared = true};
  OK(portcullis_acquire(session, &wanted, &permission));
  OK(portcullis_acquire(session, &wanted, &other));
  OK(portcullis_read(permission, 7, bytes, 6));
  EXPECT(memcmp(bytes, "remote", 6) == 0);
  FAILS(portcullis_write(permission, 0, "x", 1), "wrong-right");
  OK(portcullis_revoke(other, false));
  OK(portcullis_revoke(permission, false));
  OK(portcullis_keep_object(session, &info.object, PORTCULLIS_KEEP_ATTACHED));
  FAILS(portcullis_free_object(session, &info.object, 3), "bad-argument");
  OK(portcullis_free_object(session, &info.object, PORTCULLIS_HOLDERS_END));
  FAILS(portcullis_acquire(session, &wanted, &permission), "object-gone");
  portcullis_error error;
  portcullis_last_error(&error);
  EXPECT(error.number == 216 && error.fault == PORTCULLIS_FAULT_ENDED && !error.is_retryable);
  uint64_t number;
  OK(portcullis_session_number(session, &number));
  OK(portcullis_session_close(session));
  FAILS(portcullis_session_close(session), "closed");
}

static void buffers_batches_and_completions(void) {
  portcullis_session session = connected("red");
  portcullis_allocate_options asked = {.size = 1 << 16, .lifetime = 5000000};
  portcullis_permission permission;
  OK(portcullis_allocate(session, &asked, &permission));
  portcullis_buffer buffer;
  void *place;
  OK(portcullis_buffer_take(session, 4096, &buffer, &place));
  memset(place, 'b', 4096);
  portcullis_arena arena;
  OK(portcullis_session_arena(session, PORTCULLIS_CUDA_NO, &arena));
  EXPECT(!arena.cuda && (uintptr_t)arena.data % 4096 == 0);
  EXPECT((char *)place > (char *)arena.data && (char *)place + 4096 <= (char *)arena.data + arena.length);
  FAILS(portcullis_session_arena(session, 3, &arena), "bad-argument");
  // There may or may not be a GPU: either way the call says so, and the session goes on.
  OK(portcullis_session_arena(session, PORTCULLIS_CUDA_IF_POSSIBLE, &arena));
  EXPECT(arena.data != NULL && arena.length > 4096);
  OK(portcullis_write_buffer(permission, 0, buffer));
  memset(place, 0, 4096);
  OK(portcullis_read_buffer(permission, 0, buffer));
  EXPECT(((char *)place)[4095] == 'b');
  FAILS(portcullis_read_buffer(permission, 1 << 16, buffer), "outside-range");
  OK(portcullis_read_buffer(permission, 4096, buffer));

  enum { MANY = 3000 };
  static uint64_t words[MANY];
  static portcullis_operation operations[MANY + 4];
  for (uint64_t at = 0; at < MANY; at++) {
    words[at] = at;
    operations[at] = (portcullis_operation){.kind = at % 2 ? PORTCULLIS_OPERATION_WRITE : PORTCULLIS_OPERATION_READ,
                                            .tag = at,
                                            .permission = permission,
                                            .offset = at * 8,
                                            .data = &words[at],
                                            .length = 8};
  }
  operations[MANY] = (portcullis_operation){.kind = PORTCULLIS_OPERATION_READ, .tag = MANY, .permission = permission, .buffer = buffer};
  operations[MANY + 1] = (portcullis_operation){.kind = PORTCULLIS_OPERATION_ALLOCATE, .tag = MANY + 1, .allocate = &asked};
  operations[MANY + 2] = (portcullis_operation){.kind = 99, .tag = MANY + 2};
  operations[MANY + 3] = (portcullis_operation){.kind = PORTCULLIS_OPERATION_FETCH_AND_ADD, .tag = MANY + 3, .permission = permission, .offset = 1 << 16, .value = 1};
  OK(portcullis_submit(session, operations, MANY + 4));
  FAILS(portcullis_buffer_release(buffer), "under-way");
  static bool seen[MANY + 4];
  portcullis_permission allocated = {0};
  for (size_t taken = 0; taken < MANY + 4;) {
    portcullis_completion completions[100];
    size_t count = 0;
    OK(portcullis_wait(session, completions, 100, 1, UINT64_MAX, &count));
    EXPECT(count > 0);
    for (size_t at = 0; at < count; at++) {
      uint64_t tag = completions[at].tag;
      EXPECT(!seen[tag]);
      seen[tag] = true;
      const char *name = portcullis_error_name(completions[at].error);
      if (tag == MANY + 2) EXPECT(strcmp(name, "bad-argument") == 0);
      else if (tag == MANY + 3) EXPECT(strcmp(name, "outside-range") == 0);
      else EXPECT(completions[at].error == 0);
      if (tag == MANY + 1) allocated = completions[at].permission;
    }
    taken += count;
  }
  size_t count = 1;
  portcullis_completion none;
  OK(portcullis_wait(session, &none, 1, 1, 1000, &count));
  EXPECT(count == 0);
  OK(portcullis_buffer_release(buffer));
  FAILS(portcullis_buffer_release(buffer), "closed");
  portcullis_operation rest[] = {
      {.kind = PORTCULLIS_OPERATION_EXTEND, .permission = allocated, .value = 8000000},
      {.kind = PORTCULLIS_OPERATION_COMPARE_AND_SWAP, .permission = allocated, .compare = 0, .value = 5},
      {.kind = PORTCULLIS_OPERATION_REVOKE_AND_FREE, .permission = permission},
  };
  OK(portcullis_submit(session, rest, 3));
  portcullis_completion last[3];
  OK(portcullis_wait(session, last, 3, 3, UINT64_MAX, &count));
  EXPECT(count == 3);
  for (int at = 0; at < 3; at++) EXPECT(last[at].error == 0);
  FAILS(portcullis_read(permission, 0, words, 8), "closed");
  size_t ended;
  OK(portcullis_poll(session, &ended));
  EXPECT(ended == 0);
  uint64_t microseconds;
  int descriptor = -1;
  OK(portcullis_descriptor(session, &descriptor));
  EXPECT(descriptor >= 0);
  OK(portcullis_arm(session, &microseconds));
  OK(portcullis_session_close(session));
}

static void keepers(void) {
  portcullis_session session = connected("red");
  portcullis_allocate_options asked = {.size = 64, .lifetime = 300000};
  portcullis_permission permission;
  portcullis_keeper keeper;
  OK(portcullis_allocate(session, &asked, &permission));
  OK(portcullis_keep(permission, 300000, &keeper));
  portcullis_permission_info info;
  uint64_t word;
  // Longer than the first lease.
  struct timespec begun, now;
  clock_gettime(CLOCK_MONOTONIC, &begun);
  do {
    OK(portcullis_read(permission, 0, &word, sizeof word));
    clock_gettime(CLOCK_MONOTONIC, &now);
  } while (now.tv_sec - begun.tv_sec < 1);
  bool is_kept = false;
  OK(portcullis_keeper_is_kept(keeper, &is_kept));
  EXPECT(is_kept);
  OK(portcullis_keeper_stop(keeper));
  FAILS(portcullis_keeper_is_kept(keeper, &is_kept), "closed");
  do {
    OK(portcullis_info(permission, &info));
  } while (info.remaining > 0);
  FAILS(portcullis_read(permission, 0, &word, sizeof word), "expired");
  OK(portcullis_session_close(session));
}

static bool count_names(void *context, const portcullis_name_entry *entry) {
  EXPECT(strcmp(entry->name, "weights") == 0 && entry->size >= 64);
  ++*(int *)context;
  return true;
}

static void names_and_shares(void) {
  portcullis_session red = connected("red"), blue = connected("blue");
  portcullis_allocate_options asked = {.size = 64, .lifetime = 5000000, .keep = PORTCULLIS_KEEP_ATTACHED, .is_shared = true};
  portcullis_permission permission, member;
  OK(portcullis_allocate(red, &asked, &permission));
  OK(portcullis_allocate(red, &asked, &member));
  portcullis_permission_info info, info_of_member;
  OK(portcullis_info(permission, &info));
  OK(portcullis_info(member, &info_of_member));
  OK(portcullis_publish(red, "weights", &info.object));
  FAILS(portcullis_publish(red, "weights", &info_of_member.object), "name-taken");
  OK(portcullis_include(red, &info_of_member.object, &info.object));
  portcullis_name_entry entry;
  OK(portcullis_lookup(red, NULL, "weights", &entry));
  EXPECT(memcmp(&entry.object, &info.object, sizeof entry.object) == 0);
  FAILS(portcullis_lookup(blue, "red", "weights", &entry), "no-such-name");
  OK(portcullis_share(red, "weights", "blue", PORTCULLIS_READ));
  OK(portcullis_lookup(blue, "red", "weights", &entry));
  EXPECT(entry.rights == PORTCULLIS_READ);
  int count = 0;
  OK(portcullis_names(red, NULL, count_names, &count));
  OK(portcullis_names(blue, "red", count_names, &count));
  EXPECT(count == 2);
  OK(portcullis_write(permission, 0, "shared", 6));
  portcullis_acquire_options wanted = {.object = entry.object, .rights = PORTCULLIS_READ, .is_shared = true, .lifetime = 5000000};
  portcullis_permission of_blue;
  OK(portcullis_acquire(blue, &wanted, &of_blue));
  char bytes[6];
  OK(portcullis_read(of_blue, 0, bytes, 6));
  EXPECT(memcmp(bytes, "shared", 6) == 0);
  OK(portcullis_unshare(red, "weights", "blue"));
  FAILS(portcullis_read(of_blue, 0, bytes, 6), "revoked");
  OK(portcullis_unpublish(red, "weights"));
  FAILS(portcullis_lookup(red, NULL, "weights", &entry), "no-such-name");
  OK(portcullis_session_close(red));
  OK(portcullis_session_close(blue));
}

static bool see_value(void *context, size_t number, const portcullis_bytes *value) {
  EXPECT((number == 1) == (value == NULL));
  ++*(int *)context;
  return number < 1;
}

static bool see_entry(void *context, portcullis_bytes key, portcullis_bytes value) {
  EXPECT(key.length == 1 && value.length > 0);
  ++*(int *)context;
  return true;
}

/// Has enough as soon as it has seen one.
static bool see_one(void *context, portcullis_bytes key, portcullis_bytes value) {
  see_entry(context, key, value);
  return false;
}

static void tables(void) {
  portcullis_session session = connected("red");
  portcullis_table table, again;
  portcullis_table_options options = {.groups = 4};
  OK(portcullis_table_create(session, "table", &options, &table));
  FAILS(portcullis_table_create(session, "table", &options, &again), "name-taken");
  uint32_t stored;
  OK(portcullis_table_store(table, "a", 1, "first", 5, NULL, &stored));
  EXPECT(stored == PORTCULLIS_STORED_INSERTED);
  portcullis_store_options if_equal = {.condition = PORTCULLIS_STORE_IF_EQUAL, .expected = {"second", 6}};
  OK(portcullis_table_store(table, "a", 1, "third", 5, &if_equal, &stored));
  EXPECT(stored == PORTCULLIS_STORED_UNCHANGED);
  if_equal.expected = (portcullis_bytes){"first", 5};
  OK(portcullis_table_store(table, "a", 1, "third", 5, &if_equal, &stored));
  EXPECT(stored == PORTCULLIS_STORED_REPLACED);
  portcullis_object head;
  OK(portcullis_table_head(table, &head));
  OK(portcullis_table_open(session, NULL, &head, true, &again));
  char value[5];
  size_t length;
  bool is_found;
  OK(portcullis_table_get(again, "a", 1, value, sizeof value, &length, &is_found));
  EXPECT(is_found && length == 5 && memcmp(value, "third", 5) == 0);
  FAILS(portcullis_table_get(again, "a", 1, value, 4, &length, &is_found), "buffer-too-short");
  EXPECT(length == 5);
  OK(portcullis_table_get(again, "b", 1, value, sizeof value, &length, &is_found));
  EXPECT(!is_found);
  FAILS(portcullis_table_store(again, "b", 1, "x", 1, NULL, NULL), "read-only-table");
  portcullis_bytes keys[] = {{"a", 1}, {"b", 1}, {"a", 1}};
  int count = 0;
  OK(portcullis_table_get_many(table, keys, 3, see_value, &count));
  EXPECT(count == 2);
  OK(portcullis_table_store(table, "b", 1, "x", 1, NULL, NULL));
  count = 0;
  OK(portcullis_table_visit(table, see_entry, &count));
  EXPECT(count == 2);
  count = 0;
  OK(portcullis_table_visit(table, see_one, &count));
  EXPECT(count == 1);
  uint64_t removed = 1;
  OK(portcullis_table_remove_expired(table, &removed));
  EXPECT(removed == 0);
  OK(portcullis_table_remove_expired(table, NULL));
  FAILS(portcullis_table_remove_expired(again, NULL), "read-only-table");
  bool was_there;
  OK(portcullis_table_remove(table, "b", 1, &was_there));
  EXPECT(was_there);
  OK(portcullis_table_remove(table, "b", 1, NULL));
  OK(portcullis_table_close(again));
  OK(portcullis_table_open(session, "table", NULL, false, &again));
  OK(portcullis_table_close(again));
  FAILS(portcullis_table_open(session, "table", &head, false, &again), "bad-argument");
  OK(portcullis_session_close(session));
  // The table has a session of its own.
  OK(portcullis_table_get(table, "a", 1, value, sizeof value, &length, &is_found));
  OK(portcullis_table_destroy(table, "table"));
  FAILS(portcullis_table_close(table), "closed");
}

static void queues(void) {
  portcullis_session session = connected("red");
  portcullis_queue queue, again;
  portcullis_queue_options options = {.cell_bytes = 128};
  OK(portcullis_queue_create(session, "queue", &options, &queue));
  OK(portcullis_queue_open(session, "queue", NULL, &again));
  OK(portcullis_queue_push(queue, "first", 5));
  OK(portcullis_queue_push(queue, "second", 6));
  char entry[6];
  size_t length;
  bool is_found;
  FAILS(portcullis_queue_pop(again, 0, entry, 2, &length, &is_found), "buffer-too-short");
  EXPECT(length == 5);
  OK(portcullis_queue_pop(again, 0, entry, sizeof entry, &length, &is_found));
  EXPECT(is_found && length == 5 && memcmp(entry, "first", 5) == 0);
  OK(portcullis_queue_pop(again, 1000000, entry, sizeof entry, &length, &is_found));
  EXPECT(is_found && memcmp(entry, "second", 6) == 0);
  OK(portcullis_queue_pop(again, 1000, entry, sizeof entry, &length, &is_found));
  EXPECT(!is_found);
  portcullis_object head;
  OK(portcullis_queue_head(queue, &head));
  OK(portcullis_queue_close(again));
  OK(portcullis_queue_open(session, NULL, &head, &again));
  OK(portcullis_queue_end(queue));
  FAILS(portcullis_queue_push(again, "third", 5), "queue-closed");
  OK(portcullis_queue_close(again));
  OK(portcullis_queue_close(queue));
  OK(portcullis_session_close(session));
}

// Whether a claim finds an entry.
static bool claims_one(portcullis_queue queue, const portcullis_claim_options *options, portcullis_claim *claim) {
  char entry[8];
  size_t length;
  bool is_found;
  OK(portcullis_queue_claim(queue, options, entry, sizeof entry, &length, claim, &is_found));
  EXPECT(!is_found || (length == 3 && memcmp(entry, "job", 3) == 0));
  return is_found;
}

static void claims(void) {
  portcullis_session session = connected("red");
  portcullis_queue jobs, again, dead_letters;
  portcullis_queue_options options = {.claims = true};
  OK(portcullis_queue_create(session, "jobs", &options, &jobs));
  OK(portcullis_queue_open(session, "jobs", NULL, &again));
  OK(portcullis_queue_create(session, NULL, NULL, &dead_letters));
  portcullis_claim claim, other;
  EXPECT(!claims_one(jobs, NULL, &claim));
  // A claim of zeros, which a call that finds nothing leaves, acknowledges nothing that comes later.
  FAILS(portcullis_queue_acknowledge(jobs, &claim), "claim-ended");
  OK(portcullis_queue_push(jobs, "job", 3));

  // A claim whose entry had no room stays with the handle.
  char entry[8];
  size_t length;
  bool is_found;
  FAILS(portcullis_queue_claim(jobs, NULL, entry, 2, &length, &claim, &is_found), "buffer-too-short");
  EXPECT(is_found && length == 3);
  EXPECT(!claims_one(again, NULL, &other));
  EXPECT(claims_one(jobs, NULL, &claim) && claim.deliveries == 1);
  OK(portcullis_queue_give_back(jobs, &claim));
  FAILS(portcullis_queue_extend_claim(jobs, &claim, 1000000), "claim-ended");

  // A claim whose lease is over goes to another consumer.
  portcullis_claim_options soon = {.lease = 1000};
  portcullis_claim_options patient = {.wait = 10000000};
  EXPECT(claims_one(jobs, &soon, &claim) && claim.deliveries == 2);
  EXPECT(claims_one(again, &patient, &other) && other.deliveries == 3);
  FAILS(portcullis_queue_acknowledge(jobs, &claim), "claim-ended");
  portcullis_claim old = other;
  OK(portcullis_queue_extend_claim(again, &other, 20000000));
  FAILS(portcullis_queue_acknowledge(again, &old), "claim-ended");
  OK(portcullis_queue_give_back(again, &other));

  // What was delivered too often is a dead letter.
  portcullis_claim_options careful = {.deliveries_max = 3, .dead_letters = dead_letters, .wait = 10000};
  // This handle sees within milliseconds that the other one has given it back.
  for (is_found = false; !is_found;) {
    EXPECT(!claims_one(jobs, &careful, &claim) && claim.deliveries == 0);
    OK(portcullis_queue_pop(dead_letters, 0, entry, sizeof entry, &length, &is_found));
  }
  EXPECT(length == 3);
  OK(portcullis_queue_push(jobs, "job", 3));
  EXPECT(claims_one(jobs, &careful, &claim) && claim.deliveries == 1);
  OK(portcullis_queue_acknowledge(jobs, &claim));
  OK(portcullis_queue_acknowledge(jobs, &claim));

  // Claims that nobody has given out.
  uint64_t numbers[] = {0, 1, UINT32_MAX, INT64_MAX, UINT64_MAX};
  for (size_t at = 0; at < 125; at++) {
    portcullis_claim forged = {.words = {numbers[at % 5], numbers[at / 5 % 5], numbers[at / 25]}};
    FAILS(portcullis_queue_acknowledge(jobs, &forged), "claim-ended");
    FAILS(portcullis_queue_give_back(jobs, &forged), "claim-ended");
    FAILS(portcullis_queue_extend_claim(jobs, &forged, 1000000), "claim-ended");
  }
  FAILS(portcullis_queue_extend_claim(jobs, &claim, 1), "queue-option");
  FAILS(portcullis_queue_pop(jobs, 0, entry, sizeof entry, &length, &is_found), "queue-delivery");
  FAILS(portcullis_queue_claim(dead_letters, NULL, entry, sizeof entry, &length, &claim, &is_found), "queue-delivery");
  FAILS(portcullis_queue_acknowledge(jobs, NULL), "null-argument");
  FAILS(portcullis_queue_claim(jobs, NULL, NULL, 0, NULL, NULL, NULL), "null-argument");
  portcullis_claim_options wrong[] = {
      {.deliveries_max = 3}, {.deliveries_max = 1023, .dead_letters = dead_letters}, {.dead_letters = dead_letters}, {.deliveries_max = 3, .dead_letters = jobs}};
  for (size_t at = 0; at < 4; at++)
    FAILS(portcullis_queue_claim(jobs, &wrong[at], entry, sizeof entry, &length, &claim, &is_found), "bad-argument");
  OK(portcullis_queue_end(jobs));
  FAILS(portcullis_queue_claim(jobs, NULL, entry, sizeof entry, &length, &claim, &is_found), "queue-closed");
  OK(portcullis_queue_push(dead_letters, "late", 4));
  OK(portcullis_queue_destroy(jobs));
  FAILS(portcullis_queue_open(session, "jobs", NULL, &jobs), "no-such-name");
  OK(portcullis_queue_close(again));
  OK(portcullis_queue_destroy(dead_letters));
  FAILS(portcullis_queue_close(dead_letters), "closed");
  OK(portcullis_session_close(session));
}

int main(void) {
  EXPECT(strlen(portcullis_version()) > 0);
  EXPECT(portcullis_error_name(4711) == NULL && portcullis_error_meaning(-1) == NULL);
  EXPECT(strcmp(portcullis_error_name(PORTCULLIS_ERROR_EXPIRED), "expired") == 0);
  EXPECT(strlen(portcullis_error_meaning(PORTCULLIS_ERROR_EXPIRED)) > 0);
  OK(portcullis_node_start(64 << 20, NULL, &node));
  accesses_that_wait();
  buffers_batches_and_completions();
  keepers();
  names_and_shares();
  tables();
  queues();
  claims();
  OK(portcullis_node_stop(node));
  return 0;
}
