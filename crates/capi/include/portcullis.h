// Portcullis: protected remote memory, for C.
//
// A memory node lends its memory. Clients read and write it one-sided. Each client can touch only the bytes that it holds a live
// permission on. When a permission ends, the NIC refuses accesses, whatever the client does.
//
// Results
//   A function that returns int returns 0, or the number of an error. Numbers and names never change: docs/errors.md lists them.
//   portcullis_last_error tells more of the last failure on this thread. Results are written to what the last arguments point to,
//   and mean something only after 0.
//
// Handles
//   Handles are numbers, and structures of zeros stand for none. A handle that was closed, was never open or is of another kind
//   leads to the error 1101 (closed), never to memory. They are passed and copied as values.
//
// Ownership
//   Memory that a program passes in is the program's, and is not used after the call returns; the exceptions are said at
//   portcullis_operation. A session owns its permissions, buffers and keepers: they end with it. A table or a queue has a session of its
//   own and does not end with the one that it was opened by.
//   Pointers are null or lead to what their types say, and lengths are those of the memory behind the pointer beside them. Null
//   is an error where nothing else is said. Structures of options begin as zeros, which stand for the usual choice.
//
// Threads
//   Each function may be called from any thread. One thread at a time uses a session, a table or a queue: a second one gets the error
//   1102 (in-use) and does not wait. Threads that work at the same time open a session each. The functions about errors need no
//   session.
//
// Processes
//   Handles belong to the process that opened them. In a child of fork they lead to the error 1103 (forked); a child opens its own.
//
// Callbacks
//   A callback returns. It does not throw, and does not jump out by longjmp.
//
// Times are in microseconds, sizes in bytes, texts in UTF-8 with a zero at their end.


#ifndef PORTCULLIS_H
#define PORTCULLIS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>


// Bytes of an error's text, with the zero at its end. Longer texts are cut.
#define PORTCULLIS_TEXT_BYTES 512

// The call or its arguments make no sense.
#define PORTCULLIS_FAULT_CALLER 1

// Nobody's: the permission, the object or the name is no more.
#define PORTCULLIS_FAULT_ENDED 2

// The tenant's quota, its pause, or its other programs.
#define PORTCULLIS_FAULT_TENANT 3

// The node is gone, full, silent, or refuses everybody.
#define PORTCULLIS_FAULT_NODE 4

// The machine that the program runs on.
#define PORTCULLIS_FAULT_MACHINE 5

// Another program has broken the rules.
#define PORTCULLIS_FAULT_PEER 6

// A mistake in Portcullis.
#define PORTCULLIS_FAULT_LIBRARY 7

// Bytes of the longest name, with the zero at its end.
#define PORTCULLIS_NAME_BYTES 49

// The right to read.
#define PORTCULLIS_READ 1

// The right to write.
#define PORTCULLIS_WRITE 2

// The right to COMPARE_AND_SWAP and FETCH_AND_ADD.
#define PORTCULLIS_ATOMIC 4

// An object goes when its last permission ends.
#define PORTCULLIS_KEEP_NO 0

// An object stays until it is freed or its tenant's last client goes.
#define PORTCULLIS_KEEP_ATTACHED (UINT64_MAX - 1)

// An object stays until it is freed or the node ends.
#define PORTCULLIS_KEEP_PINNED UINT64_MAX

// Bytes of the longest text of a reference, with the zero at its end.
#define PORTCULLIS_OBJECT_TEXT_BYTES 64

// A read into `data`, or into `buffer`.
#define PORTCULLIS_OPERATION_READ 1

// A write from `data`, or from `buffer`.
#define PORTCULLIS_OPERATION_WRITE 2

// Writes `value` to the word at `offset` if it equals `compare`.
#define PORTCULLIS_OPERATION_COMPARE_AND_SWAP 3

// Adds `value` to the word at `offset`.
#define PORTCULLIS_OPERATION_FETCH_AND_ADD 4

// As `portcullis_allocate`, with `allocate`.
#define PORTCULLIS_OPERATION_ALLOCATE 5

// As `portcullis_acquire`, with `acquire`.
#define PORTCULLIS_OPERATION_ACQUIRE 6

// As `portcullis_revoke`. The handle of the permission is closed at once.
#define PORTCULLIS_OPERATION_REVOKE 7

// As `portcullis_revoke` with `frees`.
#define PORTCULLIS_OPERATION_REVOKE_AND_FREE 8

// As `portcullis_extend`, by `value` microseconds from when the operation begins.
#define PORTCULLIS_OPERATION_EXTEND 9

