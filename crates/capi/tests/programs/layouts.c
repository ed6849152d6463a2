// The layouts that C and Rust agree on. src/layouts.rs asserts the same numbers: compiled as C and as C++.
#include <portcullis.h>

#ifdef __cplusplus
#define SAME(what) static_assert(what, #what)
#else
#define SAME(what) _Static_assert(what, #what)
#endif

SAME(sizeof(portcullis_session) == 8);
SAME(sizeof(portcullis_table) == 8);
SAME(sizeof(portcullis_queue) == 8);
SAME(sizeof(portcullis_node) == 8);
SAME(sizeof(portcullis_permission) == 16);
SAME(sizeof(portcullis_buffer) == 16);
SAME(sizeof(portcullis_keeper) == 16);
SAME(sizeof(portcullis_object) == 24);
SAME(sizeof(portcullis_error) == 520);
SAME(offsetof(portcullis_error, text) == 6);
SAME(sizeof(portcullis_session_options) == 16);
SAME(sizeof(portcullis_arena) == 24);
SAME(offsetof(portcullis_arena, cuda) == 16);
SAME(sizeof(portcullis_allocate_options) == 40);
SAME(offsetof(portcullis_allocate_options, rights) == 32);
SAME(sizeof(portcullis_acquire_options) == 64);
SAME(offsetof(portcullis_acquire_options, wait) == 48);
SAME(sizeof(portcullis_permission_info) == 56);
SAME(sizeof(portcullis_operation) == 104);
SAME(offsetof(portcullis_operation, data) == 40);
SAME(offsetof(portcullis_operation, acquire) == 96);
SAME(sizeof(portcullis_completion) == 40);
SAME(offsetof(portcullis_completion, error) == 32);
SAME(sizeof(portcullis_name_entry) == 88);
SAME(offsetof(portcullis_name_entry, object) == 56);
SAME(sizeof(portcullis_table_options) == 24);
SAME(sizeof(portcullis_bytes) == 16);
SAME(sizeof(portcullis_store_options) == 32);
SAME(sizeof(portcullis_queue_options) == 32);
SAME(offsetof(portcullis_queue_options, claims) == 28);
SAME(sizeof(portcullis_claim_options) == 32);
SAME(offsetof(portcullis_claim_options, dead_letters) == 16);
SAME(sizeof(portcullis_claim) == 32);

int main(void) { return 0; }
