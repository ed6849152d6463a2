// A stand-in for the library of CUDA's driver. It writes each call to the file PATH.log, where PATH is its own path.
//
// -DREFUSED="cuMemHostRegister" -DRESULT=2: that call returns this result, and is written as well.
// -DWITHOUT_REGISTER: a library that lacks the function.
// -DCURRENT_DEVICE=1: the calling thread has a context of that device.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#ifndef REFUSED
#define REFUSED ""
#define RESULT 0
#endif

static int called(const char *name, const char *format, ...) {
  Dl_info own;
  dladdr((void *)(uintptr_t)called, &own);
  char path[4096];
  snprintf(path, sizeof path, "%s.log", own.dli_fname);
  FILE *log = fopen(path, "a");
  fprintf(log, "%s", name);
  va_list values;
  va_start(values, format);
  vfprintf(log, format, values);
  va_end(values);
  fprintf(log, "\n");
  fclose(log);
  return strcmp(name, REFUSED) == 0 ? RESULT : 0;
}

static int is_mapped(void *address) {
  unsigned char resident;
  return mincore(address, 1, &resident) == 0;
}

static int context;

int cuInit(unsigned flags) { return called("cuInit", " %u", flags); }

int cuGetErrorName(int result, const char **name) {
  *name = "CUDA_ERROR_OF_THE_TEST";
  return result == 999 ? 1 : 0;
}

int cuDeviceGet(int *device, int ordinal) {
  *device = 40 + ordinal;
  return called("cuDeviceGet", " %d", ordinal);
}

int cuCtxGetCurrent(void **current) {
#ifdef CURRENT_DEVICE
  *current = &context;
#else
  *current = NULL;
#endif
  return 0;
}

int cuCtxGetDevice(int *device) {
#ifdef CURRENT_DEVICE
  *device = 40 + CURRENT_DEVICE;
  return 0;
#else
  (void)device;
  return 201;
#endif
}

int cuDevicePrimaryCtxRetain(void **retained, int device) {
  *retained = &context;
  return called("cuDevicePrimaryCtxRetain", " %d", device);
}

int cuDevicePrimaryCtxRelease_v2(int device) { return called("cuDevicePrimaryCtxRelease", " %d", device); }

int cuCtxPushCurrent_v2(void *pushed) { return called("cuCtxPushCurrent", " %d", pushed == &context); }

int cuCtxPopCurrent_v2(void **popped) {
  *popped = &context;
  return called("cuCtxPopCurrent", "");
}

#ifndef WITHOUT_REGISTER
int cuMemHostRegister_v2(void *address, size_t bytes, unsigned flags) {
  return called("cuMemHostRegister", " %zu %zu %u", (size_t)address, bytes, flags);
}
#endif

// A call after the memory was unmapped is written with a zero at its end.
int cuMemHostUnregister(void *address) {
  return called("cuMemHostUnregister", " %zu %d", (size_t)address, is_mapped(address));
}