// Whatever is there.
#define PORTCULLIS_STORE_ALWAYS 0

// If the key is not there.
#define PORTCULLIS_STORE_IF_ABSENT 1

// If the key is there.
#define PORTCULLIS_STORE_IF_PRESENT 2

// If the key is there with the value `expected`.
#define PORTCULLIS_STORE_IF_EQUAL 3

// The condition did not hold, and nothing was changed.
#define PORTCULLIS_STORED_UNCHANGED 0

// The key was not there, and is now.
#define PORTCULLIS_STORED_INSERTED 1

// The key has a new value.
#define PORTCULLIS_STORED_REPLACED 2

// A permission that a session holds.
typedef struct portcullis_permission {
  // The session.
  uint64_t session;
  // Zero: none.
  uint64_t id;
} portcullis_permission;

// A session with a node. One thread uses it at a time.
typedef struct portcullis_session {
  // Zero: none.
  uint64_t id;
} portcullis_session;

// A buffer in a session's arena.
typedef struct portcullis_buffer {
  // The session.
  uint64_t session;
  // Zero: none.
  uint64_t id;
} portcullis_buffer;

// The failure of the last call on this thread that failed. Later calls that succeed leave it.
typedef struct portcullis_error {
  // Its number, as in docs/errors.md. Zero: no call has failed on this thread.
  int32_t number;
  // Whose fault it is: one of `PORTCULLIS_FAULT_...`.
  uint8_t fault;
  // Whether the same call may succeed later although the caller changes nothing.
  bool is_retryable;
  // What was wrong and what to do, for people.
  char text[PORTCULLIS_TEXT_BYTES];
} portcullis_error;

// Names one object for ever. Programs pass it on as its 24 bytes, or as text.
typedef struct portcullis_object {
  // The bytes.
  uint8_t bytes[24];
} portcullis_object;

// A name, and the object that has it.
typedef struct portcullis_name_entry {
  // The name, with a zero at its end.
  char name[PORTCULLIS_NAME_BYTES];
  // What this tenant's permissions over the object may allow, added up.
  uint8_t rights;
  // Zeros.
  uint8_t reserved[6];
  // The object.
  struct portcullis_object object;
  // Its bytes.
  uint64_t size;
} portcullis_name_entry;

// Takes one name of a list. Returns whether it wants more.
typedef bool (*portcullis_name_visitor)(void *context, const struct portcullis_name_entry *entry);

// A node in this process.
typedef struct portcullis_node {
  // Zero: none.
  uint64_t id;
} portcullis_node;

// How a session is set up. All zeros: as by default.
typedef struct portcullis_session_options {
  // Bytes of the arena, which all transfers and buffers take memory from. Zero: 4 MiB.
  uint64_t arena_bytes;
  // Operations that may be under way at once. Zero: 1024.
  uint32_t operations_max;
  // Zero.
  uint32_t reserved;
} portcullis_session_options;

// What `portcullis_allocate` asks for. All zeros but `size`: an exclusive permission with all rights for a second, over an
// object that goes with it.
typedef struct portcullis_allocate_options {
  // Bytes.
  uint64_t size;
  // The alignment of the first byte: a power of two up to 2 MiB. Zero: none.
  uint64_t alignment;
  // How long the permission lives, in microseconds. Zero: a second.
  uint64_t lifetime;
  // How long the object stays when it has no permission: `PORTCULLIS_KEEP_...`, or microseconds after the tenant's last
  // client has gone.
  uint64_t keep;
  // `PORTCULLIS_READ`, `PORTCULLIS_WRITE`, `PORTCULLIS_ATOMIC`, added up. Zero: all.
  uint8_t rights;
  // Whether others may have permissions over the object at the same time.
  bool is_shared;
  // Zeros.
  uint8_t reserved[6];
} portcullis_allocate_options;

// What `portcullis_acquire` asks for. All zeros but `object`: an exclusive permission with all rights over the whole object for a
// second, which waits a second for others.
typedef struct portcullis_acquire_options {
  // Which object.
  struct portcullis_object object;
  // Where the permission's bytes start in the object. Offsets of accesses count from there.
  uint64_t offset;
  // How many bytes. Zero: all the rest.
  uint64_t length;
  // How long the permission lives, in microseconds. Zero: a second.
  uint64_t lifetime;
  // How long the request waits for others that hold the bytes, in microseconds. Zero: a second; `UINT64_MAX`: not at all.
  uint64_t wait;
  // `PORTCULLIS_READ`, `PORTCULLIS_WRITE`, `PORTCULLIS_ATOMIC`, added up. Zero: all.
  uint8_t rights;
  // Whether others may have permissions over the bytes at the same time.
  bool is_shared;
  // Zeros.
  uint8_t reserved[6];
} portcullis_acquire_options;

