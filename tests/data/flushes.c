/* Loaded with LD_PRELOAD into a process of the flush test: notes every fsync and fdatasync in the file named by FLUSHES, as a line
   of fields with tabs between: `file`, path and bytes, or `folder`, path and the names in it. */

#define _GNU_SOURCE
#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static void note(int file) {
    const char *notes = getenv("FLUSHES");
    char link[64], path[PATH_MAX + 1];
    struct stat about;
    if (!notes || fstat(file, &about) != 0) return;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, PATH_MAX);
    if (length < 0) return;
    path[length] = '\0';
    FILE *out = fopen(notes, "a");
    if (!out) return;
    if (S_ISDIR(about.st_mode)) {
        fprintf(out, "folder\t%s", path);
        DIR *folder = opendir(path);
        for (struct dirent *entry; folder && (entry = readdir(folder));) fprintf(out, "\t%s", entry->d_name);
        if (folder) closedir(folder);
    } else {
        fprintf(out, "file\t%s\t%lld", path, (long long)about.st_size);
    }
    fputc('\n', out);
    fclose(out);
}

int fsync(int file) {
    note(file);
    return (int)syscall(SYS_fsync, file);
}

int fdatasync(int file) {
    note(file);
    return (int)syscall(SYS_fdatasync, file);
}
