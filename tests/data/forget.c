/* Loaded with LD_PRELOAD into a process of the power cut tests: calls that put something on the disk do nothing, and say
   that they did. FORGET=all forgets all of them, FORGET=folders those of folders only. */

#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static int forgets(int file) {
    const char *what = getenv("FORGET");
    if (!what) return 0;
    struct stat about;
    return strcmp(what, "all") == 0 || (fstat(file, &about) == 0 && S_ISDIR(about.st_mode));
}

int fsync(int file) { return forgets(file) ? 0 : (int)syscall(SYS_fsync, file); }

int fdatasync(int file) { return forgets(file) ? 0 : (int)syscall(SYS_fdatasync, file); }