// What a permission is.
typedef struct portcullis_permission_info {
  // The object.
  struct portcullis_object object;
  // Where the permission's bytes start in the object.
  uint64_t offset;
  // How many bytes.
  uint64_t length;
  // How long it lives from now, in microseconds, unless the node ends it before. Zero: its time is over.
  uint64_t remaining;
  // The rights, added up.
  uint8_t rights;
  // Whether others may have permissions over the bytes at the same time.
  bool is_shared;
  // Zeros.
  uint8_t reserved[6];
} portcullis_permission_info;

// What keeps a permission extended.
typedef struct portcullis_keeper {
  // The session.
  uint64_t session;
  // Zero: none.
  uint64_t id;
} portcullis_keeper;

// How a queue is made. All zeros: as by default.
typedef struct portcullis_queue_options {
  // How long a client's death can hold up others, in microseconds. Zero: 10 ms.
  uint64_t lease;
  // How long the queue stays when no client has a permission on it: `PORTCULLIS_KEEP_...` or microseconds. Zero: as
  // `PORTCULLIS_KEEP_ATTACHED`.
  uint64_t keep;
  // Slots of a segment, 64 to 1024. Zero: 1024.
  uint32_t segment_slots;
  // Bytes of a slot's cell, a multiple of 8. An entry takes as many slots of one segment as it fills cells. Zero: 64.
  uint32_t cell_bytes;
  // The most segments that the queue may have at a time. Zero: 1024.
  uint32_t segments_max;
  // Zero.
  uint32_t reserved;
} portcullis_queue_options;

// A queue. One thread uses the handle at a time.
typedef struct portcullis_queue {
  // Zero: none.
  uint64_t id;
} portcullis_queue;

// One operation. What its kind does not need is zero.
typedef struct portcullis_operation {
  // `PORTCULLIS_OPERATION_...`.
  uint32_t kind;
  // Zero.
  uint32_t reserved;
  // The caller's: the completion has the same.
  uint64_t tag;
  // The permission that the operation is under.
  struct portcullis_permission permission;
  // Where in the permission's memory.
  uint64_t offset;
  // Memory of the caller's, to read into or write from, if there is no `buffer`. What is written is copied at once. What is read is
  // copied when the completion is given out: until then the memory stays, and nobody else uses it.
  void *data;
  // Bytes of `data`.
  uint64_t length;
  // A buffer to read into or write from, all of it. Until the completion is given out it is the operation's.
  struct portcullis_buffer buffer;
  // See the kinds.
  uint64_t compare;
  // See the kinds.
  uint64_t value;
  // What to allocate. It may go when `portcullis_submit` returns.
  const struct portcullis_allocate_options *allocate;
  // What to acquire. It may go when `portcullis_submit` returns.
  const struct portcullis_acquire_options *acquire;
} portcullis_operation;

// An operation that has ended.
typedef struct portcullis_completion {
  // The operation's.
  uint64_t tag;
  // Reads and writes: the bytes moved. Atomics: the word's value before.
  uint64_t value;
  // Of allocations and acquisitions.
  struct portcullis_permission permission;
  // Zero, or the number of the error.
  int32_t error;
  // Whose fault the error is: `PORTCULLIS_FAULT_...`.
  uint8_t fault;
  // Whether the same operation may succeed later although the caller changes nothing.
  bool is_retryable;
  // Zeros.
  uint8_t reserved[2];
} portcullis_completion;

// How a table is made. All zeros: as by default.
typedef struct portcullis_table_options {
  // How long a client's death can hold up others who change the same keys, in microseconds. Zero: a second.
  uint64_t lease;
  // How long the table stays when no client has a permission on it: `PORTCULLIS_KEEP_...` or microseconds. Zero: as
  // `PORTCULLIS_KEEP_ATTACHED`.
  uint64_t keep;
  // Groups of buckets of a subtable; each has room for 21 keys. Zero: 256.
  uint32_t groups;
  // The table has at most two to this power subtables. Zero: 14.
  uint32_t depth_max;
} portcullis_table_options;

// A table of keys and values. One thread uses the handle at a time.
typedef struct portcullis_table {
  // Zero: none.
  uint64_t id;
} portcullis_table;

// Bytes of the caller's.
typedef struct portcullis_bytes {
  // The first one. Null, if there are none.
  const void *data;
  // How many.
  size_t length;
} portcullis_bytes;

// Takes one key of many: the number of the key in the call, and its value, or null if it is not there. Returns whether it wants
// more.
typedef bool (*portcullis_value_visitor)(void *context, size_t number, const struct portcullis_bytes *value);

// When a value is stored, and for how long. All zeros: always, and for ever.
typedef struct portcullis_store_options {
  // `PORTCULLIS_STORE_...`.
  uint32_t condition;
  // Zero.
  uint32_t reserved;
  // See `PORTCULLIS_STORE_IF_EQUAL`.
  struct portcullis_bytes expected;
  // After so many microseconds the key goes by itself. Zero: never.
  uint64_t live;
} portcullis_store_options;

// Takes one entry of a table. Returns whether it wants more.
typedef bool (*portcullis_entry_visitor)(void *context,
                                         struct portcullis_bytes key,
                                         struct portcullis_bytes value);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Reads bytes of the permission's memory. After an error parts of `data` may have been overwritten.
int portcullis_read(struct portcullis_permission permission, uint64_t offset, void *data, size_t length);

// Writes bytes to the permission's memory. After an error parts may have been written.
int portcullis_write(struct portcullis_permission permission,
                     uint64_t offset,
                     const void *data,
                     size_t length);

// Writes `swap` to the 8-byte word at `offset` if it equals `compare`. `before` is what it was.
int portcullis_compare_and_swap(struct portcullis_permission permission,
                                uint64_t offset,
                                uint64_t compare,
                                uint64_t swap,
                                uint64_t *before);

// Adds to the 8-byte word at `offset`, wrapping. `before` is what it was.
int portcullis_fetch_and_add(struct portcullis_permission permission,
                             uint64_t offset,
                             uint64_t add,
                             uint64_t *before);

// Takes a buffer from the session's arena. The program fills and reads its bytes at `data` while no operation uses the buffer. They
// stay where they are until `portcullis_buffer_release` or the session's end.
int portcullis_buffer_take(struct portcullis_session session,
                           uint32_t length,
                           struct portcullis_buffer *buffer,
                           void **data);

// Gives a buffer back to the arena.
int portcullis_buffer_release(struct portcullis_buffer buffer);

// Reads as many bytes as the buffer has, without a copy, and waits for it.
int portcullis_read_buffer(struct portcullis_permission permission,
                           uint64_t offset,
                           struct portcullis_buffer buffer);

// Writes the bytes of the buffer, without a copy, and waits for it.
int portcullis_write_buffer(struct portcullis_permission permission,
                            uint64_t offset,
                            struct portcullis_buffer buffer);

// What is known of the failure of the last call on this thread that failed.
void portcullis_last_error(struct portcullis_error *error);

// The stable name of an error: small letters and hyphens. Null: there is no such number. The text stays for ever.
const char *portcullis_error_name(int number);

// What an error means, in a sentence. Null: there is no such number. The text stays for ever.
const char *portcullis_error_meaning(int number);

// The version of the library, for example `0.1.0`. The text stays for ever.
const char *portcullis_version(void);

// Gives an object of this tenant a name: 1 to 48 bytes. Of several clients that publish one name at once, one succeeds.
int portcullis_publish(struct portcullis_session session,
                       const char* name,
                       const struct portcullis_object *object);

// Removes a name of this tenant. The object stays. What other tenants hold of it ends before this returns.
int portcullis_unpublish(struct portcullis_session session, const char* name);

// The object that has a name: with this tenant if `tenant` is null, otherwise with another that shares it with this one.
int portcullis_lookup(struct portcullis_session session,
                      const char* tenant,
                      const char* name,
                      struct portcullis_name_entry *entry);

// Calls `visitor` for each name of this tenant, in the order of their bytes, until it returns false; or for each that another
// `tenant` shares with this one. The visitor may use any handle.
int portcullis_names(struct portcullis_session session,
                     const char* tenant,
                     portcullis_name_visitor visitor,
                     void *context);

// Lets another tenant acquire permissions over a named object, with at most these rights, added up.
int portcullis_share(struct portcullis_session session, const char* name, const char* tenant, uint8_t rights);

// Shares a named object with another tenant no more. When this returns, no access of that tenant's can succeed.
int portcullis_unshare(struct portcullis_session session,
                       const char* name,
                       const char* tenant);

// Has an object belong to another one, its head: whoever the head is shared with has the same rights over the member.
int portcullis_include(struct portcullis_session session,
                       const struct portcullis_object *member,
                       const struct portcullis_object *head);

// Starts a node in this process, which lends so many bytes. `socket` may be null; otherwise other processes of this user come to the
// node at `shm:` and that path.
int portcullis_node_start(uint64_t memory,
                          const char* socket,
                          struct portcullis_node *node);

// Opens a session with a node of this process, for a tenant of any name. `options` may be null.
int portcullis_node_connect(struct portcullis_node node,
                            const char* tenant,
                            const struct portcullis_session_options *options,
                            struct portcullis_session *session);

// Ends a node of this process. Its sessions learn of it with their next call.
int portcullis_node_stop(struct portcullis_node node);

// Allocates memory of the node, with a permission over it.
int portcullis_allocate(struct portcullis_session session,
                        const struct portcullis_allocate_options *options,
                        struct portcullis_permission *permission);

// Acquires a permission over an object that exists.
int portcullis_acquire(struct portcullis_session session,
                       const struct portcullis_acquire_options *options,
                       struct portcullis_permission *permission);

// Extends a permission so that it ends so many microseconds from now. The node's CPU has no part in it.
int portcullis_extend(struct portcullis_permission permission, uint64_t microseconds);

// Ends a permission, and frees its object, if `frees` says so, once no other client holds it. The handle is closed, whatever comes
// of this. An error says that the permission had ended before, or that the session is over.
int portcullis_revoke(struct portcullis_permission permission,
                      bool frees);

// What a permission is.
int portcullis_info(struct portcullis_permission permission, struct portcullis_permission_info *info);

// Frees an object that is kept, once its last permission has ended.
int portcullis_free_object(struct portcullis_session session, const struct portcullis_object *object);

// Keeps an object for another time from here on: `PORTCULLIS_KEEP_...`, or microseconds after the tenant's last client has gone.
int portcullis_keep_object(struct portcullis_session session,
                           const struct portcullis_object *object,
                           uint64_t time);

// Keeps a permission extended, `microseconds` at a time, until `portcullis_keeper_stop`, the session's end, or the node's longest
// lifetime. A thread of the library does it.
int portcullis_keep(struct portcullis_permission permission,
                    uint64_t microseconds,
                    struct portcullis_keeper *keeper);

// Whether a keeper still extends its permission. It stops when the node refuses, or when the permission has ended.
int portcullis_keeper_is_kept(struct portcullis_keeper keeper,
                              bool *is_kept);

// Stops a keeper. The permission lives on until its deadline.
int portcullis_keeper_stop(struct portcullis_keeper keeper);

// The reference as text, with a zero at its end: at most `PORTCULLIS_OBJECT_TEXT_BYTES` bytes.
int portcullis_object_to_text(const struct portcullis_object *object, char *text, size_t room);

// The reference that a text says.
int portcullis_object_from_text(const char* text, struct portcullis_object *object);

// Makes an empty queue, with a name in the tenant unless `name` is null. `options` may be null. The handle has a session of its own.
int portcullis_queue_create(struct portcullis_session session,
                            const char* name,
                            const struct portcullis_queue_options *options,
                            struct portcullis_queue *queue);

// Opens a queue that exists, by its name in the tenant, or by the object that is its head; the other is null. The handle has a
// session of its own.
int portcullis_queue_open(struct portcullis_session session,
                          const char* name,
                          const struct portcullis_object *head,
                          struct portcullis_queue *queue);

// The object that names the queue: others open it by this.
int portcullis_queue_head(struct portcullis_queue queue, struct portcullis_object *head);

// Adds an entry at the end. After an error of the session it may or may not have been added, and never twice.
int portcullis_queue_push(struct portcullis_queue queue, const void *entry, size_t length);

// Takes the first entry, and waits for one for `microseconds` at most. `is_found` says whether there was one. If `room` is too short
// for the entry, which is an error, `length` says how long it is, and the handle keeps it for the next call.
int portcullis_queue_pop(struct portcullis_queue queue,
                         uint64_t microseconds,
                         void *entry,
                         size_t room,
                         size_t *length,
                         bool *is_found);

// Ends the queue: nobody pushes any more, and consumers take what is left. It cannot be undone.
int portcullis_queue_end(struct portcullis_queue queue);

// Closes the handle. The queue stays.
int portcullis_queue_close(struct portcullis_queue queue);

// Connects to the node at an address: `shm:/run/portcullis.sock`, `rdma:HOST:PORT`, `udp:HOST:PORT`, or `name:TENANT/NODE`.
// `options` may be null.
int portcullis_connect(const char* address,
                       const struct portcullis_session_options *options,
                       struct portcullis_session *session);

// Ends a session, with everything that belongs to it: permissions, buffers, keepers, and operations under way. Memory that
// operations were submitted with is free when this returns.
int portcullis_session_close(struct portcullis_session session);

// The client's number on its node. The node's audit log names the client by it.
int portcullis_session_number(struct portcullis_session session, uint64_t *number);

// The descriptor that an event loop waits for until it is readable, after `portcullis_arm`. It stays the same for the life of
// the session. Only the session reads from it, and the session closes it.
int portcullis_descriptor(struct portcullis_session session,
                          int *descriptor);

// Prepares the descriptor: from now on it becomes readable when something arrives or the node goes. `microseconds` is how long
// the event loop may wait before it calls `portcullis_poll`; zero: something is there already; `UINT64_MAX`: as long as it
// likes. Any other call on the session undoes this, so it comes last before the wait.
int portcullis_arm(struct portcullis_session session,
                   uint64_t *microseconds);

// Takes in what has arrived, without waiting. `ended` is how many completions `portcullis_wait` has to give.
int portcullis_poll(struct portcullis_session session, size_t *ended);

// Submits operations, in order, with one doorbell. It never waits: what has no room begins when others have ended. Each operation
// gets one completion from `portcullis_wait`, also if it could not begin. The error of this call itself says that nothing was
// submitted.
int portcullis_submit(struct portcullis_session session,
                      const struct portcullis_operation *operations,
                      size_t count);

// Waits until `at_least` operations have ended, none is under way any more, or `microseconds` have passed (`UINT64_MAX`: as long as
// it takes), and gives out up to `room` completions in the order of their ends. With `at_least` of zero it does not wait.
int portcullis_wait(struct portcullis_session session,
                    struct portcullis_completion *completions,
                    size_t room,
                    size_t at_least,
                    uint64_t microseconds,
                    size_t *count);

// Makes an empty table, with a name in the tenant unless `name` is null. `options` may be null. The handle has a session of its own.
int portcullis_table_create(struct portcullis_session session,
                            const char* name,
                            const struct portcullis_table_options *options,
                            struct portcullis_table *table);

// Opens a table that exists, by its name in the tenant, or by the object that is its head; the other is null. The handle has a
// session of its own.
int portcullis_table_open(struct portcullis_session session,
                          const char* name,
                          const struct portcullis_object *head,
                          bool is_read_only,
                          struct portcullis_table *table);

// The object that names the table: others open it by this.
int portcullis_table_head(struct portcullis_table table, struct portcullis_object *head);

// The value of a key. `length` is its length, also where `room` is too short for it, which is an error. `is_found` says whether the
// key is there.
int portcullis_table_get(struct portcullis_table table,
                         const void *key,
                         size_t key_length,
                         void *value,
                         size_t room,
                         size_t *length,
                         bool *is_found);

// The values of many keys, which are looked up at the same time: `visitor` is called for each, in their order, until it returns
// false. The visitor may use any handle.
int portcullis_table_get_many(struct portcullis_table table,
                              const struct portcullis_bytes *keys,
                              size_t count,
                              portcullis_value_visitor visitor,
                              void *context);

// Stores a value. `options` may be null: always, and for ever. `stored` may be null; otherwise it becomes one of
// `PORTCULLIS_STORED_...`.
int portcullis_table_store(struct portcullis_table table,
                           const void *key,
                           size_t key_length,
                           const void *value,
                           size_t value_length,
                           const struct portcullis_store_options *options,
                           uint32_t *stored);

// Removes a key. `was_there` may be null.
int portcullis_table_remove(struct portcullis_table table,
                            const void *key,
                            size_t key_length,
                            bool *was_there);

// Calls `visitor` for each entry of the table, in no order, until it returns false. Entries that come or go meanwhile may be among
// them or not. The visitor may use any handle but this one.
int portcullis_table_visit(struct portcullis_table table,
                           portcullis_entry_visitor visitor,
                           void *context);

// Closes the handle. The table stays.
int portcullis_table_close(struct portcullis_table table);

// Frees the table, with all its keys, and removes its name, unless `name` is null. The handle is closed.
int portcullis_table_destroy(struct portcullis_table table, const char* name);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* PORTCULLIS_H */
